"""The value of a variable at one moment, for a slow reader, while updates change its rows in place.

If a slow reader held the array itself, the next update would have to copy the whole array within one step, even for a
few rows of a large embedding. A snapshot shares the array with its variable instead. An update in place first saves the
rows that it is about to overwrite, and the reader puts these back into the part that it reads. So a step pays only for
the rows that it touches, once each. An update of the whole value replaces the array. Then the old array belongs to the
snapshot and, once it has been read, serves as a spare for the next such update.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aioflow.memory.values import Array, NpDType, Value

_SMALL: Final = 1 << 20  # bytes; a smaller array is cheap to copy
_WIDE: Final = 1 << 20  # bytes of a row; an update waits while a row is copied


class Snapshot:
    """A past state of an array, with its shape and dtype; `np.asarray` makes a copy.

    Args:
        array: The variable's array, which has rows.
        lock: Held while the array is changed or replaced.
        spares: Receives the array after the last read, if the variable no longer uses it.
    """

    __slots__ = (
        "__weakref__",
        "_begin",
        "_bytes",
        "_lock",
        "_marks",
        "_old",
        "_rows",
        "_shared",
        "_spares",
        "dtype",
        "shape",
    )

    def __init__(self, array: Array, lock: threading.Lock, spares: list[Any]) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.dtype: NpDType = array.dtype
        self._lock = lock
        self._spares = spares
        # An update in place counts the references to the array, and expects exactly one per snapshot.
        # So parts are slices of `_bytes`: they hold `_bytes` and its memory view of `_rows`, but not the array.
        self._rows: Array | None = array.reshape(len(array), -1).view(np.uint8)
        self._bytes: Array | None = np.frombuffer(self._rows.data, np.uint8)
        self._shared = True
        self._begin = 0  # the first row that is still needed
        self._marks: Array | None = None  # for each row whether it has been saved
        self._old: list[tuple[Array, Array]] = []  # the row numbers, unordered, and their bytes

    @staticmethod
    def pays(value: Value) -> bool:
        """Return whether a snapshot of this is worthwhile: an array in host memory with many rows."""
        return (
            type(value) is np.ndarray
            and value.ndim > 0
            and value.nbytes > _SMALL
            and value.nbytes <= _WIDE * len(value)
            and value.flags.c_contiguous
            and not value.dtype.hasobject
        )

    ndim = property(lambda self: len(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    # -- called by the variable, under the lock -----------------------------------------------------------------------

    def keep(self, rows: Array) -> None:
        """Save these rows, which are about to be overwritten; each number is in range."""
        source = self._rows
        if source is None:
            return
        if self._marks is None:
            self._marks = np.zeros(self.shape[0], bool)
        # A row is saved once, and not at all if the reader is past it.
        fresh = rows[~self._marks[rows] & (rows >= self._begin)]
        if len(fresh):
            self._marks[fresh] = True
            # Appended as a whole, because the reader copies the list without the lock.
            self._old.append((fresh, np.take(source, fresh, axis=0)))

    def detach(self) -> None:
        """Take over the array: the variable no longer uses or changes it."""
        self._shared = False

    # -- called by the reader; it never blocks an update --------------------------------------------------------------

    def rows(self, start: int, stop: int) -> Array:
        """Return some rows in their past state. Do not modify them.

        Raises:
            RuntimeError: the snapshot has been released to its end.
        """
        source, stop = self._bytes, min(stop, self.shape[0])
        if source is None:
            raise RuntimeError("these rows have been released")
        width = source.nbytes // self.shape[0]
        # Read first: once the snapshot is detached, nothing overwrites the array, and a view of it suffices.
        shared = self._shared
        part: Array = source[start * width : stop * width]
        if shared:
            # This runs without the lock, so the copy may contain half-overwritten rows. But an update saves rows
            # before it overwrites them, so the rows saved by the end of the copy include all of these.
            part = part.copy()
        patches = [
            (numbers[chosen] - start, values[chosen])
            for numbers, values in list(self._old)
            if len(chosen := np.flatnonzero((numbers >= start) & (numbers < stop)))
        ]
        if patches and not shared:
            part = part.copy()
        lines = part.reshape(stop - start, width)
        for numbers, values in patches:
            lines[numbers] = values
        return part.view(self.dtype).reshape(stop - start, *self.shape[1:])

    def release(self, stop: int) -> None:
        """Declare that the rows before `stop` will not be read again. At the end, release the array."""
        # Without the lock: at worst, `keep` saves a row that is no longer needed.
        self._begin = stop
        if stop < self.shape[0]:
            return
        with self._lock:
            if self._rows is not None and not self._shared and not self._spares:
                # The base of the view is the variable's former array.
                self._spares.append(self._rows.base)
            self._rows = self._bytes = self._marks = None
            self._old = []

    def copy(self) -> Array:
        """Return the whole as an array at once."""
        return np.asarray(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, self.dtype)
        step = max(1, _SMALL * self.shape[0] // max(1, self.nbytes))
        for start in range(0, self.shape[0], step):
            whole[start : start + step] = self.rows(start, start + step)
        return whole if dtype is None else whole.astype(dtype, copy=False)
