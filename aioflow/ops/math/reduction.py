"""Reductions (sum, mean, maximum, …) and scans (cumulative sum and product), with their gradients.

The axes of a reduction are an input, nearly always a constant. With known shapes a gradient is a reshape and a
broadcast, neither of which copies. Shapes are computed at run time only if the axes or the rank are unknown before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DTypeLike, as_dtype
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import OPS, ShapeContext, define_op
from aioflow.graph.shapes import Dims, check_axis, num_elements
from aioflow.graph.static_value import StaticValue, ValueRule, constant_value, integers_only
from aioflow.graph.traits import reading, reduction
from aioflow.memory.values import Array
from aioflow.ops import row_values, rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.scoping import name_scope

# reduce_variance, reduce_std and reduce_euclidean_norm are public as aioflow.math names only.
__all__ = [
    "count_nonzero",
    "cumprod",
    "cumsum",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
]


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def reduced(ctx: ShapeContext) -> Dims:
    """Infer the shape of a reduction: the axes of the second input are removed, or become 1."""
    ctx.require_rank("reduction_indices", 0, 1)
    dims, axes, keep = ctx.dims("input"), ctx.value("reduction_indices"), ctx.attrs["keep_dims"]
    if dims is None:
        return None
    if axes is None:
        # The rank is known if the axes stay with some size, but not which of them become 1.
        return (None,) * len(dims) if keep else None
    gone = {check_axis(int(a), len(dims)) for a in axes.reshape(-1)}
    if keep:
        return tuple(1 if i in gone else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _scanned(ctx: ShapeContext) -> Dims:
    ctx.require_rank("axis", 0)
    dims, axis = ctx.dims("x"), ctx.scalar("axis")
    if dims is not None and axis is not None:
        check_axis(axis, len(dims))
    return dims


def _over_axes(function: Callable[..., Array]) -> ValueRule:
    def rule(op: Operation, inputs: list[Array]) -> Array:
        axes = tuple(int(a) for a in inputs[1].reshape(-1))
        return np.asarray(function(inputs[0], axis=axes, keepdims=op.attrs["keep_dims"]))

    return rule


def _extreme(function: Callable[..., Array], of_none: str) -> StaticValue:
    """Return the static value of a maximum or minimum of integers.

    `of_none` names the limit of the dtype that is the result for no elements.
    """

    def rule(op: Operation, inputs: list[Array]) -> Array | list[Array] | None:
        # NumPy raises for no elements unless `initial` is given.
        limit = getattr(np.iinfo(inputs[0].dtype), of_none)
        return _over_axes(lambda *a, **k: function(*a, initial=limit, **k))(op, inputs)

    return integers_only(StaticValue(rule))


def _total(function: Callable[..., Array]) -> StaticValue:
    """Return the static value of a sum or product, which wraps around in the dtype of the op."""

    def rule(op: Operation, inputs: list[Array]) -> Array | list[Array] | None:
        # Without a dtype NumPy would add int32 in int64, which does not overflow as the kernel does.
        return _over_axes(lambda *a, **k: function(*a, dtype=inputs[0].dtype, **k))(op, inputs)

    return integers_only(StaticValue(rule))


def _running(function: Callable[..., Array]) -> StaticValue:
    def rule(op: Operation, inputs: list[Array]) -> Array | list[Array] | None:
        # NumPy has no such variants.
        if op.attrs["exclusive"] or op.attrs["reverse"]:
            return None
        return function(inputs[0], axis=int(inputs[1]), dtype=inputs[0].dtype)

    return integers_only(StaticValue(rule))


_AXES = "Tidx: {index} = int32"
_ADDS: Final = reduction(rounded_by="reduction_indices", keeps_row_major=True)
_REDUCES: Final = reduction(keeps_row_major=True)
for _name, _types, _traits, _value in (
    ("Sum", "{numbertype}", _ADDS, _total(np.sum)),
    ("Mean", "{numbertype}", _ADDS, None),
    ("Prod", "{numbertype}", _REDUCES, _total(np.prod)),
    ("EuclideanNorm", "{numbertype}", _REDUCES, None),
    ("Max", "{reals, quantized}", _REDUCES, _extreme(np.max, "min")),
    ("Min", "{reals, quantized}", _REDUCES, _extreme(np.min, "max")),
):
    define_op(
        _name,
        "input: T, reduction_indices: Tidx",
        "output: T",
        ["keep_dims: bool = False", f"T: {_types}", _AXES],
        shape=reduced,
        value=_value,
        rows=row_values.product if _name == "Prod" else rows.reduced(),
        traits=_traits,
    )
for _name, _function in (("All", np.all), ("Any", np.any)):
    define_op(
        _name,
        "input: bool, reduction_indices: Tidx",
        "output: bool",
        ["keep_dims: bool = False", _AXES],
        shape=reduced,
        value=StaticValue(_over_axes(_function)),
        rows=rows.reduced(),
        traits=reduction(),
    )
for _name, _accumulate in (("Cumsum", np.cumsum), ("Cumprod", np.cumprod)):
    define_op(
        _name,
        "x: T, axis: Tidx",
        "out: T",
        ["exclusive: bool = False", "reverse: bool = False", "T: {numbertype}", _AXES],
        shape=_scanned,
        value=_running(_accumulate),
        rows=rows.apart_from(lambda ctx: ctx.ints(1)),
        traits=reduction(cost=reading(4)),
    )

not_differentiable("All", "Any")


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _reduced_axes(op: Operation) -> set[int] | None:
    """Return the axes that a reduction removes; None if they or the input's rank are unknown."""
    dims, axes = op.inputs[0].dims, constant_value(op.inputs[1])
    if dims is None or axes is None:
        return None
    return {check_axis(int(a), len(dims)) for a in axes.reshape(-1)}


