"""Kernels of lookup tables: handles, lookups and changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.shapes import Dims, format_dims
from aioflow.kernels.lookup.dense import DenseTable
from aioflow.kernels.lookup.table import LookupTable, MutableTable, StaticTable
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array

_DTYPES: Final = {
    "key_dtype": "int32 int64 string",
    "value_dtype": "int32 int64 float32 float64 string bool",
}

# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _static(binding: Binding, name: str) -> LookupTable:
    return StaticTable(name, binding.attrs["key_dtype"], binding.attrs["value_dtype"])


def _mutable(binding: Binding, name: str) -> LookupTable:
    return MutableTable(name, binding.attrs["key_dtype"], binding.attrs["value_dtype"])


def _of_tensors(binding: Binding, name: str) -> LookupTable:
    value_dims = _known(binding.attrs["value_shape"])
    if len(value_dims) != 1:
        raise InvalidArgumentError(
            f"table {name!r} holds vectors", expected="value_shape of rank 1", actual=format_dims(value_dims)
        )
    return MutableTable(name, binding.attrs["key_dtype"], binding.attrs["value_dtype"], (), value_dims)


def _dense(binding: Binding, name: str, empty_key: Array, deleted_key: Array) -> LookupTable:
    attrs = binding.attrs
    return DenseTable(
        name,
        attrs["key_dtype"],
        attrs["value_dtype"],
        _known(attrs["value_shape"]),
        empty_key,
        deleted_key,
        attrs["initial_num_buckets"],
        attrs["max_load_factor"],
    )


def _known(dims: Dims) -> tuple[int, ...]:
    known = tuple(size for size in dims or () if size is not None)
    if dims is None or len(known) < len(dims):
        raise InvalidArgumentError("the shape of a value must be known", expected="sizes", actual=format_dims(dims))
    return known


def _shared(make: Callable[..., LookupTable], binding: Binding) -> Callable[..., LookupTable]:
    attrs, resources = binding.attrs, binding.resources
    name: str = attrs["shared_name"] or binding.name
    # The last lookup is cached, since each step that uses the table runs its handle.
    held: LookupTable | None = None
    seen = -1

    def handle(*inputs: Array) -> LookupTable:
        nonlocal held, seen
        if held is not None and seen == resources.generation:
            return held
        # Read before the lookup, so that a concurrent clearing only causes another lookup.
        generation = resources.generation
        found = resources.get_or_create(attrs["container"], name, lambda: make(binding, name, *inputs))
        if not isinstance(found, LookupTable):
            raise InvalidArgumentError(
                f"resource {name!r} is of a different kind", expected="a table", actual=type(found).__name__
            )
        found.check_types(attrs["key_dtype"], attrs["value_dtype"])
        held, seen = found, generation
        return found

    return handle


def _own(make: Callable[..., LookupTable], binding: Binding) -> Callable[..., LookupTable]:
    """Return a function that creates a new, private table in each step."""
    return partial(make, binding, binding.name)


_KINDS: Final[Mapping[str, Callable[..., LookupTable]]] = {
    "HashTable": _static,
    "MutableHashTable": _mutable,
    "MutableHashTableOfTensors": _of_tensors,
    "MutableDenseHashTable": _dense,
}
for _kind, _make in _KINDS.items():
    binder(f"{_kind}V2", device="CPU", dtypes=_DTYPES, makes=LookupTable)(partial(_shared, _make))
    binder(f"Anonymous{_kind}", device="CPU", dtypes=_DTYPES, makes=LookupTable)(partial(_own, _make))


# ── operations on a table ────────────────────────────────────────────────────────────────────────────────────────────


@binder("LookupTableFindV2", device="CPU", fresh=True, takes=LookupTable)
def find(binding: Binding) -> Callable[[LookupTable, Array, Array], Array]:
    key, value = binding.input_dtypes[1:]

    def look_up(table: LookupTable, keys: Array, default: Array) -> Array:
        table.check_types(key, value)
        return table.find(keys, default)

    return look_up


@binder("LookupTableInsertV2", device="CPU", takes=LookupTable)
def insert(binding: Binding) -> Callable[[LookupTable, Array, Array], None]:
    key, value = binding.input_dtypes[1:]

    def put(table: LookupTable, keys: Array, values: Array) -> None:
        table.check_types(key, value)
        table.insert(keys, values)

    return put


@binder("LookupTableImportV2", device="CPU", takes=LookupTable)
def import_all(binding: Binding) -> Callable[[LookupTable, Array, Array], None]:
    key, value = binding.input_dtypes[1:]

    def fill(table: LookupTable, keys: Array, values: Array) -> None:
        table.check_types(key, value)
        table.fill(keys, values)

    return fill


@binder("InitializeTableV2", device="CPU", takes=LookupTable)
def initialize(binding: Binding) -> Callable[[LookupTable, Array, Array], None]:
    key, value = binding.input_dtypes[1:]

    def fill(table: LookupTable, keys: Array, values: Array) -> None:
        static_table(table).check_types(key, value)
        if np.ndim(keys) != 1:
            raise InvalidArgumentError("the keys must be a vector", expected="rank 1", actual=np.shape(keys))
        table.fill(keys, values)

    return fill


def static_table(table: LookupTable) -> StaticTable:
    """Return the table if it is static. Raise InvalidArgumentError for a mutable one."""
    if not isinstance(table, StaticTable):
        raise InvalidArgumentError(
            f"table {table.name!r} is not initialized but changed", expected="a static table", actual="a mutable one"
        )
    return table


@binder("LookupTableRemoveV2", device="CPU", takes=LookupTable)
def remove(binding: Binding) -> Callable[[LookupTable, Array], None]:
    key = binding.input_dtypes[1]

    def take_out(table: LookupTable, keys: Array) -> None:
        table.check_types(key)
        table.remove(keys)

    return take_out


@kernel("LookupTableSizeV2", device="CPU", fresh=True, takes=LookupTable)
def size(table_handle: LookupTable) -> np.int64:
    return np.int64(len(table_handle))


@binder("LookupTableExportV2", device="CPU", fresh=True, takes=LookupTable)
def export(binding: Binding) -> Callable[[LookupTable], tuple[Array, Array]]:
    key, value = binding.output_dtypes

    def give_out(table: LookupTable) -> tuple[Array, Array]:
        table.check_types(key, value)
        return table.export()

    return give_out
