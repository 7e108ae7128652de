"""The value of a variable at one moment, for a reader who takes his time, while rows of it are updated in place.

A reader who held the array itself would make the next update copy it, all of it and within one step, be it for a few
rows of a large embedding. A snapshot shares the array with its variable instead. An update in place first sets aside
the rows that it is about to overwrite, and the reader puts them back into the part that he reads. So a step pays for
the rows that it touches, once each. An update of the whole value puts another array in its place. The old one is the
snapshot's then and, when it has been read, a spare one for the next such update.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from aioflow.graph.arrays import Array

__all__ = ["Snapshot"]

_SMALL: Final = 1 << 20  # bytes; what is smaller is copied in no time
_WIDE: Final = 1 << 20  # bytes of a row, which is copied while an update waits


class Snapshot:
    """An array as it was. It looks like one as far as shape and dtype go; `np.asarray` makes a copy.

    Args:
        array: The variable's, which has rows.
        lock: Held by whoever changes the array, or puts another one in its place.
        spares: Gets the array when the reader has done with it, if it is the variable's no longer.
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
        self.dtype: np.dtype[Any] = array.dtype
        self._lock = lock
        self._spares = spares
        # An update in place counts the holders of the array, of which a snapshot is one, always. So parts are taken of
        # `_bytes`: what holds a part holds that, and by way of the memory view the one view `_rows`, and not the array.
        self._rows: Array | None = array.reshape(len(array), -1).view(np.uint8)
        self._bytes: Array | None = np.frombuffer(self._rows.data, np.uint8)
        self._shared = True
        self._begin = 0  # the first row that is still wanted
        self._marks: Array | None = None  # which rows have been set aside
        self._old: list[tuple[Array, Array]] = []  # their numbers, in no order, and the bytes that were in them

    @staticmethod
    def pays(value: Any) -> bool:
        """Whether this is worth a snapshot: an array in host memory with many rows."""
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
        """How many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    # -- for the variable, under the lock ----------------------------------------------------------------------------

    def keep(self, rows: Array) -> None:
        """These rows are about to be overwritten; each number is in range."""
        source = self._rows
        if source is None:
            return
        if self._marks is None:
            self._marks = np.zeros(self.shape[0], bool)
        fresh = rows[~self._marks[rows] & (rows >= self._begin)]
        if len(fresh):
            self._marks[fresh] = True
            self._old.append((fresh, np.take(source, fresh, axis=0)))

    def detach(self) -> None:
        """The array is the variable's no longer: nobody changes it any more."""
        self._shared = False

    # -- for the reader, who never makes an update wait ---------------------------------------------------------------

    def rows(self, start: int, stop: int) -> Array:
        """Some rows, as they were. Do not modify them."""
        source, stop = self._bytes, min(stop, self.shape[0])
        if source is None:
            raise RuntimeError("these rows have been released")
        width = source.nbytes // self.shape[0]
        shared = self._shared
        part: Array = source[start * width : stop * width]
        if shared:
            # Without the lock: rows may be half overwritten in the copy. But they were set aside before that began, so
            # what was set aside up to the end of copying has all of them.
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
        """The rows before `stop` will not be read again."""
        self._begin = stop
        if stop < self.shape[0]:
            return
        with self._lock:
            if self._rows is not None and not self._shared and not self._spares:
                self._spares.append(self._rows.base)
            self._rows = self._bytes = self._marks = None
            self._old = []

    def copy(self) -> Array:
        """The whole as an array, for who cannot wait."""
        return np.asarray(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = np.empty(self.shape, self.dtype)
        step = max(1, _SMALL * self.shape[0] // max(1, self.nbytes))
        for start in range(0, self.shape[0], step):
            whole[start : start + step] = self.rows(start, start + step)
        return whole if dtype is None else whole.astype(dtype, copy=False)