def _with_kept_dims(op: Operation, *tensors: Tensor) -> list[Tensor]:
    """Reshape tensors of the output's shape so that they broadcast against the input."""
    if op.get_attr("keep_dims"):
        return list(tensors)
    shape = _kept_shape(op)
    return [make("Reshape", t, shape) for t in tensors]


def _kept_shape(op: Operation) -> Tensor:
    dims, gone = op.inputs[0].dims, _reduced_axes(op)
    if dims is not None and gone is not None:
        sizes = [1 if i in gone else -1 if d is None else d for i, d in enumerate(dims)]
        # Reshape can infer one size, unless a zero makes it ambiguous.
        if sizes.count(-1) == 0 or (sizes.count(-1) == 1 and 0 not in sizes):
            return _shape_constant(sizes)
    shape = make("Shape", op.inputs[0])
    hits = make("Minimum", _hits(op), 1)
    # shape where an axis stays, and 1 where it is named: hits is 0 or 1 after the minimum.
    result: Tensor = shape * (1 - hits) + hits
    return result


def _hits(op: Operation) -> Tensor:
    """Count at run time how often the reduction names each axis of the input."""
    rank = make("Rank", op.inputs[0])
    # The axes are a scalar or a vector, of either index dtype.
    axes = make("Reshape", make("Cast", op.inputs[1], DstT=dtypes.int32), [-1])
    return make("UnsortedSegmentSum", make("OnesLike", axes), make("FloorMod", axes, rank), rank)


def _shape_constant(sizes: Sequence[int]) -> Tensor:
    # A shape is int32 unless a size needs more bits.
    wide = any(s > np.iinfo(np.int32).max for s in sizes)
    return constant(np.array(sizes, dtype=np.int64 if wide else np.int32))


def _broadcast_like(value: Tensor, like: Tensor) -> Tensor:
    known = like.dims is not None and None not in like.dims
    # A static shape that is equal but partly unknown may still differ at run time.
    if known and value.dims == like.dims:
        return value
    shape = _shape_constant([d or 0 for d in like.dims or ()]) if known else make("Shape", like)
    return make("BroadcastTo", value, shape)


@gradient("Sum")
def _sum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    (grad,) = _with_kept_dims(op, grad)
    return [_broadcast_like(grad, op.inputs[0]), None]


