"""Reductions along axes, scans, and the indices of extremes.

Over no values the sum is 0, the product 1, the maximum the lowest value of the dtype, and the mean NaN.
"""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.runnable import computed_in
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
