"""Ops on variables: a handle identifies the resource; reads, assignments and updates are separate nodes."""

from __future__ import annotations

from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.costs import FREE
from aioflow.graph.dtypes import DType
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims, num_elements
from aioflow.graph.traits import WRITING, Effect, Memory, bookkeeping, handle, state_change, state_read
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.strided import MASK_ATTRS
from aioflow.ops.core import origin


def _handle_node(handle: Tensor) -> Operation | None:
    op = origin(handle).op
    return op if op.type == "VarHandleOp" else None


def handle_dims(handle: Tensor) -> Dims:
    """Return the static shape of the variable behind a handle, None if it is unknown."""
    op = _handle_node(handle)
    dims: Dims = None if op is None else op.attrs["shape"]
    return dims


def handle_dtype(handle: Tensor) -> DType | None:
    """Return the dtype of the variable behind a handle, None if the tensor is not such a handle."""
    op = _handle_node(handle)
    dtype: DType | None = None if op is None else op.attrs["dtype"]
    return dtype


def value_behind(handle: Tensor) -> Tensor:
    """Return the tensor to fetch for the handle of a variable: the first read that has no control inputs.

    Return any other tensor unchanged.
    """
    if handle.op.type != "VarHandleOp":
        return handle
    graph = handle.op.graph
    # A read with control inputs may show the value at another moment of the step.
    reads = (op for op in handle.consumers() if op.type == "ReadVariableOp" and not op.waits_for)
    return next((op.outputs[0] for op in reads if graph.is_fetchable(op)), handle)


def _handle_shape(ctx: ShapeContext) -> Dims:
    """Return the variable's shape. Raise DTypeError if its dtype differs from the node's."""
    op = _handle_node(ctx.tensors[0])
    if op is None:
        return None
    wanted: DType = ctx.attrs["T" if "T" in ctx.attrs else "dtype"]
    if op.attrs["dtype"] is not wanted:
        raise DTypeError(
            f"variable {op.name} has a different dtype", expected=op.attrs["dtype"].name, actual=wanted.name
        )
    dims: Dims = op.attrs["shape"]
    return dims


def _value_fits(ctx: ShapeContext) -> list[Dims]:
    merge_dims(_handle_shape(ctx), ctx.dims("value"))
    return []


def _variable_shape(ctx: ShapeContext) -> Dims:
    dims = handle_dims(ctx.tensors[0])
    return (None,) if dims is None else (len(dims),)


def _gather_shape(ctx: ShapeContext) -> Dims:
    params, indices = _handle_shape(ctx), ctx.dims("indices")
    batch: int = ctx.attrs["batch_dims"]
    if params is None or indices is None:
        return None
    if len(params) <= batch:
        raise InvalidArgumentError("the variable has no rows", expected=f"rank > {batch}", actual=format_dims(params))
    if len(indices) < batch:
        raise InvalidArgumentError(
            "input 'indices' has the wrong rank", expected=f"rank >= {batch}", actual=format_dims(indices)
        )
    return (*params[:batch], *indices[batch:], *params[batch + 1 :])


def _gather_nd_shape(ctx: ShapeContext) -> Dims:
    params, indices = _handle_shape(ctx), ctx.require_rank("indices", 1, -1)
    if params is None or indices is None or indices[-1] is None:
        return None
    depth = indices[-1]
    if depth > len(params):
        raise InvalidArgumentError(
            "the index vectors are too long", expected=f"at most {len(params)} numbers", actual=depth
        )
    return (*indices[:-1], *params[depth:])


def _scatter_fits(ctx: ShapeContext) -> list[Dims]:
    params, indices, updates = _handle_shape(ctx), ctx.dims("indices"), ctx.dims("updates")
    # A scalar update applies to all the rows.
    if params is None or indices is None or updates == ():
        return []
    if not params:
        raise InvalidArgumentError("the variable has no rows", expected="rank >= 1", actual="()")
    wanted = (*indices, *params[1:])
    if not is_compatible(wanted, updates):
        raise InvalidArgumentError(
            "the shape of the updates must be indices.shape +  variable.shape[1:]",
            expected=format_dims(wanted),
            actual=format_dims(updates),
        )
    return []