@gradient("Mean")
def _mean_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    # Divide before broadcasting: the incoming gradient is the smaller array.
    return _sum_grad(op, make("RealDiv", grad, _count_reduced(op)))


def _count_reduced(op: Operation) -> Tensor:
    x, y = op.inputs[0], op.outputs[0]
    gone = _reduced_axes(op)
    if x.dims is not None and gone is not None:
        count = num_elements(tuple(x.dims[i] for i in gone))
        if count is not None:
            return constant(count, dtype=x.dtype)
    # Elements of the input per element of the output. Counts may exceed int32, hence int64.
    dynamic = make("Size", x, out_type=dtypes.int64)
    if num_elements(y.dims) != 1:
        # The maximum avoids a division by zero for an empty output, in which case no mean is used.
        dynamic = make("FloorDiv", dynamic, make("Maximum", make("Size", y, out_type=dtypes.int64), 1))
    return make("Cast", dynamic, DstT=x.dtype)


@gradient("Max", "Min")
def _extreme_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Share the gradient equally among the elements that attain the extreme."""
    x = op.inputs[0]
    y, grad = _with_kept_dims(op, op.outputs[0], grad)
    # y is broadcast against x, so each element is compared with the extreme of its own group.
    chosen = make("Cast", make("Equal", y, x), DstT=grad.dtype)
    count = make("Sum", chosen, op.inputs[1], keep_dims=True)
    return [chosen / count * grad, None]


@gradient("Prod")
def _prod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradient with respect to each factor: the product of the other factors."""
    x = op.inputs[0]
    (grad,) = _with_kept_dims(op, grad)
    grad = _broadcast_like(grad, x)
    order, inverse, flat = _reduced_first(op)
    # With the reduced axes first and flat, each column holds the factors of one product.
    permuted = make("Transpose", x, order)
    columns = make("Reshape", permuted, flat)
    # The product before an element times that after it: y / x would fail for a factor of zero.
    before = cumprod(columns, axis=0, exclusive=True)
    after = cumprod(columns, axis=0, exclusive=True, reverse=True)
    others = make("Transpose", make("Reshape", before * after, make("Shape", permuted)), inverse)
    return [grad * _conjugate(others), None]


def _reduced_first(op: Operation) -> tuple[Tensor, Tensor, Tensor]:
    """Return a permutation that moves the reduced axes to the front, its inverse, and a matrix shape.

    The shape is (reduced elements, other elements).
    """
    x, y = op.inputs[0], op.outputs[0]
    gone = _reduced_axes(op)
    if x.dims is not None and gone is not None:
        order = [*sorted(gone), *(i for i in range(len(x.dims)) if i not in gone)]
        inverse = sorted(range(len(order)), key=order.__getitem__)
        permutations = _shape_constant(order), _shape_constant(inverse)
        count = num_elements(tuple(x.dims[i] for i in gone))
        others = num_elements(tuple(d for i, d in enumerate(x.dims) if i not in gone))
        if count is not None and others is not None:
            return (*permutations, _shape_constant([count, others]))
    else:
        # TopKV2 keeps the order of equal values, so it is a stable sort. Sorting a permutation yields its inverse.
        rank = make("Rank", x)
        _, dynamic = make_list("TopKV2", make("Minimum", _hits(op), 1), rank)
        permutations = dynamic, make_list("TopKV2", -dynamic, rank)[1]
    # A static count needs all sizes; the numbers of elements follow from x and y at run time.
    others_size = make("Size", y)
    count_size = make("FloorDiv", make("Size", x), make("Maximum", others_size, 1))
    return (*permutations, make("Pack", [count_size, others_size], axis=0))


@gradient("EuclideanNorm")
def _euclidean_norm_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    norm, grad = _with_kept_dims(op, op.outputs[0], grad)
    # ‖x‖' = x / ‖x‖.
    return [op.inputs[0] * (grad / norm), None]


