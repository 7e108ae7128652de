"""Memory that other processes of the same user can map: lent as arrays, and used again once nobody holds them.

A segment is a file without a name, in memory (`memfd`): it is gone when the last process that maps it is, however that
ends. It cannot shrink, so nobody who reads it is cut off, and nobody but its maker can write to it. Fresh pages have to
be cleared, which takes longer than the copy that follows; so what comes back waits here to be lent again.

Behind the bytes that are lent is one page of the maker's, of which the first byte says that the segment is no longer
used: whoever keeps it mapped for the next array lets go of it then.

A forked child has the arrays of its parent, over the same memory: what is lent at that time is never lent again.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from aioflow.work.forking import generation, renew_in_child
from aioflow.work.mapping import mapped

__all__ = [
    "NAME",
    "SHARED",
    "TRAILER",
    "Loan",
    "Segment",
    "Segments",
    "has_segments",
    "is_forking",
    "loan_of",
    "spoil_at_fork",
]

NAME: Final = "aioflow"
TRAILER: Final = mmap.PAGESIZE
_FUTURE_WRITE: Final = (
    0x10  # F_SEAL_FUTURE_WRITE: no writing but by the mapping that is there; Python has no name for it
)
_SEALS: Final = 0x1 | 0x2 | 0x4 | _FUTURE_WRITE  # and F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
Array: TypeAlias = np.ndarray[Any, Any]
_MOST: Final = 96  # segments of a process: each takes a file descriptor
_NUMBERS: Final = itertools.count(1)


class Segment:
    """Memory of this process that others can map.

    Args:
        size: Bytes that can be lent, of which none is taken from the system yet.

    Attributes:
        number: Which one it is, of all that this process has had.
        fd: Its file, for as long as the segment is there.
        spoiled: Whether it is never lent again.

    Raises:
        OSError: there is no room for it, or the system knows no such files.
    """

    def __init__(self, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("there are no sealed files in memory")
        import fcntl  # not on every platform

        self.made_in = generation()
        self.number = next(_NUMBERS)
        self.size = size - size % -TRAILER
        self.spoiled = False
        self.since = 0.0  # when it came back
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, self.size + TRAILER)
        self.memory = mapped(self.fd, self.size + TRAILER, writable=True)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)  # after the one mapping that may write
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0])
        self._reserved = 0

    @property
    def file_bytes(self) -> int:
        """Of its file: what can be lent, and the trailer."""
        return self.size + TRAILER

    @property
    def is_mine(self) -> bool:
        """Whether this process has made it, and not the one that it was forked from."""
        return self.made_in == generation()

    def reserve(self, stop: int) -> None:
        """Take its first bytes from the system, which kills a process that writes where it has none to give.

        Raises:
            OSError: it has none.
        """
        if stop > self._reserved:
            os.posix_fallocate(self.fd, self._reserved, stop - self._reserved)
            self._reserved = stop

    def retire(self) -> None:
        """Let those who have it mapped know that it is not used any more."""
        if self.is_mine:
            self.memory[self.size] = 1


class Loan(np.ndarray[Any, Any]):
    """An array over a segment; all others over it have it for their base."""

    home: Segments | None = None  # of views of a loan, which are not lent themselves
    segment: Segment | None = None

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.home is not None and self.segment is not None and not is_over():
            self.home.give(self.segment)


def loan_of(array: Array) -> Loan | None:
    """What an array rests on, where that is a segment of this process."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, Loan) and base.segment is not None:
            return base if base.segment.is_mine else None
        base = base.base
    return None


