"""Ops that select elements by a condition: Where, Select, boolean masks."""

from __future__ import annotations

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, broadcast_dims, check_axis, format_dims, is_compatible, merge_dims, num_elements
from aioflow.graph.static_value import known_by
from aioflow.graph.traits import ANY, elementwise, movement
from aioflow.memory.values import Array
from aioflow.ops import row_values, rows
from aioflow.ops.apply import TensorLike, convert_n_to_tensor, convert_to_tensor, make
from aioflow.ops.array.static_shapes import int_constant, reduce_to, zeros_of

__all__ = ["boolean_mask", "where", "where_v2"]


def _where_shape(ctx: ShapeContext) -> Dims:
    # The number of true elements depends on their values.
    return (None, ctx.rank("input"))


define_op(
    "Where",
    "input: T",
    "index: int64",
    ["T: {numbertype, bool} = bool"],
    shape=_where_shape,
    value=known_by(np.argwhere),
    rows=rows.by_values,
    traits=movement(),
)
not_differentiable("Where")


def _select_shape(ctx: ShapeContext) -> Dims:
    data, condition = merge_dims(ctx.dims("t"), ctx.dims("e")), ctx.dims("condition")
    if data is None or condition is None or not condition:
        return data
    # A vector selects whole rows.
    if len(condition) == 1 and len(data) > 1:
        merge_dims(condition, data[:1])
        return data
    return merge_dims(data, condition)


def _select_value(condition: Array, t: Array, e: Array) -> Array:
    rows = condition.ndim == 1 and t.ndim > 1  # a vector selects rows
    return np.where(condition.reshape((-1,) + (1,) * (t.ndim - 1)) if rows else condition, t, e)


define_op(
    "Select",
    "condition: bool, t: T, e: T",
    "output: T",
    ["T: type"],
    shape=_select_shape,
    value=known_by(_select_value),
    rows=rows.chosen,
    traits=elementwise(fuses=ANY, broadcasts=False),
)
define_op(
    "SelectV2",
    "condition: bool, t: T, e: T",
    "output: T",
    ["T: type"],
    shape=lambda ctx: broadcast_dims([t.dims for t in ctx.tensors]),
    value=known_by(np.where),
    rows=row_values.selected,
    traits=elementwise(fuses=ANY),
)


@gradient("Select")
def _select_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    condition, zero = op.inputs[0], zeros_of(op.inputs[1])
    return [None, make("Select", condition, grad, zero), make("Select", condition, zero, grad)]


@gradient("SelectV2")
def _select_v2_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    condition, first, second = op.inputs
    # A scalar is enough, since SelectV2 broadcasts.
    zero = convert_to_tensor(np.zeros((), grad.dtype.np_dtype))
    return [
        None,
        reduce_to(make("SelectV2", condition, grad, zero), first),
        reduce_to(make("SelectV2", condition, zero, grad), second),
    ]


def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """Return the elements of `x` where the condition holds, else of `y`; or the indices where a lone condition holds.

    `x` and `y` have the same shape. The condition has it too, or is a scalar, or a vector that selects rows.
    The indices are an int64 matrix with one row per true (nonzero) element, in row-major order.

    Raises:
        InvalidArgumentError: only one of `x` and `y` is given, or shapes do not fit.
    """
    return _choose("Select", condition, x, y, name)


def where_v2(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """Select like `where`, but broadcast the three arguments against one another."""
    return _choose("SelectV2", condition, x, y, name)


def _choose(
    op_type: str, condition: TensorLike, x: TensorLike | None, y: TensorLike | None, name: str | None
) -> Tensor:
    if (x is None) != (y is None):
        raise InvalidArgumentError("x and y must both be given, or neither", expected="x and y", actual="one of them")
    if x is None or y is None:
        return make("Where", condition, name=name)
    return make(op_type, condition, x, y, name=name)


def boolean_mask(tensor: TensorLike, mask: TensorLike, name: str = "boolean_mask", axis: int | None = None) -> Tensor:
    """Return the parts of `tensor` where `mask` is true; the dimensions of the mask, from `axis` on, become one.

    Raises:
        InvalidArgumentError: the mask is a scalar, of unknown rank, or does not fit the tensor.
    """
    data, chosen = convert_n_to_tensor([tensor, mask])
    if chosen.dims is None or not chosen.dims:
        raise InvalidArgumentError(
            "a mask must have a known rank of at least 1", expected="rank >= 1", actual=repr(chosen)
        )
    start, order = 0 if axis is None else axis, len(chosen.dims)
    if data.dims is not None:
        start = check_axis(start, len(data.dims))
        if not is_compatible(data.dims[start : start + order], chosen.dims):
            raise InvalidArgumentError(
                "the mask does not fit the tensor", expected=format_dims(data.dims), actual=format_dims(chosen.dims)
            )
    flat = data if order == 1 else _merge_dimensions(data, start, order)
    # Where returns one column per dimension of the flat mask, which is one.
    rows = make("Squeeze", make("Where", make("Reshape", chosen, int_constant([-1]))), squeeze_dims=[1])
    return make("GatherV2", flat, rows, start, name=name)


def _merge_dimensions(data: Tensor, start: int, order: int) -> Tensor:
    if data.dims is not None:
        merged = num_elements(data.dims[start : start + order])
        sizes = [*data.dims[:start], merged, *data.dims[start + order :]]
        # Reshape cannot infer a size (-1) from a tensor without elements.
        if sizes.count(None) <= 1 and 0 not in sizes:
            return make("Reshape", data, int_constant([-1 if s is None else s for s in sizes]))
    shape = make("Shape", data)
    head = make("StridedSlice", shape, [0], [start], [1])
    middle = make("Prod", make("StridedSlice", shape, [start], [start + order], [1]), int_constant([0]), keep_dims=True)
    tail = make("StridedSlice", shape, [start + order], [0], [1], end_mask=1)
    return make("Reshape", data, make("ConcatV2", [head, middle, tail], 0))
