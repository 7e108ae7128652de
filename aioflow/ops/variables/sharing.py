"""The last getter in the chain of `get_variable`: it returns one variable or, with a partitioner, one in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioflow.errors import AlreadyExistsError, DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import to_array
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.shapes import Dims, dims_of, format_dims, is_compatible, merge_dims
from aioflow.ops.apply import make
from aioflow.ops.variables.partitioned import PartitionedVariable
from aioflow.ops.variables.partitioners import Partitioner, partitions_of
from aioflow.ops.variables.slices import PartitionInfo, SaveSliceInfo, slices_of
from aioflow.ops.variables.store import VariableStore, is_value, share_or_make, store_of
from aioflow.ops.variables.variable import Variable


def share_or_make_any(
    graph: Graph, name: str, partitioner: Partitioner | None = None, **settings: Any
) -> Variable | PartitionedVariable:
    """Return the variable with this name: a shared or a new one, according to `reuse` in the settings.

    Raises:
        AlreadyExistsError: the variable exists and is not to be reused.
        InvalidArgumentError: the variable is to be reused and does not exist, or differs from the request in shape,
            dtype or parts.
    """
    store = store_of(graph)
    # Found and made under one lock, so that a name is made once.
    with graph.lock:
        cut = partitioner is not None and dims_of(settings.get("shape")) != ()  # a scalar stays whole
        # If the variable must exist, its parts are found without the partitioner, too.
        if cut or (partitioner is None and settings.get("reuse") is True and name in store.partitioned):
            return _share_or_make_parts(graph, store, name, partitioner, settings)
        if f"{name}/part_0" in store.variables:
            raise InvalidArgumentError(
                f"variable {name} exists in parts", expected="the partitioner that it was made with", actual=None
            )
        return share_or_make(graph, name, **settings)


def _share_or_make_parts(
    graph: Graph, store: VariableStore, name: str, partitioner: Partitioner | None, settings: Mapping[str, Any]
) -> PartitionedVariable:
    reuse, initializer = settings.get("reuse"), settings.get("initializer")
    dtype, dims = as_dtype(settings.get("dtype", dtypes.float32)), dims_of(settings.get("shape"))
    if is_value(initializer):
        initializer = initializer if isinstance(initializer, Tensor) else to_array(initializer, dtype)
        # A value tells the shape of the whole.
        dims = merge_dims(dims, dims_of(initializer.shape))
    if name in store.variables:
        raise InvalidArgumentError(
            f"variable {name} exists, and is not in parts", expected="partitioner=None", actual=repr(partitioner)
        )
    partitions = None if partitioner is None else partitions_of(partitioner, dims, dtype)
    found: PartitionedVariable | None = store.partitioned.get(name)
    if found is not None:
        _check_shared(name, found, reuse, dtype, dims, partitions)
        return found
    if reuse is True or partitions is None:
        raise InvalidArgumentError(
            f"partitioned variable {name} does not exist, or was not made with get_variable()",
            expected="a name made before, or reuse=AUTO_REUSE in the variable scope",
            actual=name,
        )
    sizes = [size for size in dims or () if size is not None]
    parts = [
        _part(graph, f"{name}/part_{i}", SaveSliceInfo(name, sizes, *cut), {**settings, "initializer": initializer})
        for i, cut in enumerate(slices_of(sizes, partitions))
    ]
    made = PartitionedVariable(name, sizes, parts[0].dtype, parts, partitions)
    store.partitioned[name] = made
    return made


def _check_shared(
    name: str, found: PartitionedVariable, reuse: object, dtype: DType, dims: Dims, partitions: list[int] | None
) -> None:
    if not reuse:
        raise AlreadyExistsError(
            f"partitioned variable {name} already exists; it was made at {next(iter(found)).op.source}",
            expected="another name, or reuse=True or AUTO_REUSE in the variable scope",
            actual=name,
        )
    if not is_compatible(dims, found.shape.raw):
        raise InvalidArgumentError(
            f"shared variable {name} has a different shape", expected=found.shape, actual=format_dims(dims)
        )
    if found.dtype is not dtype:
        raise DTypeError(f"shared variable {name} has a different dtype", expected=found.dtype.name, actual=dtype.name)
    if partitions is not None and partitions != found.partitions:
        raise InvalidArgumentError(
            f"shared variable {name} has other parts", expected=found.partitions, actual=partitions
        )


def _part(graph: Graph, name: str, info: SaveSliceInfo, settings: Mapping[str, Any]) -> Variable:
    initializer: Any = settings["initializer"]
    own: Mapping[str, object] = {"shape": info.var_shape}
    if is_value(initializer):
        # The part of a value has its own shape.
        own = {"shape": None, "initializer": _cut(graph, name, initializer, info)}
    told = PartitionInfo(info.full_shape, info.var_offset)
    part = share_or_make(graph, name, **{**settings, **own, "partition_info": told})
    part.save_slice_info = info
    return part


def _cut(graph: Graph, name: str, initializer: Any, info: SaveSliceInfo) -> Any:
    """Return the part of an initial value."""
    if not isinstance(initializer, Tensor):
        box = zip(info.var_offset, info.var_shape, strict=True)
        return initializer[tuple(slice(offset, offset + size) for offset, size in box)]
    with graph.name_scope(f"{name}/PartitionedInitializer"):
        return make("Slice", initializer, info.var_offset, info.var_shape)