class Segments:
    """Those of a process. May be used from any thread.

    Args:
        kept: Bytes that wait here at most; the oldest go first.
        smallest: Bytes below which an array is not worth it.

    Attributes:
        borrowers: How many connections there are to processes that can map them.
    """

    def __init__(self, kept: int, smallest: int) -> None:
        self._kept = kept
        self.smallest = smallest
        self._lock = threading.Lock()
        self._waiting: deque[Segment] = deque()
        self._lent: dict[int, Segment] = {}
        self.borrowers = 0
        renew_in_child(self)
        spoil_at_fork(self)

    def after_fork(self) -> None:
        """Another thread may have held the lock, and what is here is the parent's."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._lent.clear()
        self.borrowers = 0

    def spoil(self) -> None:
        """What is lent now is in the memory of a child, too."""
        for segment in list(self._lent.values()):
            segment.spoiled = True

    def connected(self, change: int) -> None:
        """So many borrowers more."""
        with self._lock:
            self.borrowers += change

    @property
    def waiting(self) -> int:
        """Bytes that wait to be lent again."""
        return sum(segment.size for segment in list(self._waiting))

    @property
    def lent(self) -> int:
        """Bytes that are lent."""
        return sum(segment.size for segment in list(self._lent.values()))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, reserve: bool = True) -> Array | None:
        """As `numpy.empty`; None where the array is too small, or there is no segment for it.

        What is sent to a process that can map it is not copied. So nobody may write to it after that.

        Args:
            reserve: Whether its memory is taken from the system now. If not, `Segment.reserve` comes before the first
                byte is written.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < self.smallest or dtype.hasobject:
            return None
        segment = self._take(nbytes)
        if segment is None:
            return None
        try:
            if reserve:
                segment.reserve(nbytes)
        except OSError:
            return None
        loan = Loan(shape, dtype, segment.memory)
        self._lent[segment.number] = segment
        loan.home, loan.segment = self, segment
        return loan.view(np.ndarray)

    def _take(self, nbytes: int) -> Segment | None:
        with self._lock:
            best = None
            for segment in self._waiting:
                fits = nbytes <= segment.size <= nbytes + nbytes // 4 + TRAILER
                if fits and (best is None or segment.size < best.size):
                    best = segment
            if best is not None:
                self._waiting.remove(best)
                return best
            while self._waiting and len(self._lent) + len(self._waiting) >= _MOST:
                self._waiting.popleft().retire()
        if len(self._lent) >= _MOST:
            return None
        try:
            return Segment(nbytes)
        except OSError:  # too many files, or no memory
            return None

    def give(self, segment: Segment) -> None:
        """Nobody uses the segment any more."""
        if not segment.is_mine:
            return
        self._lent.pop(segment.number, None)
        # An array may end anywhere, within `_take` too: then the segment is let go, since waiting would be for ever.
        if segment.spoiled or _FORKS.going_on or not self._lock.acquire(blocking=False):
            segment.retire()
            return
        try:
            segment.since = time.monotonic()
            self._waiting.append(segment)
            size = sum(waiting.size for waiting in self._waiting)
            while size > self._kept:
                oldest = self._waiting.popleft()
                oldest.retire()
                size -= oldest.size
        finally:
            self._lock.release()

    def trim(self, seconds: float) -> None:
        """Let go of what has waited for so long."""
        if not self._waiting:
            return
        now = time.monotonic()
        with self._lock:
            while self._waiting and now - self._waiting[0].since > seconds:
                self._waiting.popleft().retire()


class _Spoils(Protocol):
    """What is told that a child is about to have the same memory."""

    def spoil(self) -> None:
        """No array that is lent now may be lent again."""


class _Forks:
    """Told around every fork; in between, too, nothing that comes back may be lent again."""

    def __init__(self) -> None:
        self.going_on = 0
        self.told: weakref.WeakSet[Any] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.before, after_in_parent=self.after, after_in_child=self.in_child)

    def before(self) -> None:
        self.going_on += 1
        self._spoil()

    def after(self) -> None:
        self._spoil()
        self.going_on -= 1

    def in_child(self) -> None:
        self.going_on = 0

    def _spoil(self) -> None:
        for one in list(self.told):
            one.spoil()


_FORKS: Final = _Forks()


def spoil_at_fork(known: _Spoils) -> None:
    """Tell `known`, which is not kept alive, of every fork before it."""
    _FORKS.told.add(known)


def is_forking() -> bool:
    """Whether a child is being made now."""
    return _FORKS.going_on > 0


@lru_cache(maxsize=1)
def has_segments() -> bool:
    """Whether this system has such files, and shows those of one process to another."""
    try:
        segment = Segment(1)
        return os.readlink(f"/proc/self/fd/{segment.fd}").startswith(f"/memfd:{NAME}")
    except OSError:
        return False


SHARED: Final = Segments(kept=1 << 30, smallest=256 << 10)
