"""Scratch memory of the convolution and pooling kernels, one set per thread.

A block of patches is built, multiplied and forgotten thousands of times in a step. Fresh pages from the kernel would
cost more than the multiplication, so each thread keeps its few buffers; a request over the bound is simply allocated.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ALIGNMENT = 64  # a cache line, and the widest vector register
_MAX_KEPT_BYTES = 16 << 20  # of one slot of one thread


class _Slots(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}


_slots = _Slots()


def room(slot: str, size: int) -> Array:
    """So many bytes or more, for which the same holds as for `scratch`."""
    buffer = _slots.buffers.get(slot)
    if buffer is None or len(buffer) < size:
        buffer = aligned(size)
        if size <= _MAX_KEPT_BYTES:
            _slots.buffers[slot] = buffer
    return buffer


def scratch(slot: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised C-contiguous array that is valid until the same thread asks for the same slot again.

    Kernels are synchronous, so a thread is never inside two of them; a kernel must not let a scratch array escape.
    """
    needed = math.prod(shape) * dtype.itemsize
    return room(slot, needed)[:needed].view(dtype).reshape(shape)


def aligned(nbytes: int) -> Array:
    """So many bytes of new memory that begin with a cache line."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]