@gradient("Cumsum")
def _cumsum_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    exclusive, reverse = op.get_attr("exclusive"), op.get_attr("reverse")
    # Each element is part of all later sums, so its gradient is the sum of the later gradients: the reverse scan.
    return [make("Cumsum", grad, op.inputs[1], exclusive=exclusive, reverse=not reverse), None]


@gradient("Cumprod")
def _cumprod_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    """Return the gradient of a cumulative product.

    A factor that is zero gets no gradient, as in TensorFlow: DivNoNan returns 0 for it.
    """
    x, axis = op.inputs
    exclusive, reverse = op.get_attr("exclusive"), op.get_attr("reverse")
    # Each later product y contributes y dy / x.
    flowing = make("Cumsum", _conjugate(op.outputs[0]) * grad, axis, exclusive=exclusive, reverse=not reverse)
    return [make("DivNoNan", flowing, _conjugate(x)), None]


def _conjugate(x: Tensor) -> Tensor:
    if not x.dtype.is_complex:
        return x
    return make("Conj", x)


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _either(name: str, value: object, old_name: str, old_value: object) -> Any:
    """Return the value of an argument that has an old name as well.

    Raise InvalidArgumentError if both names are used.
    """
    if old_value is None:
        return value
    if value is not None:
        raise InvalidArgumentError(
            f"both {name!r} and {old_name!r} are given", expected=f"only {name!r}", actual=old_value
        )
    return old_value


def all_axes(x: Tensor) -> Tensor:
    """Return the numbers of the axes as an int32 vector."""
    if x.dims is not None:
        return constant(np.arange(len(x.dims), dtype=np.int32))
    return make("Range", 0, make("Rank", x), 1)


def reduce_by(
    op_type: str, input_tensor: TensorLike, axis: TensorLike | None, keepdims: bool | None, name: str | None
) -> Tensor:
    """Create a reduction node; without `axis`, over all axes."""
    # Only the bool ops have a fixed dtype, which then helps to convert an empty list.
    x = convert_to_tensor(input_tensor, dtype_hint=OPS.get(op_type).inputs[0].dtype)
    with x.graph.as_default():
        axes = all_axes(x) if axis is None else axis
        result = make(op_type, x, axes, keep_dims=bool(keepdims), name=name)
    if axis is None and not keepdims:
        # Known even if the rank of the input is not.
        result.set_shape(())
    return result


def _reduce(
    op_type: str,
    x: TensorLike,
    axis: TensorLike | None,
    keepdims: bool | None,
    name: str | None,
    indices: TensorLike | None,
    keep_dims: bool | None,
) -> Tensor:
    axis = _either("axis", axis, "reduction_indices", indices)
    return reduce_by(op_type, x, axis, _either("keepdims", keepdims, "keep_dims", keep_dims), name)


