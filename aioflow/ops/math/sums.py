"""Sums of many tensors, scaling and clipping, also of sparse gradients (`IndexedSlices`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from aioflow.arguments import check_list
from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, ShapeLike, TensorShape, merge_dims
from aioflow.graph.static_value import known_by
from aioflow.graph.tensor_like import DenseLike
from aioflow.graph.traits import elementwise
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.scoping import name_scope

__all__ = ["accumulate_n", "add_n", "clip_by_value", "scalar_mul"]


def _merged(ctx: ShapeContext) -> Dims:
    dims: Dims = None
    for tensor in ctx.tensors:
        dims = merge_dims(dims, tensor.dims)
    return dims


define_op(
    "AddN",
    "inputs: N*T",
    "sum: T",
    ["N: int >= 1", "T: {numbertype, variant}"],
    shape=_merged,
    commutative=True,
    value=known_by(lambda *values: sum(values[1:], values[0])),
    traits=elementwise(),
)


@gradient("AddN", takes_slices=True)
def _add_n_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    return [grad] * len(op.inputs)


@overload
def scalar_mul(scalar: TensorLike, x: DenseLike, name: str | None = None) -> Tensor: ...


@overload
def scalar_mul(scalar: TensorLike, x: IndexedSlices, name: str | None = None) -> IndexedSlices: ...


def scalar_mul(scalar: TensorLike, x: TensorLike, name: str | None = None) -> Tensor | IndexedSlices:
    """Return `scalar` times x, which may be an IndexedSlices.

    Raises:
        InvalidArgumentError: `scalar` is not a scalar.
    """
    if isinstance(x, IndexedSlices):
        return IndexedSlices(scalar_mul(scalar, x.values, name), x.indices, x.dense_shape)
    tensor = convert_to_tensor(x)
    factor = convert_to_tensor(scalar, tensor.dtype, name="scalar")
    if factor.dims != ():
        raise InvalidArgumentError("scalar_mul needs a scalar", expected="shape ()", actual=TensorShape(factor.dims))
    return make("Mul", factor, tensor, name=name)


@overload
def clip_by_value(
    t: DenseLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor: ...


@overload
def clip_by_value(
    t: IndexedSlices, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> IndexedSlices: ...


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor | IndexedSlices:
    """Limit t to [clip_value_min, clip_value_max]; t may be an IndexedSlices.

    Raises:
        InvalidArgumentError: the limits do not broadcast to the shape of t.
    """
    if isinstance(t, IndexedSlices):
        return IndexedSlices(clip_by_value(t.values, clip_value_min, clip_value_max, name), t.indices, t.dense_shape)
    tensor = convert_to_tensor(t)
    with name_scope(name, "clip_by_value", [tensor]) as scope:
        # The maximum comes last, so the lower limit wins if the limits cross.
        low = make("Minimum", tensor, clip_value_max)
        # Fail if a limit broadcasts the result to a larger shape than t.
        merge_dims(tensor.dims, low.dims)
        result = make("Maximum", low, clip_value_min, name=scope or None)
        merge_dims(tensor.dims, result.dims)
    return result


def add_n(inputs: Sequence[TensorLike], name: str | None = None) -> Tensor:
    """Return the sum of tensors of equal shape and dtype, without broadcasting. A single tensor is returned as it is.

    Raises:
        InvalidArgumentError: the list is empty, or the shapes differ.
    """
    check_list(inputs, "the tensors to add")
    if not inputs:
        raise InvalidArgumentError("add_n needs tensors", expected="a list of at least one tensor", actual=repr(inputs))
    if len(inputs) == 1:
        tensor = convert_to_tensor(inputs[0])
        return make("Identity", tensor, name=name) if name else tensor
    tensors: list[TensorLike] = [convert_to_tensor(i) if isinstance(i, IndexedSlices) else i for i in inputs]
    return make("AddN", tensors, name=name)


def accumulate_n(
    inputs: Sequence[TensorLike],
    shape: ShapeLike | None = None,
    tensor_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Like `add_n`, with the shape and dtype that the inputs must have.

    Raises:
        InvalidArgumentError: there are no inputs, or an input does not fit `shape`.
        DTypeError: an input does not have `tensor_dtype`.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise InvalidArgumentError("accumulate_n needs tensors", expected="a non-empty list", actual=repr(inputs))
    tensors = [convert_to_tensor(i, tensor_dtype) for i in inputs]
    dims = TensorShape(shape).raw
    for tensor in tensors:
        dims = merge_dims(dims, tensor.dims)
    return add_n(tensors, name)
