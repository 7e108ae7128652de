"""Ops on variables: a handle identifies the resource; reads, assignments and updates are separate nodes.

The public functions accept a `Variable` (or the result of an assignment), so that published code such as
`assign_add(step, 1)` runs. Each update returns the variable in its state after the update.
"""

from __future__ import annotations

from typing import Any

import aioflow
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph.costs import FREE
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op, gradient, not_differentiable
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims, num_elements
from aioflow.graph.traits import WRITING, Effect, Memory, bookkeeping, handle, state_change, state_read
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.core import origin

__all__ = [
    "assign",
    "assign_add",
    "assign_sub",
    "count_up_to",
    "is_variable_initialized",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
]


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

not_differentiable(
    "VarHandleOp",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "VarIsInitializedOp",
    "VariableShape",
    "DestroyResourceOp",
    "ResourceCountUpTo",
    *(f"ResourceScatter{mode}" for mode in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")),
    *(f"ResourceScatterNd{mode}" for mode in ("Update", "Add", "Sub", "Min", "Max")),
)


@gradient("ReadVariableOp", takes_slices=True)
def _read_grad(op: Operation, grad: Tensor) -> Tensor:
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
        values = make("Reshape", grad, [-1, *dims[1:]] if 0 not in dims[1:] else [_product(index_dims), *dims[1:]])
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


def is_variable_initialized(variable: aioflow.Variable, name: str | None = None) -> Tensor:
    """Return whether the variable has a value, a bool scalar."""
    result: Tensor = _variable(variable).is_initialized(name)
    return result


def assign(
    ref: aioflow.Variable,
    value: TensorLike,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> aioflow.Variable:
    """Set the variable to `value`.

    Args:
        ref: A Variable, or the tensor of its value, as `Graph.get_tensor_by_name` returns it for the name of a
            variable.
        value: The new value.
        validate_shape: False allows a value of a different shape. The variable then has the most specific static shape
            that both shapes match. (A shape that is unknown until the run is still checked in the run.)
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Returns:
        The variable in its state after the assignment.

    Raises:
        InvalidArgumentError: the shape does not fit the variable's.
    """
    variable = _variable(ref)
    if validate_shape is False:
        value = convert_to_tensor(value, variable.dtype)
        variable.take_shape(value.dims)
    return variable.assign(value, use_locking, name)


def assign_add(
    ref: aioflow.Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> aioflow.Variable:
    """Add `value`, which has the variable's shape, to the variable."""
    return _variable(ref).assign_add(value, use_locking, name)


def assign_sub(
    ref: aioflow.Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> aioflow.Variable:
    """Subtract `value`, which has the variable's shape, from the variable."""
    return _variable(ref).assign_sub(value, use_locking, name)


def count_up_to(ref: aioflow.Variable, limit: int, name: str | None = None) -> Tensor:
    """Increment the scalar integer variable. Return its previous value.

    Raises:
        OutOfRangeError: at run time, the value has reached `limit`.
    """
    result: Tensor = _variable(ref).count_up_to(limit, name)
    return result


def _variable(ref: Any) -> aioflow.Variable:
    # `Graph.get_tensor_by_name` returns a tensor for the name of a variable. The annotations exclude tensors anyway, so
    # that type checkers report assignments to tensors that do not belong to a variable.
    found = ref.graph.variable_of(ref) if isinstance(ref, Tensor) else ref
    if not hasattr(found, "handle"):
        raise DTypeError("an update needs a variable", expected="a Variable", actual=repr(ref))
    variable: aioflow.Variable = found
    return variable


def _scatter(
    op_type: str, ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, name: str | None
) -> aioflow.Variable:
    return _variable(ref).scatter_rows(op_type, indices, updates, name)


def convert_indices(indices: TensorLike) -> Tensor:
    """Return indices as a tensor: int32 unless the value has an integer dtype of its own."""
    return convert_to_tensor(indices, dtype_hint="int32", name="indices")


def scatter_update(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> aioflow.Variable:
    """Set the rows `ref[indices] = updates`; of equal indices, the last one wins.

    Args:
        ref: A Variable, or the tensor of its value.
        indices: int32 or int64 of any shape.
        updates: indices.shape + ref.shape[1:], or a scalar.
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an index is out of bounds, or the shapes do not fit.
    """
    return _scatter("ResourceScatterUpdate", ref, indices, updates, name)


def scatter_add(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the rows `ref[indices] += updates`; equal indices add up. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterAdd", ref, indices, updates, name)


def scatter_sub(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the rows `ref[indices] -= updates`; equal indices add up. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterSub", ref, indices, updates, name)


def scatter_mul(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the rows `ref[indices] *= updates`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMul", ref, indices, updates, name)


def scatter_div(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the rows `ref[indices] /= updates`; integers round towards zero. Otherwise like `scatter_update`."""
    return _scatter("ResourceScatterDiv", ref, indices, updates, name)


def scatter_min(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Set the rows `ref[indices] = min(ref[indices], updates)`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMin", ref, indices, updates, name)


def scatter_max(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Set the rows `ref[indices] = max(ref[indices], updates)`. Shapes and errors as in `scatter_update`."""
    return _scatter("ResourceScatterMax", ref, indices, updates, name)


def scatter_nd_update(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> aioflow.Variable:
    """Set the slices `ref[indices[i]] = updates[i]`, where each index is a vector for the first k axes.

    Args:
        ref: A Variable, or the tensor of its value.
        indices: [..., k] int32 or int64.
        updates: indices.shape[:-1] + ref.shape[k:].
        use_locking: Ignored: updates are atomic.
        name: Name of the node.

    Raises:
        InvalidArgumentError: an index is out of bounds, or the shapes do not fit.
    """
    return _scatter("ResourceScatterNdUpdate", ref, indices, updates, name)


def scatter_nd_add(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the slices `ref[indices[i]] += updates[i]`; equal indices add up. Otherwise like `scatter_nd_update`."""
    return _scatter("ResourceScatterNdAdd", ref, indices, updates, name)


def scatter_nd_sub(
    ref: aioflow.Variable, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> aioflow.Variable:
    """Update the slices `ref[indices[i]] -= updates[i]`; equal indices add up. Otherwise like `scatter_nd_update`."""
    return _scatter("ResourceScatterNdSub", ref, indices, updates, name)