def reduce_sum(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the sum of the elements along `axis`, in the input's dtype.

    Args:
        input_tensor: The elements.
        axis: An int, a list of ints, or None for all axes.
        keepdims: Whether to keep each reduced axis with size 1.
        name: Name of the node.
        reduction_indices: Old name of `axis`.
        keep_dims: Old name of `keepdims`.

    Raises:
        InvalidArgumentError: an axis is out of range or given twice.
    """
    return _reduce("Sum", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_mean(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the mean of the elements along `axis`; integers truncate, and no elements yield NaN. See `reduce_sum`."""
    return _reduce("Mean", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_prod(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the product of the elements along `axis`; 1 if there are no elements. See `reduce_sum`."""
    return _reduce("Prod", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_max(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the largest element along `axis`.

    Without elements, -inf or the smallest integer. See `reduce_sum`.
    """
    return _reduce("Max", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_min(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the smallest element along `axis`.

    Without elements, inf or the largest integer. See `reduce_sum`.
    """
    return _reduce("Min", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_all(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return whether all bools along `axis` are true. See `reduce_sum`."""
    return _reduce("All", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_any(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return whether any bool along `axis` is true. See `reduce_sum`."""
    return _reduce("Any", input_tensor, axis, keepdims, name, reduction_indices, keep_dims)


def reduce_euclidean_norm(
    input_tensor: TensorLike, axis: TensorLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the square root of the sum of squares along `axis`. See `reduce_sum`."""
    return reduce_by("EuclideanNorm", input_tensor, axis, keepdims, name)


def reduce_logsumexp(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return log(sum(exp(x))) along `axis`, without overflow. See `reduce_sum`."""
    axis = _either("axis", axis, "reduction_indices", reduction_indices)
    keep = bool(_either("keepdims", keepdims, "keep_dims", keep_dims))
    x = convert_to_tensor(input_tensor)
    with name_scope(name, "ReduceLogSumExp", [x]):
        # The greatest element is subtracted before exp, so exp cannot overflow. An infinite one is not subtracted, as
        # inf - inf is NaN. The shift cancels in the result, so no gradient needs to flow through it.
        top = reduce_by("Max", x, axis, True, None)
        finite = make("SelectV2", make("IsFinite", top), top, constant(0, dtype=x.dtype))
        shift = make("StopGradient", finite)
        result = make("Log", reduce_by("Sum", make("Exp", x - shift), axis, keep, None))
        if not keep:
            shift = make("Reshape", shift, make("Shape", result))
        total: Tensor = result + shift
    return total


def reduce_variance(
    input_tensor: TensorLike, axis: TensorLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the mean squared distance from the mean along `axis`, divided by n, not n - 1. See `reduce_sum`.

    Raises:
        DTypeError: the input has an integer dtype.
    """
    x = convert_to_tensor(input_tensor)
    if x.dtype.is_integer:
        raise DTypeError(
            "the variance of integers is not an integer", expected="a floating or complex dtype", actual=x.dtype
        )
    with name_scope(name, "reduce_variance", [x]):
        distance = x - reduce_by("Mean", x, axis, True, None)
        if x.dtype.is_complex:
            distance = make("ComplexAbs", distance, Tout=x.dtype.real_dtype)
        return reduce_by("Mean", make("Square", distance), axis, keepdims, None)


def reduce_std(
    input_tensor: TensorLike, axis: TensorLike | None = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the square root of `reduce_variance`."""
    x = convert_to_tensor(input_tensor)
    with name_scope(name, "reduce_std", [x]):
        result = make("Sqrt", reduce_variance(x, axis, keepdims))
    return result


def count_nonzero(
    input_tensor: TensorLike | None = None,
    axis: TensorLike | None = None,
    keepdims: bool | None = None,
    dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
    reduction_indices: TensorLike | None = None,
    keep_dims: bool | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Return the number of elements along `axis` that are not zero (not empty, for strings), as `dtype`.

    See `reduce_sum`.
    """
    x = convert_to_tensor(_either("input_tensor", input_tensor, "input", input))
    axis = _either("axis", axis, "reduction_indices", reduction_indices)
    keep = _either("keepdims", keepdims, "keep_dims", keep_dims)
    nothing: TensorLike = "" if x.dtype is dtypes.string else x.dtype.np_dtype.type(0)
    with name_scope(name, "count_nonzero", [x]):
        present = make("NotEqual", x, constant(nothing, dtype=x.dtype))
        return reduce_by("Sum", make("Cast", present, DstT=as_dtype(dtype)), axis, keep, None)


def cumsum(
    x: TensorLike, axis: TensorLike = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Return the sums of the elements up to each one along `axis`.

    Args:
        x: The elements.
        axis: The axis, an int.
        exclusive: Whether to leave the element itself out: the first sum is 0.
        reverse: Whether to sum from the end.
        name: Name of the node.

    Raises:
        InvalidArgumentError: there is no such axis.
    """
    return make("Cumsum", x, axis, exclusive=exclusive, reverse=reverse, name=name)


def cumprod(
    x: TensorLike, axis: TensorLike = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Return the products of the elements up to each one along `axis`.

    With `exclusive`, the first product is 1. See `cumsum`.
    """
    return make("Cumprod", x, axis, exclusive=exclusive, reverse=reverse, name=name)
