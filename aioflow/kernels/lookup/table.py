"""Lookup tables: values by key, each as a Python object. Steps use them at the same time, from several threads.

An act is whole: who finds many keys finds them all before or after somebody else's insertion.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from aioflow.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from aioflow.graph.dtypes import DType, string
from aioflow.kernels.convert import check_room
from aioflow.kernels.text.strings import as_strings
from aioflow.work.stopping import blocks, claim

__all__ = ["LookupTable", "MutableTable", "StaticTable", "distinct_entries"]

_BATCH: Final = 4096  # keys between two checkpoints
_ENTRY: Final = 100  # bytes that an entry takes, about
_NOTHING: Final = object()


class LookupTable:
    """What all tables have in common.

    Args:
        key_dims, value_dims: Shapes of one key and of one value.
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
        self._entries: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    # -- what is given ----------------------------------------------------------------------------------------------

    def check_types(self, key: DType, value: DType | None = None) -> None:
        """Raise InvalidArgumentError where a node takes it for a table of other dtypes."""
        for what, have, given in (("keys", self.key_dtype, key), ("values", self.value_dtype, value)):
            if given is not None and given is not have:
                raise InvalidArgumentError(
                    f"the {what} of table {self.name!r} have another dtype", expected=have.name, actual=given.name
                )

    def lead(self, keys: Any) -> tuple[int, ...]:
        """The shape of a tensor of keys, without that of a key. Raises InvalidArgumentError."""
        shape: tuple[int, ...] = np.shape(keys)
        size = len(self.key_dims)
        if size and shape[-size:] != self.key_dims:
            raise InvalidArgumentError(
                f"the keys do not fit table {self.name!r}", expected=f"[..., {self.key_dims}]", actual=shape
            )
        return shape[: len(shape) - size]

    def keys_of(self, keys: Any) -> list[Any]:
        """The keys as what can be looked up."""
        array = _array(keys, self.key_dtype)
        if not self.key_dims:
            found: list[Any] = array.reshape(-1).tolist()
            return found
        return list(map(tuple, array.reshape(-1, max(1, int(np.prod(self.key_dims)))).tolist()))

    def values_of(self, keys: Any, values: Any) -> list[Any]:
        """The values that belong to as many keys. Raises InvalidArgumentError where there are more or fewer."""
        wanted = (*self.lead(keys), *self.value_dims)
        if np.shape(values) != wanted:
            raise InvalidArgumentError(
                f"the values do not fit the keys of table {self.name!r}", expected=wanted, actual=np.shape(values)
            )
        array = _array(values, self.value_dtype)
        claim(array.size * _ENTRY)
        if not self.value_dims:
            found: list[Any] = array.reshape(-1).tolist()
            return found
        return list(array.reshape(-1, *self.value_dims).copy())

    # -- what is done -----------------------------------------------------------------------------------------------

    def find(self, keys: Any, default: Any) -> Any:
        """The values of the keys, and for each that is not there the default. Raises InvalidArgumentError."""
        lead = self.lead(keys)
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

    def _defaults(self, default: Any, count: int) -> list[Any]:
        """One for each key, or one alone for all."""
        listed: list[Any] = default.reshape(-1).tolist()
        return listed if default.ndim and len(listed) == count else listed[:1]

    def _rows(self, keys: list[Any], default: Any) -> Any:
        shape = (len(keys), *self.value_dims)
        check_room(shape)
        claim(int(np.prod(shape)) * self.value_dtype.np_dtype.itemsize)
        made = np.empty(shape, self.value_dtype.np_dtype)
        made[...] = default if default.shape == self.value_dims else default.reshape(shape)
        with self._lock:
            for part in blocks(len(keys), _BATCH):
                for i, key in enumerate(keys[part], part.start):
                    row = self._entries.get(key)
                    if row is not None:
                        made[i] = row
        return made

    def export(self) -> tuple[Any, Any]:
        """All keys and their values, in the order in which the keys came."""
        with self._lock:
            keys, values = list(self._entries), list(self._entries.values())
        shape = (len(keys), *self.value_dims)
        if not self.value_dims:
            return _packed(keys, self.key_dtype, shape), _packed(values, self.value_dtype, shape)
        made = np.empty(shape, self.value_dtype.np_dtype)
        for i, row in enumerate(values):
            made[i] = row
        return _packed(keys, self.key_dtype, shape[:1]), made

    def insert(self, keys: Any, values: Any) -> None:
        """Give keys values, in the place of those that they had; of one that comes twice, the last counts."""
        raise NotImplementedError

    def remove(self, keys: Any) -> None:
        """Take keys out, those that are there."""
        raise NotImplementedError

    def fill(self, keys: Any, values: Any) -> None:
        """Let it have these entries alone."""
        raise NotImplementedError


