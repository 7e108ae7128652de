"""Arrays over memory that is never written to again, so that they can be kept without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from aioflow.memory.values import Array


class _Frozen:
    """The holder of the memory.

    It is the base of each frozen array. It identifies the array as frozen, and keeps it from being made writable.
    """

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: Any) -> None:
        self._memory = memoryview(memory)
        address, _ = np.asarray(self._memory).__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "shape": (self._memory.nbytes,),
            "typestr": "|u1",
            # True stands for read-only. NumPy cannot make it writable, because the base is no writable buffer.
            "data": (address, True),
        }


def freeze(memory: Any) -> Array:
    """Return a flat read-only array over contiguous memory, which must not be written to from now on."""
    return np.asarray(_Frozen(memory))


def is_frozen(value: object) -> bool:
    """Return True if this is an array from `freeze` or a view of one, and is aligned and in row-major order."""
    if type(value) is not np.ndarray or not value.flags.c_contiguous or not value.flags.aligned:
        return False
    base: Any = value.base
    # Views may be stacked, with a `memoryview` between two arrays; the innermost base decides.
    while type(base) in (np.ndarray, memoryview):
        base = base.obj if type(base) is memoryview else base.base
    return type(base) is _Frozen
