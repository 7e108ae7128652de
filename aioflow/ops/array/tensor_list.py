"""Tensor lists: tensors in order, as plain values. Loops use them to carry values to their gradients.

A list is immutable. A push returns a new list that shares the elements of the old one. When the old top is no longer
referenced it is freed, so the values that a loop keeps for its gradient are freed as the gradient consumes them. The
gradient of a push is a pop and vice versa, so higher-order gradients need no other ops. Graphs of TensorFlow 2 also use
lists by index, instead of tensor arrays.
"""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import bookkeeping, instant, movement, opaque
from aioflow.ops import row_lists, rows
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.core import scalar

_LIST = "input_handle: variant"
_ELEMENT = "element_dtype: type"


def _element(ctx: ShapeContext) -> Dims:
    """Return the static shape of an element; the scalar -1 stands for an unknown shape."""
    return None if ctx.dims("element_shape") == () else ctx.partial_shape("element_shape")


def _popped(ctx: ShapeContext) -> list[Dims]:
    return [(), _element(ctx)]


def _stacked(ctx: ShapeContext) -> Dims:
    dims, count = _element(ctx), ctx.attrs["num_elements"]
    return None if dims is None else (None if count < 0 else count, *dims)


def _joined(ctx: ShapeContext) -> list[Dims]:
    dims = _element(ctx)
    return [None if dims is None else (None, *dims[1:]), (None,)]


define_op(
    "EmptyTensorList",
    "element_shape: shape_type, max_num_elements: int32",
    "handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
    rows=row_lists.new_list,
    traits=bookkeeping(),
)
define_op(
    "TensorListPushBack",
    f"{_LIST}, tensor: element_dtype",
    "output_handle: variant",
    [_ELEMENT],
    shape=scalar,
    rows=row_lists.put_in_list(0, 1),
    traits=bookkeeping(),
)
define_op(
    "TensorListPopBack",
    f"{_LIST}, element_shape: int32",
    "output_handle: variant, tensor: element_dtype",
    [_ELEMENT],
    shape=_popped,
    rows=row_lists.element_at(0),
    traits=bookkeeping(),
)
define_op("TensorListLength", _LIST, "length: int32", shape=scalar, rows=rows.fixed, traits=bookkeeping())
define_op(
    "TensorListConcatV2",
    f"{_LIST}, element_shape: shape_type, leading_dims: int64",
    "tensor: element_dtype, lengths: int64",
    [_ELEMENT, "shape_type: {index}"],
    shape=_joined,
    traits=opaque(),
)
define_op(
    "TensorListSplit",
    "tensor: element_dtype, element_shape: shape_type, lengths: int64",
    "output_handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
    traits=opaque(),
)
define_op(
    "TensorListReserve",
    "element_shape: shape_type, num_elements: int32",
    "handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
    rows=row_lists.new_list,
    traits=bookkeeping(),
)
define_op("TensorListResize", f"{_LIST}, size: int32", "output_handle: variant", shape=scalar, traits=bookkeeping())
define_op(
    "TensorListGetItem",
    f"{_LIST}, index: int32, element_shape: Tshape",
    "item: element_dtype",
    [_ELEMENT, "Tshape: {index} = int32"],
    shape=_element,
    rows=row_lists.element_at(0),
    traits=bookkeeping(),
)
define_op(
    "TensorListSetItem",
    f"{_LIST}, index: int32, item: element_dtype",
    "output_handle: variant",
    [_ELEMENT, "resize_if_index_out_of_bounds: bool = False"],
    shape=scalar,
    rows=row_lists.put_in_list(0, 2),
    traits=bookkeeping(),
)
define_op(
    "TensorListStack",
    f"{_LIST}, element_shape: int32",
    "tensor: element_dtype",
    [_ELEMENT, "num_elements: int = -1"],
    shape=_stacked,
    rows=row_lists.stacked_list(0),
    traits=movement(),
)
define_op(
    "TensorListFromTensor",
    "tensor: element_dtype, element_shape: shape_type",
    "output_handle: variant",
    [_ELEMENT, "shape_type: {index}"],
    shape=scalar,
    rows=row_lists.list_of_rows(0),
    traits=opaque(),
)
# Insertion and removal in the middle. TensorFlow has no such ops; ONNX has them for its sequences.
define_op(
    "_TensorListInsert",
    f"{_LIST}, index: int32, item: element_dtype",
    "output_handle: variant",
    [_ELEMENT],
    shape=scalar,
    traits=bookkeeping(),
)
define_op(
    "_TensorListErase",
    f"{_LIST}, index: int32",
    "output_handle: variant",
    [_ELEMENT],
    shape=scalar,
    traits=bookkeeping(),
)
define_op("_Hole", "", "output: dtype", ["dtype: type"], traits=instant())

