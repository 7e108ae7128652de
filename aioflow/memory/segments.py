"""Memory that other processes of the same user can map, exported as arrays and reused when an array is gone.

A segment is a file without a name, in memory (`memfd`). The system frees it when the last process that maps it ends, in
whatever way. It cannot shrink, so its readers never lose mapped pages, and only its maker can write to it. Fresh pages
must be cleared by the system, which takes longer than the copy that follows, so returned segments are kept for reuse.

One page of the maker's follows the exported bytes. Its first byte marks the segment as retired: processes that keep it
mapped for the next array unmap it then.

A forked child has its parent's arrays over the same memory, so segments that are exported at a fork are never reused.
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
from typing import Any, Final, Protocol

import numpy as np

from aioflow.concurrency.forking import generation, renew_in_child
from aioflow.memory.mapping import mapped
from aioflow.memory.values import Array, NpDType

NAME: Final = "aioflow"
TRAILER: Final = mmap.PAGESIZE
# F_SEAL_FUTURE_WRITE, which Python has no name for: only mappings that exist already can write.
_FUTURE_WRITE: Final = 0x10
_SEALS: Final = 0x1 | 0x2 | 0x4 | _FUTURE_WRITE  # and F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_MOST: Final = 96  # segments of a process: each uses a file descriptor
_NUMBERS: Final = itertools.count(1)


class Segment:
    """Memory of this process that other processes can map.

    Args:
        size: Number of bytes for arrays. No memory is allocated yet.

    Attributes:
        number: Serial number among all segments of this process.
        size: Number of bytes for arrays, rounded up to whole pages.
        fd: Descriptor of its file, valid as long as the segment exists.
        spoiled: Whether it must never be reused.

    Raises:
        OSError: there is no room for it, or the system has no such files.
    """

    def __init__(self, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("there are no sealed files in memory")
        import fcntl  # not available on every platform

        self.made_in = generation()
        self.number = next(_NUMBERS)
        self.size = size - size % -TRAILER  # rounded up: the remainder by a negative number is 0 or negative
        self.spoiled = False
        self.since = 0.0  # time of its return, on the monotonic clock
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # The system closes it at exit.
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, self.size + TRAILER)
        self.memory = mapped(self.fd, self.size + TRAILER, writable=True)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)  # the seals allow no writable mapping after this one
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0])
        self._reserved = 0

    @property
    def file_bytes(self) -> int:
        """Size of its file: the bytes for arrays, and the trailer."""
        return self.size + TRAILER

    @property
    def is_mine(self) -> bool:
        """True if this process made the segment, not the parent that it was forked from."""
        return self.made_in == generation()

    def reserve(self, stop: int) -> None:
        """Allocate the first `stop` bytes now. Without memory, a later write would kill the process.

        Raises:
            OSError: there is no memory.
        """
        if stop > self._reserved:
            os.posix_fallocate(self.fd, self._reserved, stop - self._reserved)
            self._reserved = stop

    def retire(self) -> None:
        """Tell processes that have the segment mapped that it is not used any more."""
        if self.is_mine:
            self.memory[self.size] = 1


class Loan(Array):
    """An array over a segment. All other arrays over the segment have this one as their base."""

    home: Segments | None = None  # None for views of the array, which are not exported themselves
    segment: Segment | None = None

    # The function is bound here, because the module's globals may be gone when the last arrays are freed at exit.
    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.home is not None and self.segment is not None and not is_over():
            self.home.give(self.segment)


def loan_of(array: Array) -> Loan | None:
    """Return the exported array that an array is a view of, if its segment belongs to this process."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, Loan) and base.segment is not None:
            return base if base.segment.is_mine else None
        base = base.base
    return None