def _scatter_nd_fits(ctx: ShapeContext) -> list[Dims]:
    params, indices, updates = _handle_shape(ctx), ctx.require_rank("indices", 1, -1), ctx.dims("updates")
    if params is None or indices is None or indices[-1] is None:
        return []
    depth = indices[-1]
    if depth > len(params):
        raise InvalidArgumentError(
            "the index vectors are too long", expected=f"at most {len(params)} numbers", actual=depth
        )
    wanted = (*indices[:-1], *params[depth:])
    if not is_compatible(wanted, updates):
        raise InvalidArgumentError(
            "the shape of the updates must be indices.shape[:-1] +  variable.shape[k:]",
            expected=format_dims(wanted),
            actual=format_dims(updates),
        )
    return []


define_op(
    "VarHandleOp",
    "",
    "resource: resource",
    [
        "container: string = ''",
        "shared_name: string = ''",
        "debug_name: string = ''",
        "dtype: type",
        "shape: shape",
        "allowed_devices: list(string) = []",
    ],
    shape=lambda ctx: (),
    traits=handle(memory=Memory.RESIDENT, is_shared=True),
)
define_op(
    "ReadVariableOp",
    "resource: resource",
    "value: dtype",
    ["dtype: type"],
    shape=_handle_shape,
    traits=state_read(cost=FREE, memory=Memory.RESIDENT),
)
define_op(  # a copy of the current value, for reads that outlast the step, such as checkpoints
    "_SnapshotVariable",
    "resource: resource",
    "value: dtype",
    ["dtype: type"],
    shape=_handle_shape,
    traits=state_read(cost=FREE, memory=Memory.RESIDENT),
)
define_op(
    "_InitializedValue",
    "resource: resource, initial: dtype",
    "value: dtype",
    ["dtype: type"],
    shape=_handle_shape,
    traits=state_change(),
)
define_op(
    "AssignVariableOp",
    "resource: resource, value: dtype",
    "",
    ["dtype: type", "validate_shape: bool = False"],
    shape=_value_fits,
    traits=state_change(cost=WRITING),
)
define_op(
    "AssignAddVariableOp",
    "resource: resource, value: dtype",
    "",
    ["dtype: type"],
    shape=_value_fits,
    traits=state_change(),
)
define_op(
    "AssignSubVariableOp",
    "resource: resource, value: dtype",
    "",
    ["dtype: type"],
    shape=_value_fits,
    traits=state_change(),
)
define_op(
    "VarIsInitializedOp",
    "resource: resource",
    "is_initialized: bool",
    shape=lambda ctx: (),
    traits=state_read(cost=FREE),
)
define_op(
    "VariableShape",
    "input: resource",
    "output: out_type",
    ["out_type: {index} = int32"],
    shape=_variable_shape,
    traits=state_read(cost=FREE),
)
define_op(
    "DestroyResourceOp",
    "resource: resource",
    "",
    ["ignore_lookup_error: bool = True"],
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "ResourceCountUpTo",
    "resource: resource",
    "output: T",
    ["limit: int", "T: {index}"],
    shape=lambda ctx: (),
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "ResourceGather",
    "resource: resource, indices: Tindices",
    "output: dtype",
    ["batch_dims: int = 0", "validate_indices: bool = True", "dtype: type", "Tindices: {index}"],
    shape=_gather_shape,
    rows=rows.gathered,
    traits=state_read(cost=WRITING),
)
define_op(
    "ResourceGatherNd",
    "resource: resource, indices: Tindices",
    "output: dtype",
    ["dtype: type", "Tindices: {index}"],
    shape=_gather_nd_shape,
    rows=rows.gathered_nd,
    traits=state_read(cost=WRITING),
)
for _mode in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max"):
    define_op(
        f"ResourceScatter{_mode}",
        "resource: resource, indices: Tindices, updates: dtype",
        "",
        ["dtype: type" if _mode == "Update" else "dtype: {numbertype}", "Tindices: {index}"],
        shape=_scatter_fits,
        traits=state_change(),
    )
