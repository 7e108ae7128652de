"""Arrays of tensors (`TensorArray`) and tensor lists. In the model, each is the stack of its tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aioflow.graph.dtypes import DType
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue, TensorArrayRows


def _empty(node: ExportedNode, size: ModelValue, dtype: DType) -> ModelValue:
    """Return an array without rows."""
    return ModelValue("", dtype, None, rows=TensorArrayRows(node.vector(size)))


def _stack(node: ExportedNode, flow: ModelValue) -> ModelValue:
    """Return the stack of all rows."""
    if flow.rows is None or not flow.name or flow.rows.is_next:
        node.refuse("an array of tensors that is read before it is written")
    return replace(flow, rows=None)


def _is_all(node: ExportedNode, indices: ModelValue) -> bool:
    """Return whether the indices are 0, 1, 2…, as many as there are rows."""
    known = indices.constant
    if known is not None:
        return bool(np.array_equal(known, np.arange(known.size)))
    maker = node.scope.parts.made.get(indices.name)
    if maker is None or maker.op != "Range":
        return False
    constants = [node.scope.parts.constants.get(name) for name in (maker.inputs[0], maker.inputs[2])]
    return all(c is not None and c.size == 1 for c in constants) and [int(c) for c in constants if c is not None] == [
        0,
        1,
    ]


def _written(node: ExportedNode, flow: ModelValue, index: ModelValue, value: ModelValue) -> ModelValue:
    """Return the array with the row at `index` replaced."""
    if flow.rows is None:
        node.refuse("an array of tensors that is not known")
    # In the loop that fills an array, the row is the result of the iteration, and the loop returns their stack.
    if not flow.name and flow.rows.is_awaited:
        return replace(value, rows=TensorArrayRows(flow.rows.size, is_next=True))
    if flow.name:
        stack = _stack(node, flow)
    else:
        blank = node.joined([flow.rows.size, node.make("Shape", value)])
        # In the model, rows that are not written are zeros.
        stack = node.make("Expand", node.const(0, value.dtype), blank)
    # ScatterND takes index vectors, here one of one number, and one row of updates.
    place = node.reshaped(node.int64(index), [1, 1])
    made = node.make("ScatterND", stack, place, node.unsqueezed(value, [0]))
    return replace(made, dims=None if value.dims is None else (None, *value.dims), rows=flow.rows)


@exporter("TensorArrayV3")
def tensor_array(node: ExportedNode, size: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export a new array; it represents both the handle and the flow."""
    made = _empty(node, size, node.attr("dtype"))
    return made, made


@exporter("TensorArrayScatterV3")
def scatter(
    node: ExportedNode, handle: ModelValue, indices: ModelValue, value: ModelValue, flow: ModelValue
) -> ModelValue:
    """Export a write of all rows at once."""
    if flow.rows is None or flow.rows.is_next or flow.rows.is_awaited:
        node.refuse("an array of tensors that a loop writes in parts")
    if not flow.name and _is_all(node, indices):
        # All rows in order: the written value is the stack.
        return replace(value, rows=flow.rows)
    target = flow
    if not flow.name:
        shape = node.joined([flow.rows.size, node.make("Shape", value, start=1)])
        target = node.make("Expand", node.const(0, value.dtype), shape)
    places = node.make("Unsqueeze", node.int64(indices), node.const([1]))
    made = node.make("ScatterND", target, places, value)
    return replace(made, dims=None if value.dims is None else (None, *value.dims[1:]), rows=flow.rows)


@exporter("TensorArrayWriteV3")
def write(node: ExportedNode, handle: ModelValue, index: ModelValue, value: ModelValue, flow: ModelValue) -> ModelValue:
    """Export a write of one row; into an empty array in a loop, it is the row that the iteration adds."""
    return _written(node, flow, index, value)


