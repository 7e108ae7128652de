"""Memory for large arrays that arrive, used again once nobody holds them.

Pages that come fresh from the system have to be cleared first, which takes about a quarter of the receiver's time. The
array that is handed out rests on a `_Loan`, and so does everything that is made over its memory: views, buffers, what
other libraries share. When the last of them is gone the loan ends, and its block can be lent again.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from typing import Any, Final, TypeAlias, cast

import numpy as np

from aioflow.graph.arrays import Array
from aioflow.work.forking import renew_in_child

__all__ = ["RECEIVED", "Blocks"]

_Block: TypeAlias = "ctypes.Array[ctypes.c_char]"


class Blocks:
    """Blocks of memory that wait to be lent again, by their size. May be used from any thread.

    Args:
        room: Bytes that wait here at most; the oldest blocks go first.
        smallest: Bytes below which an array is not worth it.
    """

    def __init__(self, room: int, smallest: int = 1 << 20) -> None:
        self._room = room
        self._smallest = smallest
        self._lock = threading.Lock()
        self._waiting: deque[_Block] = deque()
        self._bytes = 0
        renew_in_child(self)

    def after_fork(self) -> None:
        """Another thread may have held the lock; what it was at is let go."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Bytes that wait to be lent again."""
        return self._bytes

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As `numpy.empty`. Raises MemoryError."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not self._smallest <= nbytes <= self._room:
            return np.empty(shape, dtype)
        block = self._take(nbytes)
        if block is None:
            # Not the array itself: NumPy would make it the base of the loan's views too, past the loan.
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
        """Nobody uses the block any more."""
        # An array may end anywhere, within `_take` too: then the block is let go, since waiting would be for ever.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._waiting.append(block)
            self._bytes += len(block)
            while self._bytes > self._room:
                self._bytes -= len(self._waiting.popleft())
        finally:
            self._lock.release()


class _Loan(np.ndarray[Any, Any]):
    """An array over a block; all others over it have it for their base."""

    home: Blocks | None = None  # of views of a loan, which are not lent themselves
    block: _Block | None = None

    def __del__(self) -> None:
        if self.home is not None and self.block is not None:
            self.home.give(self.block)


RECEIVED: Final = Blocks(room=256 << 20)
