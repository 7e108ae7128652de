"""Batch normalization, with given statistics or those of the batch, and the softmax family."""

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


# ── softmax, and cross-entropy losses on logits ───────────────────────────────────────────────────────────────────────


@exporter("Softmax", "LogSoftmax")
def softmax(node: ExportedNode, logits: ModelValue) -> ModelValue:
    """Export softmax or its logarithm along the last axis."""
    return node.make(node.op, logits, axis=-1)


@exporter("SoftmaxCrossEntropyWithLogits")
def cross_entropy(node: ExportedNode, logits: ModelValue, labels: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export the loss of each row and its gradient."""
    logarithm = node.make("LogSoftmax", logits, axis=-1)
    zero = node.like(0, labels)
    # A label of 0 contributes 0, also where the logarithm is -inf and their product would be NaN.
    terms = node.make("Where", node.make("Equal", labels, zero), zero, node.make("Mul", labels, logarithm))
    loss = node.make("Neg", node.make("ReduceSum", terms, node.const([-1]), keepdims=0))
    return loss, node.make("Sub", node.make("Softmax", logits, axis=-1), labels)


@exporter("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(node: ExportedNode, logits: ModelValue, labels: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export the loss of each row, whose label is a class index, and its gradient."""
    column = node.unsqueezed(node.int64(labels), [1])
    taken = node.make("GatherElements", node.make("LogSoftmax", logits, axis=-1), column, axis=1)
    loss = node.make("Neg", node.squeezed(taken, [1]))
    count = node.make("Squeeze", node.size_of(logits, 1), node.const([0]))
    classes = node.make("Range", node.const(0), count, node.const(1))
    chosen = node.cast(node.make("Equal", column, node.unsqueezed(classes, [0])), logits.dtype)
    return loss, node.make("Sub", node.make("Softmax", logits, axis=-1), chosen)
