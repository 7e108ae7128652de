"""Kernels of variables: handles, reads, assignments, and dense and sparse updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from aioflow.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, common_dims, format_dims, is_compatible
from aioflow.kernels.array.scatter import checked_rows, flat_rows, scatter_rows
from aioflow.kernels.array.slices import BOUNDS, slice_of
from aioflow.kernels.convert import check_shape
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.kernels.resources import Overwrites, VariableResource
from aioflow.memory.copying import put
from aioflow.memory.frozen import is_frozen
from aioflow.memory.values import Array, Namespace, Value
from aioflow.ops.array.strided import strided_index


@binder("VarHandleOp", makes=VariableResource)
def var_handle(binding: Binding) -> Callable[[], VariableResource]:
    resources = binding.resources
    container: str = binding.attrs["container"]
    name: str = binding.attrs["shared_name"] or binding.name
    dtype, dims = binding.attrs["dtype"], binding.attrs["shape"]
    widened = "_widened" in binding.attrs  # set by `assign(validate_shape=False)`
    # The last lookup is cached, since each step that uses the variable runs its handle.
    held: VariableResource | None = None
    seen = -1

    def make() -> VariableResource:
        return VariableResource(name, dtype, dims)

    def handle() -> VariableResource:
        nonlocal held, seen
        if held is not None and seen == resources.generation:
            return held
        # Read before the lookup: if the container is cleared in between, the only effect is another lookup.
        generation = resources.generation
        found: VariableResource = resources.get_or_create(container, name, make)
        _check_variable(found, name, dtype, dims)
        if widened:
            found.dims = common_dims(found.dims, dims)
        held, seen = found, generation
        return found

    return handle


def _check_variable(found: object, name: str, dtype: DType, dims: Dims) -> None:
    """Check that an existing resource, perhaps made by another graph, matches the handle.

    An uninitialized variable of another shape takes the handle's shape. Raise InvalidArgumentError for any other
    mismatch.
    """
    if not isinstance(found, VariableResource):
        raise InvalidArgumentError(
            f"resource {name} is not a variable", expected="a variable", actual=type(found).__name__
        )
    if found.dtype is not dtype:
        raise InvalidArgumentError(
            f"variable {name} exists with a different dtype", expected=dtype.name, actual=found.dtype.name
        )
    if not is_compatible(found.dims, dims):
        if found.is_initialized:
            raise InvalidArgumentError(
                f"variable {name} exists with a different shape: another program created it, or its "
                "partitioning has changed. Call `await session.clear()`, then initialize or restore it",
                expected=format_dims(dims),
                actual=format_dims(found.dims),
            )
        # Without a value, nothing depends on the old shape yet.
        found.dims = dims
        return
    if found.is_initialized and not is_compatible(np.shape(found.value), dims):
        raise InvalidArgumentError(
            f"variable {name} has a value of a different shape",
            expected=format_dims(dims),
            actual=format_dims(np.shape(found.value)),
        )


@kernel("ReadVariableOp", expression="{0}.read()", takes=VariableResource)
def read_variable(resource: VariableResource) -> Array:
    return resource.read()


@kernel("_SnapshotVariable", takes=VariableResource)
def snapshot_variable(resource: VariableResource) -> Value:
    return resource.snapshot()


@binder("_InitializedValue", takes=VariableResource)
def initialized_value(binding: Binding) -> Callable[[VariableResource, Array], Array]:
    dims = binding.output_dims[0]

    def read(resource: VariableResource, initial: Array) -> Array:
        value = resource.read() if resource.is_initialized else initial
        check_shape(value, dims)
        return value

    return read


@kernel("AssignVariableOp", retains=True, takes=VariableResource)
def assign_variable(resource: VariableResource, value: Array, *, validate_shape: bool) -> None:
    # A view would keep the array behind it alive, and would change with it.
    whole = getattr(value, "base", None) is None or is_frozen(value)
    resource.assign(value if whole else value.copy(), validate_shape)


def _step(function: str, binding: Binding) -> Callable[[VariableResource, Array], None]:
    ufunc = getattr(binding.xp, function)

    def apply(resource: VariableResource, value: Array) -> None:
        shape = np.shape(value)

        def change(present: Array, out: Array | None) -> Array:
            if present.shape != shape:
                raise InvalidArgumentError(
                    f"cannot update variable {resource.name}: the shapes must be equal",
                    expected=present.shape,
                    actual=shape,
                )
            found: Array = ufunc(present, value) if out is None else ufunc(present, value, out)
            return found

        resource.update(change, Overwrites.WHOLE)

    return apply


binder("AssignAddVariableOp", dtypes={"dtype": "numbers"}, takes=VariableResource)(partial(_step, "add"))
binder("AssignSubVariableOp", dtypes={"dtype": "numbers"}, takes=VariableResource)(partial(_step, "subtract"))


@kernel("VarIsInitializedOp", fresh=True, takes=VariableResource)
def is_initialized(resource: VariableResource) -> np.bool_:
    return np.bool_(resource.is_initialized)


@binder("VariableShape", fresh=True, takes=VariableResource, host_results=True)
def variable_shape(binding: Binding) -> Callable[[VariableResource], Array]:
    dtype = binding.attrs["out_type"].np_dtype
    return lambda resource: np.array(np.shape(resource.read()), dtype=dtype)


@binder("DestroyResourceOp", takes=object)  # any resource with a name
def destroy(binding: Binding) -> Callable[[VariableResource], None]:
    ignore = binding.attrs["ignore_lookup_error"]

    def drop(resource: VariableResource) -> None:
        if not binding.resources.remove(resource) and not ignore:
            raise NotFoundError(
                f"resource {getattr(resource, 'name', resource)} does not exist",
                expected="a resource in a container",
                actual="none",
            )

    return drop


@binder("ResourceCountUpTo", takes=VariableResource, synchronises=True)
def count_up_to(binding: Binding) -> Callable[[VariableResource], Array | None]:
    limit, one = binding.attrs["limit"], binding.output_dtypes[0].np_dtype.type(1)

    def count(resource: VariableResource) -> Array | None:
        before: Array | None = None

        def change(present: Array, out: Array | None) -> Array:
            nonlocal before
            if np.ndim(present) != 0:
                raise InvalidArgumentError(
                    f"variable {resource.name} must be a scalar", expected=(), actual=np.shape(present)
                )
            if present >= limit:
                raise OutOfRangeError(f"reached limit of {limit}", expected=f"below {limit}", actual=int(present))
            # The sum is a new array, so `before` stays as it is.
            before = present
            found: Array = present + one
            return found

        resource.update(change)
        return before

    return count


@binder("ResourceGather", fresh=True, takes=VariableResource)
def gather(binding: Binding) -> Callable[[VariableResource, Array], Array]:
    xp, batch_dims = binding.xp, binding.attrs["batch_dims"]

    def rows_of(name: str, indices: Array, value: Array) -> Array:
        if np.ndim(value) == 0:
            raise InvalidArgumentError(f"variable {name} has no rows", expected="rank >= 1", actual="rank 0")
        if batch_dims:
            return _batched(xp, value, indices, batch_dims)
        # `take` below copies, so no reference to the value outlasts the lock.
        rows = checked_rows(xp, indices, value.shape[0])
        return xp.take(value, rows, axis=0).reshape(np.shape(indices) + value.shape[1:])

    return lambda resource, indices: resource.pick(partial(rows_of, resource.name, indices))


def _batched(xp: Namespace, value: Array, indices: Array, batch_dims: int) -> Array:
    lead = value.shape[:batch_dims]
    if np.ndim(indices) < batch_dims or np.shape(indices)[:batch_dims] != lead or value.ndim <= batch_dims:
        raise InvalidArgumentError(
            f"the first {batch_dims} sizes of params and indices must agree", expected=lead, actual=np.shape(indices)
        )
    checked_rows(xp, indices, value.shape[batch_dims])
    rest = np.ndim(indices) - batch_dims
    # One index array for each batch dimension, which broadcasts along its own axis.
    grid = tuple(
        xp.arange(size).reshape((1,) * axis + (size,) + (1,) * (batch_dims - axis - 1 + rest))
        for axis, size in enumerate(lead)
    )
    found: Array = value[(*grid, indices)]
    return found


@binder("ResourceGatherNd", fresh=True, takes=VariableResource, synchronises=True)
def gather_nd(binding: Binding) -> Callable[[VariableResource, Array], Array]:
    xp = binding.xp

    def slices_of(resource: VariableResource, indices: Array, value: Array) -> Array:
        depth = _index_depth(resource, value, indices)
        rows, _ = flat_rows(xp, indices, value.shape[:depth])
        inner = value.shape[depth:]
        return xp.take(_as_rows(value, depth), rows, axis=0).reshape(np.shape(indices)[:-1] + inner)

    return lambda resource, indices: resource.pick(partial(slices_of, resource, indices))


def _index_depth(resource: VariableResource, value: Array, indices: Array) -> int:
    shape = np.shape(indices)
    if not shape or shape[-1] > np.ndim(value):
        raise InvalidArgumentError(
            f"indices do not fit variable {resource.name}",
            expected=f"[..., k] with k <= {np.ndim(value)}",
            actual=shape,
        )
    return int(shape[-1])


def _as_rows(value: Array, depth: int) -> Array:
    return value.reshape((math.prod(value.shape[:depth]), *value.shape[depth:]))


def _scatter(mode: str, binding: Binding) -> Callable[[VariableResource, Array, Array], None]:
    xp = binding.xp

    def scatter(resource: VariableResource, indices: Array, updates: Array) -> None:
        def change(present: Array, out: Array | None) -> Array:
            if np.ndim(present) == 0:
                raise InvalidArgumentError(
                    f"variable {resource.name} has no rows", expected="rank >= 1", actual="rank 0"
                )
            rows = checked_rows(xp, indices, present.shape[0])
            fitted = _fit_updates(xp, resource, updates, np.shape(indices), present.shape[1:])
            if out is None:
                target = present.copy()
            else:
                target = out
                # Snapshots save the rows before they are overwritten.
                resource.keep(rows)
            scatter_rows(xp, mode, target, rows, fitted)
            return target

        resource.update(change, Overwrites.ROWS)

    return scatter


@binder("ResourceStridedSliceAssign", host=BOUNDS, takes=VariableResource, synchronises=True)
def assign_slice(binding: Binding) -> KernelBody:
    xp, attrs = binding.xp, binding.attrs

    def assign(
        resource: VariableResource, begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...], value: Array
    ) -> None:
        index = strided_index(begin, end, strides, attrs)

        def change(present: Array, out: Array | None) -> Array:
            target = out if out is not None else present.copy()
            part, shape = slice_of(target, index), np.shape(value)
            extra = max(0, len(shape) - part.ndim)
            fitted = (1,) * (part.ndim - len(shape)) + shape[extra:]
            if set(shape[:extra]) - {1} or any(a not in (1, b) for a, b in zip(fitted, part.shape, strict=True)):
                raise InvalidArgumentError(
                    f"the value does not fit the slice of variable {resource.name}", expected=part.shape, actual=shape
                )
            # As in NumPy, leading dimensions of size 1 are dropped.
            put(part, value if shape == part.shape else xp.broadcast_to(xp.reshape(value, fitted), part.shape))
            return target

        resource.update(change)

    return assign


def _fit_updates(
    xp: Namespace, resource: VariableResource, updates: Array, lead: tuple[int, ...], inner: tuple[int, ...]
) -> Array:
    """Return the updates as [n, *inner]; a scalar is repeated."""
    count = math.prod(lead)
    if np.ndim(updates) == 0:
        return xp.broadcast_to(updates, (count, *inner))
    if np.shape(updates) != lead + inner:
        raise InvalidArgumentError(
            f"the updates do not fit variable {resource.name}", expected=lead + inner, actual=np.shape(updates)
        )
    return updates.reshape((count, *inner))


def _scatter_nd(mode: str, binding: Binding) -> Callable[[VariableResource, Array, Array], None]:
    xp = binding.xp
    skip_bad = binding.attrs["bad_indices_policy"] == "IGNORE"

    def scatter(resource: VariableResource, indices: Array, updates: Array) -> None:
        def change(present: Array, out: Array | None) -> Array:
            depth = _index_depth(resource, present, indices)
            rows, good = flat_rows(xp, indices, np.shape(present)[:depth], skip_bad)
            inner = np.shape(present)[depth:]
            fitted = _fit_updates(xp, resource, updates, np.shape(indices)[:-1], inner)
            # `_as_rows` of another layout would be a copy, and the updates would be lost.
            target = out if out is not None and out.flags.c_contiguous else xp.array(present, order="C")
            scatter_rows(xp, mode, _as_rows(target, depth), rows, fitted if good is None else fitted[good])
            return target

        # Not Overwrites.ROWS: the indices select parts of rows, and are not passed to `keep`.
        resource.update(change)

    return scatter


for _mode, _kinds in {
    "Update": {},
    "Add": {"dtype": "numbers"},
    "Sub": {"dtype": "numbers"},
    "Mul": {"dtype": "numbers"},
    "Div": {"dtype": "numbers"},
    "Min": {"dtype": "reals"},
    "Max": {"dtype": "reals"},
}.items():
    binder(f"ResourceScatter{_mode}", dtypes=_kinds, takes=VariableResource, synchronises=True)(
        partial(_scatter, _mode.lower())
    )
for _mode in ("Update", "Add", "Sub", "Min", "Max"):
    _allowed = {} if _mode == "Update" else {"T": "numbers" if _mode in ("Add", "Sub") else "reals"}
    binder(f"ResourceScatterNd{_mode}", dtypes=_allowed, takes=VariableResource, synchronises=True)(
        partial(_scatter_nd, _mode.lower())
    )
