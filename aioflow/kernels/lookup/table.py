"""Lookup tables: values by key, each as a Python object, for concurrent use by steps in several threads.

Operations are atomic: a lookup of many keys sees all of a concurrent insertion or nothing of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import blocks, reserve
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from aioflow.graph.dtypes import DType, string
from aioflow.kernels.convert import check_room
from aioflow.kernels.text import as_strings
from aioflow.memory.values import Array, Value

_BATCH: Final = 4096  # keys between two checkpoints
_ENTRY: Final = 100  # approximate bytes of an entry
_NOTHING: Final = object()

# The entries of a table: Python values, but arrays for values that have a shape.
Entries: TypeAlias = dict[Any, Any]


class LookupTable:
    """The base class of all tables.

    Args:
        name: The name of the table.
        key_dtype: Dtype of the keys.
        value_dtype: Dtype of the values.
        key_dims: Shape of one key.
        value_dims: Shape of one value.
    """

    def __init__(
        self,
        name: str,
        key_dtype: DType,
        value_dtype: DType,
        key_dims: tuple[int, ...] = (),
        value_dims: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype
        self.key_dims = key_dims
        self.value_dims = value_dims
        self._entries: Entries = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    # -- checks and conversions of inputs ---------------------------------------------------------------------------

    def check_types(self, key: DType, value: DType | None = None) -> None:
        """Raise InvalidArgumentError if a node expects other dtypes."""
        for what, have, given in (("keys", self.key_dtype, key), ("values", self.value_dtype, value)):
            if given is not None and given is not have:
                raise InvalidArgumentError(
                    f"the {what} of table {self.name!r} have another dtype", expected=have.name, actual=given.name
                )

    def lead(self, keys: Array) -> tuple[int, ...]:
        """Return the shape of a tensor of keys without that of a key. Raise InvalidArgumentError for misfit keys."""
        shape: tuple[int, ...] = np.shape(keys)
        size = len(self.key_dims)
        if size and shape[-size:] != self.key_dims:
            raise InvalidArgumentError(
                f"the keys do not fit table {self.name!r}", expected=f"[..., {self.key_dims}]", actual=shape
            )
        return shape[: len(shape) - size]

    def keys_of(self, keys: Array) -> list[Any]:
        """Return the keys in a hashable form."""
        array = _array(keys, self.key_dtype)
        if not self.key_dims:
            found: list[Any] = array.reshape(-1).tolist()
            return found
        return list(map(tuple, array.reshape(-1, max(1, math.prod(self.key_dims))).tolist()))

    def values_of(self, keys: Array, values: Array) -> list[Any]:
        """Return the values of these keys. Raise InvalidArgumentError if their number or shape does not fit."""
        wanted = (*self.lead(keys), *self.value_dims)
        if np.shape(values) != wanted:
            raise InvalidArgumentError(
                f"the values do not fit the keys of table {self.name!r}", expected=wanted, actual=np.shape(values)
            )
        array = _array(values, self.value_dtype)
        reserve(array.size * _ENTRY)
        if not self.value_dims:
            found: list[Any] = array.reshape(-1).tolist()
            return found
        # The table keeps the rows, so they must not share memory with an array of the step.
        return list(array.reshape(-1, *self.value_dims).copy())

    # -- operations -------------------------------------------------------------------------------------------------

    def find(self, keys: Array, default: Array) -> Array:
        """Return the keys' values, and the default for missing keys. Raise InvalidArgumentError for misfit inputs."""
        lead = self.lead(keys)
        # A scalar may arrive as a NumPy scalar or, if it is a string, as bare bytes.
        default = _array(default, self.value_dtype)
        if default.shape not in (self.value_dims, (*lead, *self.value_dims)):
            raise InvalidArgumentError(
                f"the default value does not fit table {self.name!r}",
                expected=f"{self.value_dims} or {(*lead, *self.value_dims)}",
                actual=default.shape,
            )
        wanted = self.keys_of(keys)
        if self.value_dims:
            return self._rows(wanted, default).reshape(*lead, *self.value_dims)
        with self._lock:
            found = _looked_up(self._entries, wanted, self._defaults(default, len(wanted)))
        return _packed(found, self.value_dtype, lead)

    def _defaults(self, default: Array, count: int) -> list[Any]:
        """Return one default for each key, or a single one for all."""
        listed: list[Any] = default.reshape(-1).tolist()
        return listed if default.ndim and len(listed) == count else listed[:1]

    def _rows(self, keys: list[Any], default: Array) -> Array:
        shape = (len(keys), *self.value_dims)
        check_room(shape)
        reserve(math.prod(shape) * self.value_dtype.np_dtype.itemsize)
        made = np.empty(shape, self.value_dtype.np_dtype)
        made[...] = default if default.shape == self.value_dims else default.reshape(shape)
        with self._lock:
            # All under one lock, so that the lookup is atomic. A stop at a checkpoint releases it.
            for part in blocks(len(keys), _BATCH):
                for i, key in enumerate(keys[part], part.start):
                    row = self._entries.get(key)
                    if row is not None:
                        made[i] = row
        return made

    def export(self) -> tuple[Array, Array]:
        """Return all keys and their values, in the order of insertion."""
        with self._lock:
            # Both lists are made under the lock, so that they correspond.
            keys, values = list(self._entries), list(self._entries.values())
        shape = (len(keys), *self.value_dims)
        if not self.value_dims:
            return _packed(keys, self.key_dtype, shape), _packed(values, self.value_dtype, shape)
        made = np.empty(shape, self.value_dtype.np_dtype)
        for i, row in enumerate(values):
            made[i] = row
        return _packed(keys, self.key_dtype, shape[:1]), made

    def insert(self, keys: Array, values: Array) -> None:
        """Set the values of keys, and replace old values. If a key occurs twice, the last value counts."""
        raise NotImplementedError

    def remove(self, keys: Array) -> None:
        """Remove the keys that the table has, and ignore others."""
        raise NotImplementedError

    def fill(self, keys: Array, values: Array) -> None:
        """Replace all entries by the given ones."""
        raise NotImplementedError


