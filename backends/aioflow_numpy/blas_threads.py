"""The thread count of the BLAS: one during a product of this package, and otherwise the user's setting.

OpenBLAS's own threads wait for one another several times within a product, and after it they spin for 2**26 cycles, on
cores that the next kernel needs. So every product runs in the calling thread, and a large one is divided into blocks
that this package's own threads share (`products`, the only caller).

OpenBLAS has one count for the process, `openblas_set_num_threads_local` included. A product of the user's that starts
meanwhile runs in one thread, which is slower but equally correct. When the last product of this package ends, the count
is restored, unless the user has set it meanwhile: that choice stands. (A setting of 1 cannot be detected.)
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy  # noqa: F401  # loads the BLAS that is searched below

from aioflow_numpy.blas import loaded_blas, symbol

T = TypeVar("T")


def alone(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a function of NumPy with a BLAS of one thread. `function` must not call `alone` itself."""
    # A local name, since a fork inside the call replaces `_count`.
    count, me = _count, threading.get_ident()
    try:
        with count.lock:
            count.holders.add(me)
            now = count.get()
            if now > 1:  # not held yet, or set by the user since
                count.own = now
                count.set(1)
        return function(*args, **options)
    finally:
        try:
            count.release(me)
        except BaseException:  # an interrupt, which may come at any point
            count.release(me)
            raise


def blas_threads() -> int:
    """Return the BLAS's thread count outside of this package's products; 1 for any BLAS but OpenBLAS."""
    with _count.lock:
        now = _count.get()
        return now if now > 1 else _count.own


class _Count:
    """OpenBLAS's thread count, and the threads that hold it at 1.

    Attributes:
        lock: Protects everything here except calls of NumPy.
        get, set: OpenBLAS's own functions.
        holders: The threads.
        own: The count without them.
        forking: Whether the lock is held for a fork.
    """

    def __init__(self, get: Callable[[], int], put: Callable[[int], object]) -> None:
        self.lock = threading.Lock()
        self.get, self.set = get, put
        self.holders: set[int] = set()
        self.own = 1
        self.forking = False

    def release(self, thread: int) -> None:
        """End the thread's hold on the count. Idempotent."""
        with self.lock:
            self.holders.discard(thread)
            if self.own > 1 and not self.holders:
                if self.get() == 1:  # otherwise the user has set it
                    self.set(self.own)
                self.own = 1


def _controls() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return OpenBLAS's (get, set) of its thread count; with another BLAS the count is always 1."""
    for blas in loaded_blas()[:1]:
        # The calls keep the GIL, because its release would take longer than they do.
        library = ctypes.PyDLL(blas.library)
        get, put = symbol(library, "openblas_get_num_threads"), symbol(library, "openblas_set_num_threads")
        if get is not None and put is not None:
            get.restype, put.restype = ctypes.c_int, None  # argtypes would double the time of a call
            return get, put
    return (lambda: 1), (lambda count: None)


_count = _Count(*_controls())


def _hold_over_fork() -> None:
    """Lock the count, so that the child finds it in a consistent state."""
    _count.lock.acquire()
    _count.forking = True


def _go_on_after_fork() -> None:
    # Python calls this without `_hold_over_fork` if the module was imported while the fork ran another's hooks.
    if _count.forking:
        _count.forking = False
        _count.lock.release()


def _forget_after_fork() -> None:
    """Reset the holders: the child has none of the threads that may have held the count."""
    global _count
    # The parent's object has the user's setting. Without holders, its `release` restores that.
    parents, _count = _count, _Count(_count.get, _count.set)
    parents.lock = threading.Lock()  # for a product during which this thread was forked
    parents.holders.clear()
    parents.release(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_over_fork, after_in_parent=_go_on_after_fork, after_in_child=_forget_after_fork)