class MutableTable(LookupTable):
    """A table that changes from step to step."""

    def insert(self, keys: Any, values: Any) -> None:
        """As the base says. Raises InvalidArgumentError."""
        entries = list(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self._lock:
            self._entries.update(entries)

    def remove(self, keys: Any) -> None:
        """As the base says. Raises InvalidArgumentError."""
        self.lead(keys)
        gone = self.keys_of(keys)
        with self._lock:
            for key in gone:
                self._entries.pop(key, None)

    def fill(self, keys: Any, values: Any) -> None:
        """As the base says. Raises InvalidArgumentError."""
        entries = dict(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self._lock:
            self._entries = entries


class StaticTable(LookupTable):
    """A table that is given its entries once, and then never changes.

    Attributes:
        is_initialized: Whether it has them.
    """

    def __init__(self, name: str, key_dtype: DType, value_dtype: DType) -> None:
        super().__init__(name, key_dtype, value_dtype)
        self.is_initialized = False

    def find(self, keys: Any, default: Any) -> Any:
        """As the base says. Raises FailedPreconditionError: it has not been given its entries."""
        if not self.is_initialized:
            raise self._without_entries()
        return super().find(keys, default)

    def _without_entries(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"Table {self.name!r} not initialized", expected="a run of tables_initializer()", actual="no entries"
        )

    def _defaults(self, default: Any, count: int) -> list[Any]:
        """The first for all: TensorFlow takes several, and looks at no other."""
        return list(default.reshape(-1)[:1].tolist())

    def export(self) -> tuple[Any, Any]:
        """As the base says. Raises FailedPreconditionError: it has not been given its entries."""
        if not self.is_initialized:
            raise self._without_entries()
        return super().export()

    def insert(self, keys: Any, values: Any) -> None:
        """Raises UnimplementedError."""
        raise UnimplementedError(f"table {self.name!r} does not change", expected="a mutable table", actual="insert")

    def remove(self, keys: Any) -> None:
        """Raises UnimplementedError."""
        raise UnimplementedError(f"table {self.name!r} does not change", expected="a mutable table", actual="remove")

    def fill(self, keys: Any, values: Any) -> None:
        """Give it its entries. If it has some, as many as these, nothing happens.

        Raises:
            InvalidArgumentError: there are none.
            FailedPreconditionError: it has more or fewer; or one key has two values.
        """
        given = self.keys_of(keys), self.values_of(keys, values)
        total = len(given[0])
        if not self.is_initialized:
            if not total:
                raise InvalidArgumentError(f"no entries for table {self.name!r}", expected="at least one", actual=0)
            if self.install(distinct_entries(self.name, zip(*given, strict=True), total)):
                return
        if len(self._entries) != total:
            raise FailedPreconditionError(
                f"Table {self.name!r} was already initialized with different data",
                expected=f"{len(self._entries)} entries",
                actual=total,
            )

    def install(self, entries: dict[Any, Any]) -> bool:
        """Let it have these, if it has none; whether that was so."""
        with self._lock:
            if self.is_initialized:
                return False
            self._entries = entries
            self.is_initialized = True
            return True


def distinct_entries(name: str, pairs: Iterable[tuple[Any, Any]], total: int) -> dict[Any, Any]:
    """The entries as a dictionary. Raises FailedPreconditionError where a key comes with two values.

    Args:
        name: The table, for the error.
        total: How many pairs there are at most.
    """
    claim(total * _ENTRY)
    entries: dict[Any, Any] = {}
    for key, value in pairs:
        before = entries.setdefault(key, value)
        if before is not value and before != value:
            raise FailedPreconditionError(
                f"table {name!r} is given two values for one key", expected=f"{key!r}: {before!r}", actual=repr(value)
            )
    return entries


def _looked_up(entries: Mapping[Any, Any], keys: list[Any], defaults: list[Any]) -> list[Any]:
    get, found = entries.get, list[Any]()
    if len(defaults) == 1:
        (default,) = defaults
        for part in blocks(len(keys), _BATCH):
            found += [get(key, default) for key in keys[part]]
        return found
    for part in blocks(len(keys), _BATCH):
        found += map(get, keys[part], defaults[part])
    return found


def _array(value: Any, dtype: DType) -> Any:
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype.np_dtype)


def _packed(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Any:
    if dtype is string:
        return as_strings(values, shape)
    return np.array(values, dtype.np_dtype).reshape(shape)[()]
