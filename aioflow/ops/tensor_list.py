"""Tensor lists: stacks of tensors as plain values, which loops carry to their gradients.

A list never changes. Pushing makes a new one that shares what was there, and where nobody holds the old top any more it
is gone: the values that a loop keeps for its gradient are freed as they are consumed. The gradient of pushing is
popping and the other way round, so that gradients of gradients need nothing more.
"""

from __future__ import annotations

from typing import Any

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op, gradient, not_differentiable
from aioflow.graph.shapes import Dims
from aioflow.ops.apply import apply_op, constant
from aioflow.ops.core import scalar

__all__: list[str] = []

_LIST = "input_handle: variant"
_ELEMENT = "element_dtype: type"


def _popped(ctx: ShapeContext) -> list[Dims]:
    return [(), None]


def _joined(ctx: ShapeContext) -> list[Dims]:
    return [None, (None,)]


define_op(
    "EmptyTensorList",
    "element_shape: shape_type, max_num_elements: int32",
    "handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
)
define_op("TensorListPushBack", f"{_LIST}, tensor: element_dtype", "output_handle: variant", [_ELEMENT], shape=scalar)
define_op(
    "TensorListPopBack",
    f"{_LIST}, element_shape: int32",
    "output_handle: variant, tensor: element_dtype",
    [_ELEMENT],
    shape=_popped,
)
define_op("TensorListLength", _LIST, "length: int32", shape=scalar)
define_op(
    "TensorListConcatV2",
    f"{_LIST}, element_shape: shape_type, leading_dims: int64",
    "tensor: element_dtype, lengths: int64",
    [_ELEMENT, "shape_type: {index}"],
    shape=_joined,
)
define_op(
    "TensorListSplit",
    "tensor: element_dtype, element_shape: shape_type, lengths: int64",
    "output_handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
)
define_op("_Hole", "", "output: dtype", ["dtype: type"])

not_differentiable("EmptyTensorList", "TensorListLength", "_Hole")


def empty_list(dtype: DType) -> Tensor:
    """A list of no tensors."""
    made: Tensor = apply_op("EmptyTensorList", _any_shape(), constant(-1), element_dtype=dtype)
    return made


def push(items: Tensor, tensor: Tensor) -> Tensor:
    """The list with one tensor more."""
    made: Tensor = apply_op("TensorListPushBack", items, tensor)
    return made


def pop(items: Tensor, dtype: DType, dims: Dims = None) -> tuple[Tensor, Tensor]:
    """The list without the tensor that was pushed last, and that tensor."""
    rest, last = apply_op("TensorListPopBack", items, _any_shape(), element_dtype=dtype)
    last.set_shape(dims)
    return rest, last


def joined(items: Tensor, dtype: DType, dims: Dims = None) -> Tensor:
    """All tensors of the list, joined along their first axis. They have the static shape `dims`."""
    rest = None if dims is None else dims[1:]
    known = rest is not None and None not in rest
    shape = constant([-1, *rest]) if known and rest is not None else _any_shape()
    tensor: Tensor = apply_op("TensorListConcatV2", items, shape, constant([], dtypes.int64), element_dtype=dtype)[0]
    if rest is not None:
        tensor.set_shape((None, *rest))
    return tensor


def hole(dtype: DType) -> Tensor:
    """What is pushed for a tensor of a branch that was not taken; nobody ever reads it."""
    made: Tensor = apply_op("_Hole", dtype=dtype)
    return made


def _any_shape() -> Tensor:
    return constant(-1, name="element_shape")


def _or_zeros(grad: Any, like: Tensor) -> Any:
    return apply_op("ZerosLike", like) if grad is None else grad


@gradient("TensorListPushBack")
def _push_grad(op: Operation, grad: Tensor) -> list[Any]:
    _, tensor = op.inputs
    return list(pop(grad, tensor.dtype, tensor.dims))


@gradient("TensorListPopBack")
def _pop_grad(op: Operation, rest_grad: Any, grad: Any) -> list[Any]:
    rest, last = op.outputs
    return [push(_or_zeros(rest_grad, rest), _or_zeros(grad, last)), None]


@gradient("TensorListConcatV2")
def _concat_grad(op: Operation, grad: Tensor, lengths_grad: Any) -> list[Any]:
    return [apply_op("TensorListSplit", grad, _any_shape(), op.outputs[1]), None, None]


@gradient("TensorListSplit")
def _split_grad(op: Operation, grad: Tensor) -> list[Any]:
    return [joined(grad, op.inputs[0].dtype), None, None]
