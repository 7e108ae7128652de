"""Padding, and rearrangement of spatial blocks to channels or batches."""

from __future__ import annotations

import math

import numpy as np

from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue, channels_first_order


@exporter("Pad", "PadV2", any_layout=True)
def pad(node: ExportedNode, x: ModelValue, paddings: ModelValue, value: ModelValue | None = None) -> ModelValue:
    """Export padding with a value, by default zero."""
    around = None if value is None else node.scalar(value)
    return _padded(node, x, paddings, around, "constant")


@exporter("MirrorPad", any_layout=True)
def mirror_pad(node: ExportedNode, x: ModelValue, paddings: ModelValue) -> ModelValue:
    """Export padding with a reflection that includes or excludes the outermost elements."""
    if node.attr("mode") == "REFLECT":
        return _padded(node, x, paddings, None, "reflect")
    # ONNX's Pad has no symmetric mode: concatenate reversed slices.
    known = node.known(paddings, "paddings that are not constant")
    plain = node.rows(x)
    for axis, (before, after) in enumerate(known.tolist()):
        at, back = node.const([axis]), node.const([-1])
        # Backwards from element before - 1 to the first. Only an end far below zero includes element 0.
        left = node.make("Slice", plain, node.const([before - 1]), node.const([-(2**62)]), at, back)
        right = node.make("Slice", plain, back, node.const([-after - 1]), at, back)
        plain = node.joined([*([left] if before else []), plain, *([right] if after else [])], axis)
    return plain


def _padded(node: ExportedNode, x: ModelValue, paddings: ModelValue, value: ModelValue | None, mode: str) -> ModelValue:
    known = paddings.constant
    if known is None:
        # TensorFlow has (before, after) per axis, ONNX all befores followed by all afters.
        columns = node.make("Transpose", node.int64(paddings), perm=[1, 0])
        return node.make("Pad", node.rows(x), node.reshaped(columns, [-1]), value, mode=mode)
    if not x.channels_first:
        return node.make("Pad", x, node.const(known.T.reshape(-1)), value, mode=mode)
    order = list(channels_first_order(node.rank(x)))
    made = node.make("Pad", node.first(x), node.const(known[order].T.reshape(-1)), value, mode=mode)
    return node.last(made, False)


@exporter("DepthToSpace", "SpaceToDepth", any_layout=True)
def depth_to_space(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the rearrangement of channels to spatial blocks, or of spatial blocks to channels."""
    layout = node.attr("data_format")
    if layout not in ("NHWC", "NCHW"):
        node.refuse(f"data_format {layout!r}")
    images = node.first(x, layout == "NCHW")
    made = node.make(node.op, images, blocksize=int(node.attr("block_size")))
    return node.last(made, layout == "NCHW")


@exporter("SpaceToBatchND")
def space_to_batch(node: ExportedNode, x: ModelValue, block: ModelValue, paddings: ModelValue) -> ModelValue:
    """Export the rearrangement of spatial blocks to batch entries, after padding."""
    sizes = [int(n) for n in node.known(block, "blocks that are not constant").reshape(-1)]
    known = node.known(paddings, "paddings that are not constant")
    rank, count = node.rank(x), len(sizes)
    around = np.zeros((rank, 2), np.int64)
    around[1 : count + 1] = known
    padded = node.make("Pad", x, node.const(around.T.reshape(-1)))
    shape = node.make("Shape", padded)
    parts = [_part(node, shape, 0)]
    for i, size in enumerate(sizes):
        parts += [node.make("Div", _part(node, shape, i + 1), node.const([size])), node.const([size])]
    rest = node.make("Shape", padded, start=count + 1)
    # [batch, size₁ / block₁, block₁, …, rest].
    spread = node.reshaped(padded, node.joined([*parts, rest]))
    # All blocks come to the front of the batch; then the reduced sizes, then the rest.
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, rank + count)]
    turned = node.transposed(spread, order)
    batch = node.make("Mul", parts[0], node.const([math.prod(sizes)]))
    return node.reshaped(turned, node.joined([batch, *parts[1::2], rest]))


@exporter("BatchToSpaceND")
def batch_to_space(node: ExportedNode, x: ModelValue, block: ModelValue, crops: ModelValue) -> ModelValue:
    """Export the rearrangement of batch entries to spatial blocks, followed by cropping."""
    sizes = [int(n) for n in node.known(block, "blocks that are not constant").reshape(-1)]
    known = node.known(crops, "crops that are not constant")
    rank, count = node.rank(x), len(sizes)
    shape = node.make("Shape", x)
    batch = node.make("Div", _part(node, shape, 0), node.const([math.prod(sizes)]))
    space = [_part(node, shape, i + 1) for i in range(count)]
    rest = node.make("Shape", x, start=count + 1)
    spread = node.reshaped(x, node.joined([*(node.const([n]) for n in sizes), batch, *space, rest]))
    # The blocks are the first axes, and each goes behind its own spatial axis.
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    turned = node.transposed(spread, [*order, *range(2 * count + 1, rank + count)])
    whole = [node.make("Mul", part, node.const([n])) for part, n in zip(space, sizes, strict=True)]
    made = node.reshaped(turned, node.joined([batch, *whole, rest]))
    # An end of -0 would be 0 and give an empty slice.
    starts, ends = known[:, 0].tolist(), [-after if after else 2**62 for after in known[:, 1].tolist()]
    return node.make("Slice", made, node.const(starts), node.const(ends), node.const(list(range(1, count + 1))))


def _part(node: ExportedNode, shape: ModelValue, index: int) -> ModelValue:
    return node.make("Gather", shape, node.const([index]))
