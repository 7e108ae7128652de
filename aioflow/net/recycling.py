"""Recycled memory for large arrays that arrive.

The kernel clears fresh pages first, which takes about a quarter of the receiver's time. The returned array has a
`_Loan` as its base, and so does every object made over its memory: views, buffers, memory shared with other libraries.
When the last of them is freed, the loan ends and its block can be used again.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from typing import Any, Final, TypeAlias, cast

import numpy as np

from aioflow.concurrency.forking import renew_in_child
from aioflow.memory.values import Array, NpDType

_Block: TypeAlias = "ctypes.Array[ctypes.c_char]"


class Blocks:
    """A pool of free memory blocks, matched by size. Thread-safe.

    Args:
        room: Maximum bytes of free blocks; the oldest are dropped first.
        smallest: Bytes below which an array is allocated without the pool.
    """

    def __init__(self, room: int, smallest: int = 1 << 20) -> None:
        self._room = room
        self._smallest = smallest
        self._lock = threading.Lock()
        self._waiting: deque[_Block] = deque()
        self._bytes = 0
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held, and drop the free blocks."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Bytes of free blocks."""
        return self._bytes

    def empty(self, shape: tuple[int, ...], dtype: NpDType) -> Array:
        """Return an uninitialized array, like `numpy.empty`, in recycled memory if it is large. Raises MemoryError."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not self._smallest <= nbytes <= self._room:
            return np.empty(shape, dtype)
        block = self._take(nbytes)
        if block is None:
            # A ctypes block, not an array: NumPy collapses chains of bases, so views would refer to the array and the
            # loan could end before them.
            block = (ctypes.c_char * nbytes).from_buffer(np.empty(nbytes, np.uint8).data)
        loan = _Loan(shape, dtype, cast("Any", block))
        loan.home, loan.block = self, block
        return loan.view(np.ndarray)

    def _take(self, nbytes: int) -> _Block | None:
        with self._lock:
            for index, block in enumerate(self._waiting):
                if len(block) == nbytes:
                    del self._waiting[index]
                    self._bytes -= nbytes
                    return block
        return None

    def give(self, block: _Block) -> None:
        """Add a block that is no longer used."""
        # Arrays may be freed anywhere, even inside `_take` of this thread, where waiting for the lock would deadlock:
        # then drop the block.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._waiting.append(block)
            self._bytes += len(block)
            while self._bytes > self._room:
                self._bytes -= len(self._waiting.popleft())
        finally:
            self._lock.release()


class _Loan(Array):
    """The array over a block that all other arrays over it have as their base."""

    home: Blocks | None = None  # None for views of a loan, which own no block
    block: _Block | None = None

    def __del__(self) -> None:
        if self.home is not None and self.block is not None:
            self.home.give(self.block)


RECEIVED: Final = Blocks(room=256 << 20)
