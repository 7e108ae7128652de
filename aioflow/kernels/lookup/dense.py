"""Tables whose keys may be vectors, and which export their entries in buckets as TensorFlow does.

TensorFlow's checkpoints hold the buckets, and TensorFlow restores no other form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import batches, reserve
from aioflow.errors import InvalidArgumentError
from aioflow.formats.string_hash import murmur_hash
from aioflow.graph.dtypes import DType
from aioflow.kernels.convert import check_room
from aioflow.kernels.lookup.table import MutableTable
from aioflow.memory.values import Array

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