class Segments:
    """The segments of a process. Thread-safe.

    Args:
        kept: Maximum bytes kept for reuse; the oldest segments are released first.
        smallest: Size in bytes below which an array gets no segment.

    Attributes:
        importers: Number of connections to processes that can map the segments.
    """

    def __init__(self, kept: int, smallest: int) -> None:
        self._kept = kept
        self.smallest = smallest
        self._lock = threading.Lock()
        self._waiting: deque[Segment] = deque()
        self._exported: dict[int, Segment] = {}
        self.importers = 0
        renew_in_child(self)
        spoil_at_fork(self)

    def after_fork(self) -> None:
        """Reset the state in a child: a thread of the parent may hold the lock, and the segments are the parent's."""
        self._lock = threading.Lock()
        self._waiting.clear()
        self._exported.clear()
        self.importers = 0

    def spoil(self) -> None:
        """Mark the segments that are exported now as not reusable, since a child has them in its memory."""
        # Copied in one step, since other threads change the dictionary meanwhile.
        for segment in list(self._exported.values()):
            segment.spoiled = True

    def connected(self, change: int) -> None:
        """Change the number of importing connections by `change`."""
        with self._lock:
            self.importers += change

    @property
    def waiting(self) -> int:
        """Bytes that are kept for reuse."""
        return sum(segment.size for segment in list(self._waiting))

    @property
    def exported(self) -> int:
        """Bytes that are exported."""
        return sum(segment.size for segment in list(self._exported.values()))

    def empty(self, shape: tuple[int, ...], dtype: NpDType, *, reserve: bool = True) -> Array | None:
        """Return an array like `numpy.empty`; None if it is too small, or no segment is available.

        Sending the array to a process that can map it does not copy it. So the array must not be written to after it is
        sent.

        Args:
            shape: Shape of the array.
            dtype: Its dtype.
            reserve: Whether to allocate the memory now. Otherwise call `Segment.reserve` before the first write.
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
            # The segment is dropped here, which closes its file and frees what was allocated of it.
            return None
        loan = Loan(shape, dtype, segment.memory)
        self._exported[segment.number] = segment
        loan.home, loan.segment = self, segment
        # Callers hold views only. Their base is the loan, so its finalizer runs after the last of them.
        return loan.view(np.ndarray)

    def _take(self, nbytes: int) -> Segment | None:
        with self._lock:
            best = None
            for segment in self._waiting:
                # At most a quarter larger than needed, so that little memory is wasted.
                fits = nbytes <= segment.size <= nbytes + nbytes // 4 + TRAILER
                if fits and (best is None or segment.size < best.size):
                    best = segment
            if best is not None:
                self._waiting.remove(best)
                return best
            while self._waiting and len(self._exported) + len(self._waiting) >= _MOST:
                self._waiting.popleft().retire()
        # Read without the lock: threads that pass here at once may exceed the limit by one segment each.
        if len(self._exported) >= _MOST:
            return None
        try:
            return Segment(nbytes)
        except OSError:  # too many files, or no memory
            return None

    def give(self, segment: Segment) -> None:
        """Return a segment that is no longer in use."""
        if not segment.is_mine:
            return
        self._exported.pop(segment.number, None)
        # An array's finalizer may run at any point, also inside `_take`. Waiting for the lock there would deadlock.
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
        """Release the segments that have been kept for `seconds` without use."""
        if not self._waiting:
            return
        now = time.monotonic()
        with self._lock:
            # Segments are appended when they return, so the first one has waited longest.
            while self._waiting and now - self._waiting[0].since > seconds:
                self._waiting.popleft().retire()


class _Spoils(Protocol):
    """An object that is notified before the memory of the process is copied to a child."""

    def spoil(self) -> None:
        """Mark the arrays that are exported now as not reusable."""


class _Forks:
    """Fork hooks. Segments that return during a fork are not reused either."""

    def __init__(self) -> None:
        self.going_on = 0
        self.told: weakref.WeakSet[_Spoils] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.before, after_in_parent=self.after, after_in_child=self.in_child)

    def before(self) -> None:
        self.going_on += 1
        self._spoil()

    def after(self) -> None:
        # Again, for arrays that other threads exported between `before` and the copy of the memory.
        self._spoil()
        self.going_on -= 1

    def in_child(self) -> None:
        self.going_on = 0

    def _spoil(self) -> None:
        for one in list(self.told):
            one.spoil()


_FORKS: Final = _Forks()


def spoil_at_fork(known: _Spoils) -> None:
    """Call `known.spoil()` around every fork. The registry holds only a weak reference."""
    _FORKS.told.add(known)


def is_forking() -> bool:
    """Return True while a fork is in progress."""
    return _FORKS.going_on > 0


@lru_cache(maxsize=1)
def has_segments() -> bool:
    """Return True if this system has sealed files in memory, and shows those of one process to another."""
    try:
        segment = Segment(1)
        return os.readlink(f"/proc/self/fd/{segment.fd}").startswith(f"/memfd:{NAME}")
    except OSError:
        return False


SHARED: Final = Segments(kept=1 << 30, smallest=256 << 10)
