"""How many threads the BLAS has: one while a product of ours runs, and otherwise what the user's settings give it.

OpenBLAS's own threads wait for one another several times within a product, and after it they spin for 2**26 cycles, on
cores that the next kernel needs. So every product runs in the thread that asks for it, and a large one is cut into
blocks which our own threads share (`products`, the only caller).

OpenBLAS has one count for the process, `openblas_set_num_threads_local` included: a product of the user's that begins
meanwhile runs in one thread, which is slower but no less right. When the last of ours ends, the count is again what it
was, unless somebody has set it meanwhile: that choice stands. (It cannot be seen where it is 1.)
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy  # noqa: F401  # which loads the BLAS that is looked for below

from aioflow_numpy.blas import loaded_blas, symbol

__all__ = ["alone", "blas_threads"]

T = TypeVar("T")


def alone(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a function of NumPy with a BLAS of one thread. No function that is called so calls another one so."""
    count, me = _count, threading.get_ident()
    try:
        with count.lock:
            count.holders.add(me)
            now = count.get()
            if now > 1:  # nobody held it, or the user has set it since
                count.own = now
                count.set(1)
        return function(*args, **options)
    finally:
        try:
            count.release(me)
        except BaseException:  # an interrupt, which comes at any point
            count.release(me)
            raise


def blas_threads() -> int:
    """How many threads the BLAS has where no product of ours runs; 1 with another BLAS than OpenBLAS."""
    with _count.lock:
        now = _count.get()
        return now if now > 1 else _count.own


class _Count:
    """OpenBLAS's thread count, and who holds it at 1.

    Attributes:
        lock: For everything here but calls of NumPy.
        get, set: OpenBLAS's own.
        holders: The threads.
        own: What the count is without them.
        forking: Whether the lock is held for a fork.
    """

    def __init__(self, get: Callable[[], int], put: Callable[[int], object]) -> None:
        self.lock = threading.Lock()
        self.get, self.set = get, put
        self.holders: set[int] = set()
        self.own = 1
        self.forking = False

    def release(self, thread: int) -> None:
        """The thread holds it no more. Does no harm a second time."""
        with self.lock:
            self.holders.discard(thread)
            if self.own > 1 and not self.holders:
                if self.get() == 1:  # else the user has set it
                    self.set(self.own)
                self.own = 1


def _controls() -> tuple[Callable[[], int], Callable[[int], object]]:
    """OpenBLAS's (get, set) of its thread count; with another BLAS it is always 1."""
    for blas in loaded_blas()[:1]:
        library = ctypes.PyDLL(blas.library)  # calls keep the interpreter's lock: giving it back takes longer than they
        get, put = symbol(library, "openblas_get_num_threads"), symbol(library, "openblas_set_num_threads")
        if get is not None and put is not None:
            get.restype, put.restype = ctypes.c_int, None  # with argtypes a call takes twice as long
            return get, put
    return (lambda: 1), (lambda count: None)


_count = _Count(*_controls())


def _hold_over_fork() -> None:
    """So that the child finds the count as one of these functions has left it."""
    _count.lock.acquire()
    _count.forking = True


def _go_on_after_fork() -> None:
    # Python calls this without the former where this module was imported while the fork waited for another's hooks.
    if _count.forking:
        _count.forking = False
        _count.lock.release()


def _forget_after_fork() -> None:
    """The child has none of the threads that may have held the count."""
    global _count
    parents, _count = _count, _Count(_count.get, _count.set)
    parents.lock = threading.Lock()  # for a product that this thread was forked inside
    parents.holders.clear()
    parents.release(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_over_fork, after_in_parent=_go_on_after_fork, after_in_child=_forget_after_fork)
