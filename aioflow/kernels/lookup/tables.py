"""Kernels of lookup tables: handles, lookups and changes; tables whose keys may be vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import batches, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.formats.string_hash import murmur_hash
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, format_dims
from aioflow.kernels.convert import check_room
from aioflow.kernels.lookup.table import LookupTable, MutableTable, StaticTable
from aioflow.kernels.registry import Binding, binder, kernel
from aioflow.memory.values import Array

# ── tables whose keys may be vectors, and which export their entries in buckets as TensorFlow does ────────────────────
#
# TensorFlow's checkpoints hold the buckets, and TensorFlow restores no other form.


_WORD: Final = (1 << 64) - 1
_MIXED: Final = 0x9E3779B97F4A7800


class DenseTable(MutableTable):
    """A mutable table with buckets. Each bucket has the key of an entry, or one of two reserved keys.

    Entries are assigned to buckets only when they are exported.

    Args:
        name: The name of the table.
        key_dtype: Dtype of the keys.
        value_dtype: Dtype of the values.
        value_dims: Shape of a value.
        empty_key: The reserved key of empty buckets.
        deleted_key: The reserved key of deleted entries.
        buckets: The initial number of buckets, a power of two.
        load: The largest fraction of the buckets that entries may fill; beyond it the number of buckets doubles.

    Raises:
        InvalidArgumentError: an argument does not fit the others.
    """

    def __init__(
        self,
        name: str,
        key_dtype: DType,
        value_dtype: DType,
        value_dims: tuple[int, ...],
        empty_key: Array,
        deleted_key: Array,
        buckets: int,
        load: float,
    ) -> None:
        if np.shape(empty_key) != np.shape(deleted_key):
            raise InvalidArgumentError(
                "empty_key and deleted_key differ in shape", expected=np.shape(empty_key), actual=np.shape(deleted_key)
            )
        if not np.size(empty_key):
            raise InvalidArgumentError("empty_key has no elements", expected="a key", actual=np.shape(empty_key))
        super().__init__(name, key_dtype, value_dtype, np.shape(empty_key), value_dims)
        self._empty, self._deleted = self.keys_of(empty_key)[0], self.keys_of(deleted_key)[0]
        if self._empty == self._deleted:
            raise InvalidArgumentError(
                "empty_key and deleted_key are equal", expected="two different keys", actual=self._empty
            )
        if not 0 < load < 1:
            raise InvalidArgumentError("max_load_factor is out of range", expected="0 < value < 1", actual=load)
        self._load = load
        self._buckets = _checked(buckets)

    @property
    def reserved(self) -> tuple[Any, Any]:
        """The keys that no entry can have."""
        return self._empty, self._deleted

    def find(self, keys: Array, default: Array) -> Array:
        """Like `LookupTable.find`. Raise InvalidArgumentError for a reserved key."""
        self._check(keys)
        return super().find(keys, default)

    def insert(self, keys: Array, values: Array) -> None:
        """Like `LookupTable.insert`. Raise InvalidArgumentError for a reserved key."""
        self._check(keys)
        entries = list(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self._lock:
            # Every key counts as a new one, even if it replaces an entry.
            pending = len(self._entries) + len(entries)
            while pending > self._buckets * self._load:
                self._buckets *= 2
            self._entries.update(entries)

    def remove(self, keys: Array) -> None:
        """Like `LookupTable.remove`. Raise InvalidArgumentError for a reserved key."""
        self._check(keys)
        super().remove(keys)

    def fill(self, keys: Array, values: Array) -> None:
        """Like `LookupTable.fill`, but skip entries of reserved keys. Raise InvalidArgumentError for misfit values."""
        listed = self.keys_of(keys)
        array = np.asarray(values)
        if array.size != len(listed) * math.prod(self.value_dims):
            raise InvalidArgumentError(
                f"the values do not fit the keys of table {self.name!r}",
                expected=f"{len(listed)} of shape {self.value_dims}",
                actual=array.shape,
            )
        rows = array.reshape(len(listed), *self.value_dims)
        # The table keeps the rows, so they must not share memory with an array of the step.
        pairs = zip(listed, rows.copy() if self.value_dims else rows.tolist(), strict=True)
        entries = {key: value for key, value in pairs if key not in self.reserved}
        # `export` lists every bucket, so the number of exported keys is that of the buckets.
        buckets = max(4, 1 << (len(listed) - 1).bit_length()) if listed else 4
        with self._lock:
            self._entries, self._buckets = entries, buckets

    def export(self) -> tuple[Array, Array]:
        """Return keys [buckets, size of a key] and values [buckets, size of a value]."""
        with self._lock:
            keys, values, buckets = list(self._entries), list(self._entries.values()), self._buckets
        shapes = [(buckets, math.prod(dims)) for dims in (self.key_dims, self.value_dims)]
        for shape, dtype in zip(shapes, (self.key_dtype, self.value_dtype), strict=True):
            check_room(shape)
            reserve(math.prod(shape) * dtype.np_dtype.itemsize)
        made_keys = np.empty(shapes[0], self.key_dtype.np_dtype)
        made_keys[:] = np.array(self._empty, self.key_dtype.np_dtype)
        made_values = np.empty(shapes[1], self.value_dtype.np_dtype)
        made_values.fill(b"" if made_values.dtype == object else 0)
        for key, value, bucket in zip(keys, values, _places(keys, buckets), strict=True):
            made_keys[bucket] = key
            made_values[bucket] = value if np.ndim(value) == 0 else np.reshape(value, -1)
        return made_keys, made_values

    def _check(self, keys: Array) -> None:
        self.lead(keys)
        for key in self.keys_of(keys):
            if key in self.reserved:
                raise InvalidArgumentError(
                    f"a key of table {self.name!r} equals its empty_key or deleted_key",
                    expected="another key",
                    actual=repr(key),
                )


def _places(keys: list[Any], buckets: int) -> Iterator[int]:
    """Yield the bucket of each key: the first free one in its probe sequence."""
    taken: set[int] = set()
    for key in batches(keys):
        bucket, step = _hash(key) % buckets, 0
        while bucket in taken:
            # Steps of 1, 2, 3, … visit every bucket, since their number is a power of two.
            step += 1
            bucket = (bucket + step) % buckets
        taken.add(bucket)
        yield bucket


def _hash(key: Any) -> int:
    if not isinstance(key, tuple):
        return murmur_hash(key) if isinstance(key, bytes) else int(key) & _WORD
    if len(key) == 1:
        return _hash(key[0])
    found = 0
    for part in key:
        # TensorFlow's Hash64Combine.
        found ^= (_hash(part) + _MIXED + (found << 10) + (found >> 4)) & _WORD
    return found


def _checked(buckets: int) -> int:
    if buckets < 4 or buckets & (buckets - 1):
        raise InvalidArgumentError("invalid number of buckets", expected="a power of two, at least 4", actual=buckets)
    return buckets


# ── the kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────


_DTYPES: Final = {
    "key_dtype": "int32 int64 string",
    "value_dtype": "int32 int64 float32 float64 string bool",
}

# ── handles ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── operations on a table ─────────────────────────────────────────────────────────────────────────────────────────────


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