not_differentiable("EmptyTensorList", "TensorListReserve", "TensorListLength", "_Hole")


def empty_list(dtype: DType) -> Tensor:
    """Return an empty list."""
    return make("EmptyTensorList", _any_shape(), constant(-1), element_dtype=dtype)


def push(items: Tensor, tensor: Tensor) -> Tensor:
    """Return the list with one more tensor."""
    return make("TensorListPushBack", items, tensor)


def pop(items: Tensor, dtype: DType, dims: Dims = None) -> tuple[Tensor, Tensor]:
    """Return the list without the tensor that was pushed last, and that tensor."""
    rest, last = make_list("TensorListPopBack", items, _any_shape(), element_dtype=dtype)
    last.set_shape(dims)
    return rest, last


def joined(items: Tensor, dtype: DType, dims: Dims = None) -> Tensor:
    """Return all tensors of the list, joined along their first axis. They have the static shape `dims`."""
    rest = None if dims is None else dims[1:]
    sizes = [] if rest is None else [d for d in rest if d is not None]
    # The first sizes of the joined tensors may differ.
    shape = constant([-1, *sizes]) if rest is not None and len(sizes) == len(rest) else _any_shape()
    tensor = make_list("TensorListConcatV2", items, shape, constant([], dtypes.int64), element_dtype=dtype)[0]
    if rest is not None:
        tensor.set_shape((None, *rest))
    return tensor


def hole(dtype: DType) -> Tensor:
    """Return a placeholder to push for a tensor of a branch that was not taken; its value is never read."""
    return make("_Hole", dtype=dtype)


def _any_shape() -> Tensor:
    return constant(-1, name="element_shape")


def _or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    return make("ZerosLike", like) if grad is None else grad


@gradient("TensorListPushBack")
def _push_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    _, tensor = op.inputs
    # The gradient of a list is the list of its gradients, so a pop yields that of the last item and that of the rest.
    return list(pop(grad, tensor.dtype, tensor.dims))


@gradient("TensorListPopBack")
def _pop_grad(op: Operation, rest_grad: Tensor | None, grad: Tensor | None) -> list[Tensor | None]:
    rest, last = op.outputs
    return [push(_or_zeros(rest_grad, rest), _or_zeros(grad, last)), None]


@gradient("TensorListConcatV2")
def _concat_grad(op: Operation, grad: Tensor, lengths_grad: Tensor | None) -> list[Tensor | None]:
    return [make("TensorListSplit", grad, _any_shape(), op.outputs[1]), None, None]


@gradient("TensorListSplit")
def _split_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [joined(grad, op.inputs[0].dtype), None, None]


@gradient("TensorListGetItem")
def _get_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    items, index, _ = op.inputs
    # The gradient is a list of the same length in which only this item is set.
    empty = make("TensorListReserve", _any_shape(), make("TensorListLength", items), element_dtype=grad.dtype)
    return [make("TensorListSetItem", empty, index, grad), None, None]


@gradient("TensorListSetItem")
def _set_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    _, index, item = op.inputs
    by_item = make("TensorListGetItem", grad, index, make("Shape", item), element_dtype=item.dtype)
    # The old item does not reach the result.
    rest = make("TensorListSetItem", grad, index, make("ZerosLike", item))
    # The op may have enlarged the list; the gradient must have the length of the input.
    if op.attrs["resize_if_index_out_of_bounds"]:
        rest = make("TensorListResize", rest, make("TensorListLength", op.inputs[0]))
    return [rest, None, by_item]


@gradient("_TensorListInsert")
def _insert_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    _, index, item = op.inputs
    by_item = make("TensorListGetItem", grad, index, make("Shape", item), element_dtype=item.dtype)
    # Without the inserted item, the gradient has the length of the input again.
    return [make("_TensorListErase", grad, index, element_dtype=item.dtype), None, by_item]


@gradient("_TensorListErase")
def _erase_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    items, index = op.inputs
    # The erased item does not reach the result.
    erased = make("TensorListGetItem", items, index, _any_shape(), element_dtype=op.attrs["element_dtype"])
    return [make("_TensorListInsert", grad, index, make("ZerosLike", erased)), None]


@gradient("TensorListResize")
def _resize_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("TensorListResize", grad, make("TensorListLength", op.inputs[0])), None]


@gradient("TensorListStack")
def _stack_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [make("TensorListFromTensor", grad, _any_shape()), None]


@gradient("TensorListFromTensor")
def _from_tensor_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    tensor, _ = op.inputs
    shape = make("StridedSlice", make("Shape", tensor), [1], [0], [1], end_mask=1)
    return [make("TensorListStack", grad, shape, element_dtype=tensor.dtype), None]
