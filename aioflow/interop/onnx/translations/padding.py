"""Padding, and the ops that move blocks between space and depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.geometry import padded, quotient
from aioflow.interop.onnx.sizes import Size, axis_of, int64, integers, length_of, rank_of, sizes_of, with_dims
from aioflow.interop.onnx.translating import OnnxNode, translation
from aioflow.ops import public as ops
from aioflow.ops.apply import constant


@translation("Pad")
def pad_by_attributes(node: OnnxNode, x: Tensor) -> Tensor:
    # Opset 1 calls the attribute `paddings`.
    pads = node.attr("pads") or node.required("paddings")
    return pad(node, x, int64(pads), constant(node.attr("value", 0.0), x.dtype))


@translation("Pad", since=11)
def pad(node: OnnxNode, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
    rank, mode = rank_of(node, x), node.attr("mode", "constant")
    if node.constant(pads) is None or (axes is not None and node.constant(axes) is None):
        return _padded(node, x, pads, value, axes)
    known = integers(node, pads, "paddings") or []
    given = integers(node, axes, "axes")
    places = list(range(rank)) if given is None else [axis_of(node, x, axis) for axis in given]
    if len(known) != 2 * len(places):
        raise node.wrong("the paddings", f"{2 * len(places)} numbers", known)
    pairs = [[0, 0] for _ in range(rank)]
    for i, place in enumerate(places):
        pairs[place] = [known[i], known[i + len(places)]]
    if mode != "constant":
        return _repeated(node, x, pairs, mode)
    x = _cut(x, pairs)
    pairs = [[max(edge, 0) for edge in pair] for pair in pairs]
    if not any(map(any, pairs)):
        return x
    return padded(x, pairs, _fill(x, value))


def _fill(x: Tensor, value: Tensor | None) -> Tensor:
    if value is None:
        return constant(np.zeros((), x.dtype.np_dtype)) if x.dtype.name != "string" else constant("")
    return ops.reshape(value, [])


def _cut(x: Tensor, pairs: list[list[int]]) -> Tensor:
    """Return the tensor cropped by the negative paddings."""
    if all(edge >= 0 for pair in pairs for edge in pair):
        return x
    # An end of 0 is masked; any other counts from the end.
    begin, end = [max(-before, 0) for before, _ in pairs], [min(after, 0) for _, after in pairs]
    return ops.strided_slice(x, begin, end, end_mask=sum(1 << i for i, e in enumerate(end) if e == 0))


def _padded(node: OnnxNode, x: Tensor, pads: Tensor, value: Tensor | None, axes: Tensor | None) -> Tensor:
    """Return the tensor with paddings that are known only in the step."""
    rank, mode = rank_of(node, x), node.attr("mode", "constant")
    count = rank if axes is None else length_of(node, axes)
    # ONNX lists all befores, then all afters.
    pairs = ops.transpose(ops.reshape(int64(pads), int64([2, count])))
    if axes is not None:
        places = ops.expand_dims(ops.floormod(int64(axes), int64(rank)), 1)
        pairs = ops.tensor_scatter_nd_update(int64([[0, 0]] * rank), places, pairs)
    if mode != "constant":
        return _repeated(node, x, [[pairs[i, 0], pairs[i, 1]] for i in range(rank)], mode)
    # Negative paddings crop.
    cut = ops.minimum(pairs, int64(0))
    x = ops.slice(x, -cut[:, 0], ops.shape(x, out_type="int64") + cut[:, 0] + cut[:, 1])
    made = ops.pad(x, ops.maximum(pairs, int64(0)), constant_values=_fill(x, value))
    return with_dims(made, (None,) * rank)


def _repeated(node: OnnxNode, x: Tensor, pairs: Sequence[Sequence[Size]], mode: str) -> Tensor:
    """Return the tensor padded with its own elements."""
    for axis, ((before, after), size) in enumerate(zip(pairs, sizes_of(x), strict=True)):
        if isinstance(before, int) and isinstance(after, int) and not before and not after:
            continue
        # The positions of the result's elements, counted from the first element of x.
        places = ops.range(int64(-before), int64(size + after), int64(1))
        last = int64(size) - 1
        if mode == "edge":
            places = ops.clip_by_value(places, int64(0), last)
        elif mode == "wrap":
            places = ops.floormod(places, int64(size))
        elif mode == "reflect":
            # A reflection without repeating the border has the period 2 · (size - 1).
            period = ops.maximum(2 * last, int64(1))
            places = ops.floormod(places, period)
            places = ops.minimum(places, period - places) if size != 1 else ops.zeros_like(places)
        else:
            return node.refuse(f"mode={mode!r}")
        x = ops.gather(x, places, axis=axis)
    return x


@translation("DepthToSpace")
def depth_to_space(node: OnnxNode, x: Tensor) -> Tensor:
    block = node.required("blocksize")
    batch, depth, rows, columns = sizes_of(x)
    channels = quotient(depth, block * block)
    if node.attr("mode", "DCR") == "DCR":
        # DCR: the channels are ordered by block position first (depth, column, row); CRD by channel first.
        parts, order = [batch, block, block, channels, rows, columns], [0, 3, 4, 1, 5, 2]
    else:
        parts, order = [batch, channels, block, block, rows, columns], [0, 1, 4, 2, 5, 3]
    return _moved(x, parts, order, [batch, channels, rows * block, columns * block])


@translation("SpaceToDepth")
def space_to_depth(node: OnnxNode, x: Tensor) -> Tensor:
    block = node.required("blocksize")
    batch, channels, rows, columns = sizes_of(x)
    # A block that does not divide the size fails in the reshape.
    high, wide = quotient(rows, block), quotient(columns, block)
    parts = [batch, channels, high, block, wide, block]
    order = [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    return _moved(x, parts, order, [batch, channels * block * block, high, wide])


def _moved(x: Tensor, parts: list[Size], order: list[int], sizes: list[Size]) -> Tensor:
    return ops.reshape(ops.transpose(ops.reshape(x, _shape(parts)), order), _shape(sizes))


def _shape(sizes: list[Size]) -> Tensor:
    return ops.stack([int64(size) for size in sizes]) if any(isinstance(s, Tensor) for s in sizes) else int64(sizes)