@exporter("TensorArrayReadV3")
def read(node: ExportedNode, handle: ModelValue, index: ModelValue, flow: ModelValue) -> ModelValue:
    """Export a read of one row."""
    return node.make("Gather", _stack(node, flow), index, axis=0)


@exporter("TensorArrayGatherV3")
def gather(node: ExportedNode, handle: ModelValue, indices: ModelValue, flow: ModelValue) -> ModelValue:
    """Export a read of some or all rows."""
    stack = _stack(node, flow)
    return stack if _is_all(node, indices) else node.make("Gather", stack, indices, axis=0)


@exporter("TensorArrayConcatV3")
def concat(node: ExportedNode, handle: ModelValue, flow: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Export the concatenation of the rows, and their lengths, which are equal because the rows form a stack."""
    stack = _stack(node, flow)
    if stack.dims is None or len(stack.dims) < 2 or stack.dims[1] is None:
        node.refuse("rows of lengths that are not known")
    count = node.make("Shape", stack, start=0, end=1)
    whole = node.make("Mul", count, node.const([stack.dims[1]]))
    lengths = node.make("Expand", node.const(stack.dims[1]), count)
    return node.reshaped(stack, node.joined([whole, node.make("Shape", stack, start=2)])), lengths


@exporter("TensorArraySizeV3")
def size_of(node: ExportedNode, handle: ModelValue, flow: ModelValue) -> ModelValue:
    """Export the number of rows."""
    return _length(node, flow)


def _length(node: ExportedNode, flow: ModelValue) -> ModelValue:
    if flow.rows is None:
        node.refuse("an array of tensors that is not known")
    return node.squeezed(flow.rows.size, [0])


@exporter("TensorListReserve")
def reserve(node: ExportedNode, element_shape: ModelValue, count: ModelValue) -> ModelValue:
    """Export a new list with `count` elements."""
    return _empty(node, count, node.attr("element_dtype"))


@exporter("TensorListFromTensor")
def from_tensor(node: ExportedNode, tensor: ModelValue, element_shape: ModelValue) -> ModelValue:
    """Export the list of the rows of a tensor."""
    return replace(tensor, rows=TensorArrayRows(node.size_of(tensor, 0)))


@exporter("TensorListSetItem")
def set_item(node: ExportedNode, items: ModelValue, index: ModelValue, item: ModelValue) -> ModelValue:
    """Export the list with the item at `index` replaced."""
    return _written(node, items, index, item)


@exporter("EmptyTensorList")
def empty_list(node: ExportedNode, element_shape: ModelValue, limit: ModelValue) -> ModelValue:
    """Export a new empty list."""
    return _empty(node, node.const(0), node.attr("element_dtype"))


@exporter("TensorListPushBack")
def push_back(node: ExportedNode, items: ModelValue, item: ModelValue) -> ModelValue:
    """Export the list with an item appended."""
    if items.rows is None or items.rows.is_next:
        node.refuse("a list of tensors that is not known")
    if items.rows.is_awaited and not items.name:
        return replace(item, rows=TensorArrayRows(items.rows.size, is_next=True))
    row = node.unsqueezed(item, [0])
    made = node.joined([row] if not items.name else [_stack(node, items), row])
    count = node.make("Shape", made, start=0, end=1)
    return replace(made, dims=None if item.dims is None else (None, *item.dims), rows=TensorArrayRows(count))


@exporter("TensorListGetItem")
def get_item(node: ExportedNode, items: ModelValue, index: ModelValue, element_shape: ModelValue) -> ModelValue:
    """Export a read of one item."""
    return node.make("Gather", _stack(node, items), index, axis=0)


@exporter("TensorListStack")
def stack(node: ExportedNode, items: ModelValue, element_shape: ModelValue) -> ModelValue:
    """Export the items as one tensor."""
    return _stack(node, items)


@exporter("TensorListLength")
def length(node: ExportedNode, items: ModelValue) -> ModelValue:
    """Export the number of items."""
    return _length(node, items)