class MutableTable(LookupTable):
    """A table that steps can change."""

    def insert(self, keys: Array, values: Array) -> None:
        """Like `LookupTable.insert`. Raise InvalidArgumentError for misfit inputs."""
        entries = list(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self._lock:
            self._entries.update(entries)

    def remove(self, keys: Array) -> None:
        """Like `LookupTable.remove`. Raise InvalidArgumentError for misfit keys."""
        self.lead(keys)
        gone = self.keys_of(keys)
        with self._lock:
            for key in gone:
                self._entries.pop(key, None)

    def fill(self, keys: Array, values: Array) -> None:
        """Like `LookupTable.fill`. Raise InvalidArgumentError for misfit inputs."""
        entries = dict(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self._lock:
            self._entries = entries


class StaticTable(LookupTable):
    """A table that is filled once and then never changes.

    Args:
        name: The name of the table.
        key_dtype: Dtype of the keys.
        value_dtype: Dtype of the values.

    Attributes:
        is_initialized: True if the table has its entries.
    """

    def __init__(self, name: str, key_dtype: DType, value_dtype: DType) -> None:
        super().__init__(name, key_dtype, value_dtype)
        self.is_initialized = False

    def find(self, keys: Array, default: Array) -> Array:
        """Like `LookupTable.find`. Raise FailedPreconditionError if the table is not initialized."""
        if not self.is_initialized:
            raise self._without_entries()
        return super().find(keys, default)

    def _without_entries(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Table {self.name!r} not initialized", expected="a run of tables_initializer()", actual="no entries"
        )

    def _defaults(self, default: Array, count: int) -> list[Any]:
        """Return the first default for all keys: TensorFlow accepts several, and uses only the first."""
        return list(default.reshape(-1)[:1].tolist())

    def export(self) -> tuple[Array, Array]:
        """Like `LookupTable.export`. Raise FailedPreconditionError if the table is not initialized."""
        if not self.is_initialized:
            raise self._without_entries()
        return super().export()

    def insert(self, keys: Array, values: Array) -> None:
        """Raise UnimplementedError: a static table cannot change."""
        raise UnimplementedError(f"table {self.name!r} does not change", expected="a mutable table", actual="insert")

    def remove(self, keys: Array) -> None:
        """Raise UnimplementedError: a static table cannot change."""
        raise UnimplementedError(f"table {self.name!r} does not change", expected="a mutable table", actual="remove")

    def fill(self, keys: Array, values: Array) -> None:
        """Initialize the table. A repeated call with as many entries does nothing.

        Raises:
            InvalidArgumentError: there are no entries, or the values do not fit the keys.
            FailedPreconditionError: the table has another number of entries, or a key has two values.
        """
        given = self.keys_of(keys), self.values_of(keys, values)
        total = len(given[0])
        if not self.is_initialized:
            if not total:
                raise InvalidArgumentError(f"no entries for table {self.name!r}", expected="at least one", actual=0)
            # Another step may have filled the table meanwhile. Then the number of its entries is compared below.
            if self.install(distinct_entries(self.name, zip(*given, strict=True), total)):
                return
        if len(self._entries) != total:
            raise FailedPreconditionError(
                f"Table {self.name!r} was already initialized with different data",
                expected=f"{len(self._entries)} entries",
                actual=total,
            )

    def install(self, entries: Entries) -> bool:
        """Set the entries if the table is not initialized. Return True if they were set."""
        with self._lock:
            if self.is_initialized:
                return False
            self._entries = entries
            # Set last and never reset, because lookups read the flag without the lock.
            self.is_initialized = True
            return True


def distinct_entries(name: str, pairs: Iterable[tuple[Any, Any]], total: int) -> Entries:
    """Return the entries as a dictionary. Raise FailedPreconditionError if a key has two values.

    Args:
        name: The name of the table, for the error.
        pairs: Keys and values.
        total: An upper bound of the number of pairs.
    """
    reserve(total * _ENTRY)
    entries: Entries = {}
    for key, value in pairs:
        before = entries.setdefault(key, value)
        if before is not value and before != value:
            raise FailedPreconditionError(
                f"table {name!r} is given two values for one key", expected=f"{key!r}: {before!r}", actual=repr(value)
            )
    return entries


def _looked_up(entries: Entries, keys: list[Any], defaults: list[Any]) -> list[Any]:
    get, found = entries.get, list[Any]()
    if len(defaults) == 1:
        (default,) = defaults
        for part in blocks(len(keys), _BATCH):
            found += [get(key, default) for key in keys[part]]
        return found
    for part in blocks(len(keys), _BATCH):
        found += map(get, keys[part], defaults[part])
    return found


def _array(value: Value, dtype: DType) -> Array:
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype.np_dtype)


def _packed(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype is string:
        return as_strings(values, shape)
    return np.array(values, dtype.np_dtype).reshape(shape)[()]
