"""Batch normalization, with given statistics or those of the batch."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


@exporter("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", any_layout=True)
def batch_norm(
    node: ExportedNode, x: ModelValue, scale: ModelValue, offset: ModelValue, mean: ModelValue, variance: ModelValue
) -> tuple[ModelValue | None, ...]:
    """Export batch normalization with the given statistics, or in training with those of the batch."""
    channels_first = str(node.attr("data_format")).startswith("NC")
    images = node.first(x, channels_first)
    if node.attr("is_training"):
        return _of_batch(node, images, scale, offset, channels_first, mean, variance)
    wide = node.cast(images, scale.dtype)
    epsilon = float(node.attr("epsilon"))
    made = node.make("BatchNormalization", wide, scale, offset, mean, variance, epsilon=epsilon)
    return (node.last(node.cast(made, images.dtype), channels_first), mean, variance, mean, variance)


def _of_batch(
    node: ExportedNode,
    images: ModelValue,
    scale: ModelValue,
    offset: ModelValue,
    channels_first: bool,
    mean: ModelValue,
    variance: ModelValue,
) -> tuple[ModelValue | None, ...]:
    """Return the normalized images, and the mean and the (unbiased) sample variance of the batch."""
    if float(node.attr("exponential_avg_factor")) != 1.0:
        node.refuse("statistics of a batch, averaged with earlier ones")
    rank = node.rank(images)
    wide = node.cast(images, scale.dtype)
    axes = node.const([0, *range(2, rank)])
    around = node.make("ReduceMean", wide, axes)
    centred = node.make("Sub", wide, around)
    spread = node.make("ReduceMean", node.make("Mul", centred, centred), axes)
    scaled = node.make("Sqrt", node.make("Add", spread, node.like(float(node.attr("epsilon")), spread)))
    factor, shift = (node.unsqueezed(v, range(1, rank - 1)) for v in (scale, offset))
    made = node.make("Add", node.make("Mul", node.make("Div", centred, scaled), factor), shift)
    count = _count(node, wide)
    more = node.make("Div", count, node.make("Max", node.make("Sub", count, node.like(1, count)), node.like(1, count)))
    flat = node.const([-1])
    found = node.make("Reshape", around, flat), node.make("Reshape", node.make("Mul", spread, more), flat)
    return (node.last(node.cast(made, images.dtype), channels_first), *found)


def _count(node: ExportedNode, images: ModelValue) -> ModelValue:
    """Return the number of values per channel."""
    sizes = node.make("Gather", node.shape_of(images), node.const([0, *range(2, node.rank(images))]))
    return node.cast(node.make("ReduceProd", sizes, keepdims=0), dtypes.float32)
