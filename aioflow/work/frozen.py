"""Arrays over memory that nobody writes to any more: whoever keeps one need not copy it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["freeze", "is_frozen"]

Array: TypeAlias = np.ndarray[Any, Any]


class _Frozen:
    """Holds the memory. It is at the bottom of each such array, which is known by it and cannot be made writable."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: Any) -> None:
        self._memory = memoryview(memory)
        address, _ = np.asarray(self._memory).__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "shape": (self._memory.nbytes,),
            "typestr": "|u1",
            "data": (address, True),
        }


def freeze(memory: Any) -> Array:
    """A flat read-only array of the bytes of contiguous memory, which nobody may write to from now on."""
    return np.asarray(_Frozen(memory))


def is_frozen(value: Any) -> bool:
    """Whether this is an array made by `freeze`, or a view of one, that lies in rows and is aligned."""
    if type(value) is not np.ndarray or not value.flags.c_contiguous or not value.flags.aligned:
        return False
    base: Any = value.base
    while type(base) in (np.ndarray, memoryview):
        base = base.obj if type(base) is memoryview else base.base
    return type(base) is _Frozen
