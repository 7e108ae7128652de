"""Reductions along axes and by segments, scans, and the indices of extremes.

Over no values the sum is 0, the product 1, the maximum the lowest value of the dtype, and the mean NaN.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.types import computed_in
from aioflow.interop.onnx.exporting.values import ModelValue, channels_first_order


def _reduced(node: ExportedNode, op: str, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Return the reduction. Channels stay first where possible."""
    known, keep = axes.constant, bool(node.attr("keep_dims"))
    rank = x.rank
    if known is None or rank is None:
        # No axes mean no reduction in TensorFlow, and by default all axes in ONNX.
        return node.make(op, node.rows(x), node.vector(axes), keepdims=int(keep), noop_with_empty_axes=1)
    # A set, since an axis may be listed twice.
    normal = sorted({int(a) % max(rank, 1) for a in known.reshape(-1)})
    if not normal:
        return x
    spatial = list(range(1, rank - 1))
    # In all other cases the remaining axes would have no layout of their own, so the plain value is reduced.
    if not x.channels_first or not (keep or normal == spatial):
        return _along(node, op, node.rows(x), normal, keep)
    order = channels_first_order(rank)
    made = _along(node, op, node.first(x), [order.index(a) for a in normal], keep)
    return ModelValue(made.name, made.dtype, node.outputs[0].dims, None, keep)


def _along(node: ExportedNode, op: str, x: ModelValue, axes: list[int], keep: bool) -> ModelValue:
    return node.make(op, x, node.const(axes), keepdims=int(keep))