for _mode in ("Update", "Add", "Sub", "Min", "Max"):
    define_op(
        f"ResourceScatterNd{_mode}",
        "ref: resource, indices: Tindices, updates: T",
        "",
        ["T: type", "Tindices: {index}", "use_locking: bool = True", "bad_indices_policy: string = ''"],
        shape=_scatter_nd_fits,
        traits=state_change(),
    )

define_op(
    "ResourceStridedSliceAssign",
    "ref: resource, begin: Index, end: Index, strides: Index, value: T",
    "",
    ["T: type", "Index: {index}", *MASK_ATTRS],
    traits=state_change(),
)

not_differentiable(
    "VarHandleOp",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "VarIsInitializedOp",
    "VariableShape",
    "DestroyResourceOp",
    "ResourceCountUpTo",
    "ResourceStridedSliceAssign",
    *(f"ResourceScatter{mode}" for mode in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")),
    *(f"ResourceScatterNd{mode}" for mode in ("Update", "Add", "Sub", "Min", "Max")),
)


@gradient("ReadVariableOp", takes_slices=True)
def _read_grad(op: Operation, grad: Tensor) -> Tensor:
    # The gradient flows on to the handle, by which `gradients` identifies a variable.
    return grad


@gradient("_InitializedValue", takes_slices=True)
def _initialized_value_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    return [grad, None]


def _dense_shape(handle: Tensor, out_type: DType) -> Tensor:
    dims = handle_dims(handle)
    if dims is not None and None not in dims:
        return constant([d or 0 for d in dims], dtype=out_type, shape=(len(dims),))
    return make("VariableShape", handle, out_type=out_type)


@gradient("ResourceGather")
def _resource_gather_grad(op: Operation, grad: Tensor) -> list[IndexedSlices | None]:
    if op.attrs["batch_dims"]:
        raise InvalidArgumentError(
            "no gradient for batch_dims > 0", expected="batch_dims=0", actual=op.attrs["batch_dims"]
        )
    handle, indices = op.inputs
    index_dims, dims = indices.dims, handle_dims(handle)
    is_vector = index_dims is not None and len(index_dims) == 1
    # Reuse flat indices: they have already been transferred to the variable's device.
    flat = indices if is_vector else make("Reshape", indices, [-1])
    if is_vector:
        values = convert_to_tensor(grad)
    elif index_dims is not None and dims is not None and None not in dims[1:]:
        # Reshape cannot infer -1 if the rows are empty.
        shape: list[Any] = [-1, *dims[1:]] if 0 not in dims[1:] else [_product(index_dims), *dims[1:]]
        values = make("Reshape", grad, shape)
    else:
        inner = make("StridedSlice", _dense_shape(handle, indices.dtype), [1], [0], [1], end_mask=1)
        count = make("Reshape", make("Size", indices, out_type=indices.dtype), [1])
        values = make("Reshape", grad, make("ConcatV2", [count, inner], 0))
    return [IndexedSlices(values, flat, _dense_shape(handle, indices.dtype)), None]


def _product(dims: tuple[int | None, ...]) -> int:
    total = num_elements(dims)
    if total is None:
        raise InvalidArgumentError(
            "an empty row needs a known number of indices", expected="known sizes", actual=format_dims(dims)
        )
    return total


@gradient("ResourceGatherNd")
def _resource_gather_nd_grad(op: Operation, grad: Tensor) -> list[Tensor | None]:
    handle, indices = op.inputs
    return [make("ScatterNd", indices, grad, _dense_shape(handle, indices.dtype)), None]


def convert_indices(indices: TensorLike) -> Tensor:
    """Return indices as a tensor: int32 unless the value has an integer dtype of its own."""
    return convert_to_tensor(indices, dtype_hint="int32", name="indices")
