"""Scratch memory of the convolution and pooling kernels, one set per thread.

A block of patches is built, multiplied and discarded thousands of times in a step. Fresh pages from the operating
system would cost more than the multiplication, so each thread keeps a few buffers. Requests above a limit get new
memory each time.
"""

from __future__ import annotations

import math
import threading

import numpy as np

from aioflow.memory.values import Array, NpDType

_ALIGNMENT = 64  # a cache line, and the widest vector register
_MAX_KEPT_BYTES = 16 << 20  # per slot and thread


class _Slots(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}


_slots = _Slots()


def room(slot: str, size: int) -> Array:
    """Return at least `size` bytes of the slot, under the same conditions as `scratch`."""
    buffer = _slots.buffers.get(slot)
    if buffer is None or len(buffer) < size:
        buffer = aligned(size)
        if size <= _MAX_KEPT_BYTES:
            _slots.buffers[slot] = buffer
    return buffer


def scratch(slot: str, shape: tuple[int, ...], dtype: NpDType) -> Array:
    """Return an uninitialized C-contiguous array, valid until the same thread requests the same slot again.

    Kernels are synchronous, so a thread is never inside two of them. A kernel must not let a scratch array escape.
    """
    needed = math.prod(shape) * dtype.itemsize
    return room(slot, needed)[:needed].view(dtype).reshape(shape)


def aligned(nbytes: int) -> Array:
    """Return `nbytes` bytes of new memory that begin at a cache line."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]