@exporter("Sum", any_layout=True)
def total(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the sum."""
    return _reduced(node, "ReduceSum", x, axes)


@exporter("Prod", any_layout=True)
def product(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the product."""
    return _reduced(node, "ReduceProd", x, axes)


@exporter("Mean", any_layout=True)
def mean(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the mean. For integers it is rounded toward zero, as their division is."""
    known, dims = axes.constant, x.dims
    if x.dtype.is_floating and (known is None or dims is None or not all(dims[int(a)] for a in known.reshape(-1))):
        # The mean may be over no values. The sum is divided by the count, so that 0 / 0 makes it NaN.
        added = _reduced(node, "ReduceSum", node.rows(x), axes)
        many = node.make("Max", node.make("Size", added), node.const(1))
        return node.make("Div", added, node.cast(node.make("Div", node.make("Size", node.rows(x)), many), x.dtype))
    return _reduced(node, "ReduceMean", x, axes)


@exporter("Max", any_layout=True)
def greatest(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the maximum."""
    return _extreme(node, "ReduceMax", x, axes)


@exporter("Min", any_layout=True)
def least(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the minimum."""
    return _extreme(node, "ReduceMin", x, axes)


def _extreme(node: ExportedNode, op: str, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Return the maximum or minimum.

    Over no values it is the extreme of the value's own dtype, even if a wider dtype is computed in.
    """
    wide = computed_in(op, x.dtype)
    if wide is None or wide is x.dtype or (x.is_static and 0 not in (x.dims or ())):
        return _reduced(node, op, x, axes)
    made = _reduced(node, op, node.cast(node.rows(x), wide), axes)
    of_none = wide.min if op == "ReduceMax" else wide.max
    own = x.dtype.min if op == "ReduceMax" else x.dtype.max
    # A number of the narrow dtype never equals the extreme of the wide one, so only an empty reduction does.
    is_none = node.make("Equal", made, node.const(of_none, wide))
    return node.make("Where", is_none, node.const(own, x.dtype), node.cast(made, x.dtype))


@exporter("All", any_layout=True)
def every(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the test that all values are true, which holds over no values."""
    return node.make("Not", _some(node, node.make("Not", node.rows(x)).of(x.dims), axes))


@exporter("Any", any_layout=True)
def some(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the test that any value is true."""
    return _some(node, node.rows(x), axes)


def _some(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    # ReduceMax takes bool only from opset 20 on.
    count = _reduced(node, "ReduceSum", node.int64(x), axes)
    return node.make("Greater", count, node.const(0))


@exporter("EuclideanNorm", any_layout=True)
def euclidean_norm(node: ExportedNode, x: ModelValue, axes: ModelValue) -> ModelValue:
    """Export the square root of the sum of squares."""
    plain = node.rows(x)
    squares = _reduced(node, "ReduceSum", node.make("Mul", plain, plain).of(x.dims), axes)
    if x.dtype.is_integer:
        return node.cast(node.make("Sqrt", node.cast(squares, dtypes.float64)), x.dtype)
    return node.make("Sqrt", squares)


@exporter("ArgMax", "ArgMin")
def arg_extreme(node: ExportedNode, x: ModelValue, dimension: ModelValue) -> ModelValue:
    """Export the index of the first extreme along an axis."""
    axis = int(node.known(dimension, "an axis that is not constant").reshape(-1)[0])
    given = node.cast(x, dtypes.uint8) if x.dtype.is_bool else x
    return node.make(node.op, given, axis=axis, keepdims=0)


@exporter("Cumsum")
def cumulative_sum(node: ExportedNode, x: ModelValue, axis: ModelValue) -> ModelValue:
    """Export running sums along an axis."""
    return node.make("CumSum", x, node.scalar(axis), **_scan(node))


@exporter("Cumprod")
def cumulative_product(node: ExportedNode, x: ModelValue, axis: ModelValue) -> ModelValue:
    """Export running products along an axis.

    The values are broadcast to a square of results and factors, in which a factor outside a result's range is 1.
    Each product is then a reduction along the factors.
    """
    at = int(node.known(axis, "an axis that is not constant").reshape(-1)[0])
    rank = node.rank(x)
    at %= rank
    size = node.size_of(x, at)
    count = node.make("Squeeze", size, node.const([0]))
    places = node.make("Range", node.const(0), count, node.const(1))
    result, factor = node.unsqueezed(places, [1]), node.unsqueezed(places, [0])
    if node.attr("reverse"):
        result, factor = factor, result
        rows, columns = node.unsqueezed(places, [1]), node.unsqueezed(places, [0])
        taken = node.make("Greater" if node.attr("exclusive") else "GreaterOrEqual", columns, rows)
    else:
        taken = node.make("Less" if node.attr("exclusive") else "LessOrEqual", factor, result)
    last = node.transposed(x, [*(a for a in range(rank) if a != at), at])
    # […, result, factor]; ONNX has CumProd only in later opsets than those exported.
    spread = node.make("Where", taken, node.make("Unsqueeze", last, node.const([rank - 1])), node.like(1, x))
    made = node.make("ReduceProd", spread, node.const([rank]), keepdims=0)
    back = [*range(at), rank - 1, *range(at, rank - 1)]
    return node.transposed(made, back)


def _scan(node: ExportedNode) -> Attrs:
    return {"exclusive": int(node.attr("exclusive")), "reverse": int(node.attr("reverse"))}


# ── rows by segment number, translated as a scatter with a reduction ──────────────────────────────────────────────────


_FAR: Final = 2**62


def _start(node: ExportedNode, x: ModelValue, reduction: str) -> ModelValue:
    """Return the value of a segment without rows."""
    if reduction in ("add", "mul"):
        return node.like(0 if reduction == "add" else 1, x)
    lowest = reduction == "max"
    return node.like(x.dtype.min if lowest else x.dtype.max, x)


def _combined(
    node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue, reduction: str, start: ModelValue
) -> ModelValue:
    """Return one row for each number below `count` (int64 [1]). Rows with negative numbers are dropped."""
    own = node.rank(ids)
    numbers = node.vector(ids)
    rows = data
    tail = node.make("Shape", data, start=own)
    if own != 1:
        # Ids of several axes number rows of the remaining axes.
        rows = node.reshaped(data, node.joined([node.make("Shape", numbers), tail]))
    # ONNX counts negative indices from the end, so dropped rows go to an extra last row, which is sliced off.
    beyond = node.make("Where", node.make("Less", numbers, node.const(0)), count, numbers)
    one_more = node.make("Add", count, node.const([1]))
    blank = node.make("Expand", start, node.joined([one_more, tail]))
    made = node.make("ScatterND", blank, node.unsqueezed(beyond, [1]), rows, reduction=reduction)
    return node.make("Slice", made, node.const([0]), count, node.const([0]))


def _unsorted(op: str, reduction: str) -> None:
    @exporter(op)
    def made(node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue) -> ModelValue:
        return _combined(node, data, ids, node.vector(count), reduction, _start(node, data, reduction))


_unsorted("UnsortedSegmentSum", "add")
_unsorted("UnsortedSegmentProd", "mul")
_unsorted("UnsortedSegmentMax", "max")
_unsorted("UnsortedSegmentMin", "min")


def _sorted_count(node: ExportedNode, ids: ModelValue) -> ModelValue:
    """Return the last number plus one, or 0 if there are no numbers."""
    numbers = node.joined([node.const([-1]), node.vector(ids)])
    last = node.make("Slice", numbers, node.const([-1]), node.const([_FAR]))
    return node.make("Add", last, node.const([1]))


def _sorted(op: str, reduction: str) -> None:
    @exporter(op)
    def made(node: ExportedNode, data: ModelValue, ids: ModelValue) -> ModelValue:
        count = _sorted_count(node, ids)
        found = _combined(node, data, ids, count, reduction, _start(node, data, reduction))
        if reduction in ("add", "mul"):
            return found
        # TensorFlow returns 0 for an empty segment of the sorted ops, and the extreme of the dtype for the unsorted
        # ones.
        present = node.make("Greater", _counts(node, data, ids, count), node.const(0))
        return node.make("Where", present, found, node.like(0, data))


def _counts(node: ExportedNode, data: ModelValue, ids: ModelValue, count: ModelValue) -> ModelValue:
    """Return the number of rows of each segment, shaped to broadcast over rows."""
    ones = node.make("Expand", node.const(1), node.make("Shape", ids))
    found = _combined(node, ones.of((None,)), ids, count, "add", node.const(0))
    return node.unsqueezed(found, range(1, node.rank(data)))


_sorted("SegmentSum", "add")
_sorted("SegmentProd", "mul")
_sorted("SegmentMax", "max")
_sorted("SegmentMin", "min")


@exporter("SegmentMean")
def segment_mean(node: ExportedNode, data: ModelValue, ids: ModelValue) -> ModelValue:
    """Export the mean of the rows of each segment."""
    count = _sorted_count(node, ids)
    total = _combined(node, data, ids, count, "add", node.like(0, data))
    # Max avoids 0 / 0: the mean of an empty segment is 0.
    rows = node.cast(node.make("Max", _counts(node, data, ids, count), node.const(1)), data.dtype)
    return node.make("Div", total, rows)


@exporter("Bincount")
def bincount(node: ExportedNode, values: ModelValue, size: ModelValue, weights: ModelValue) -> ModelValue:
    """Export the count of each number, or the sum of its weights. Numbers that are too large are ignored."""
    limit = node.vector(size)
    numbers = node.vector(values)
    inside = node.make("Where", node.make("Less", numbers, limit), numbers, node.const(-1)).of((None,))
    if weights.dims is not None and weights.dims[0] == 0:
        ones = node.make("Expand", node.const(1, dtypes.int32), node.make("Shape", inside))
    elif weights.dims is None or weights.dims[0] is None:
        node.refuse("weights of which it is not known whether there are any")
    else:
        ones = node.reshaped(weights, [-1])
    made = _combined(node, ones.of((None,)), inside, limit, "add", node.like(np.int64(0), ones))
    return node.cast(made, node.dtype)
