"""Runs the blocks of a kernel in several threads, each with a BLAS of one.

A block that one core copied and the BLAS then shares between cores has to cross from cache to cache: measured on two
cores, a copy and a product by two BLAS threads take 25 ms where two threads with a copy and a product of their own take
12. OpenBLAS has one thread count for the process; it is 1 while blocks run and then what it was. A product elsewhere in
the process meanwhile runs in one thread, which is slower but no less right. With another BLAS, blocks run in turn.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from aioflow.runtime.executor import kernel_threads
from aioflow_numpy.blas import loaded_blas
from aioflow_numpy.placing import roam, wake_elsewhere

T = TypeVar("T")


def for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Calls `work` with each item, in this thread and as many helpers as the BLAS had threads beside it.

    The helpers are shared: where they are busy with another kernel, this thread does what they do not come to. All work
    has ended when this returns. The first exception of `work` is raised, and items not begun are left.
    """
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with _one_blas_thread as threads:
        pending = deque(items)
        jobs = _helpers()
        processors = wake_elsewhere(_threads)
        shares = [_Share(work, pending, processors) for _ in range(min(_allowed(threads), len(items)) - 1)]
        for share in shares:
            jobs.put(share)
        try:
            _drain(work, pending)
        finally:
            pending.clear()
            errors = [error for share in shares if (error := share.wait()) is not None]
        if errors:
            raise errors[0]


def one_blas_thread() -> AbstractContextManager[int]:
    """A block in which the BLAS uses one thread; its value is how many it would have used."""
    return _one_blas_thread


def thread_count() -> int:
    """How many threads `for_each` would use now."""
    return _allowed(_one_blas_thread.available())


def _allowed(threads: int) -> int:
    """As many of the threads as the device has on whose behalf this one runs."""
    limit = kernel_threads()
    return threads if limit is None else min(threads, limit)


def _drain(work: Callable[[T], None], pending: deque[T]) -> None:
    while True:
        try:
            item = pending.popleft()
        except IndexError:
            return
        try:
            work(item)
        except BaseException:
            pending.clear()
            raise


class _Share:
    """A helper's part in one `for_each`. Bare locks: a future costs a tenth of a small block."""

    __slots__ = ("_begun", "_ended", "_error", "_pending", "_processors", "_work")

    def __init__(self, work: Callable[[Any], None], pending: deque[Any], processors: set[int] | None) -> None:
        self._work = work
        self._pending = pending
        self._processors = processors
        self._error: BaseException | None = None
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        """Do what is left, unless nobody waits for it any more."""
        roam(self._processors)
        if self._begun.acquire(blocking=False):
            try:
                _drain(self._work, self._pending)
            except BaseException as error:  # it is the caller of `for_each` who gets it
                self._error = error
            finally:
                self._ended.release()

    def wait(self) -> BaseException | None:
        """Wait for the end, and return the error. One that never began need not be waited for: nothing is left."""
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()
        return self._error


class _OneBlasThread:
    """A region, entered by any number of threads at once, in which the BLAS uses one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._threads = 1

    def available(self) -> int:
        with self._lock:
            return self._threads if self._inside else _get_threads()

    def __enter__(self) -> int:
        with self._lock:
            if self._inside == 0:
                self._threads = _get_threads()
                if self._threads > 1:
                    _set_threads(1)
            self._inside += 1
            return self._threads

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._threads > 1:
                _set_threads(self._threads)


_one_blas_thread = _OneBlasThread()


def _get_threads() -> int:
    controls = _controls()
    return 1 if controls is None else max(1, int(controls[0]()))


def _set_threads(count: int) -> None:
    controls = _controls()
    if controls is not None:
        controls[1](count)


@functools.cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's own (get, set) of its thread count, or None where NumPy has another BLAS."""
    for blas in loaded_blas()[:1]:
        library = ctypes.CDLL(blas.library)
        # NumPy's wheels put scipy_ before the names, and builds with 64-bit integers put 64_ behind them.
        for name in (f"{before}openblas_%s_num_threads{after}" for before in ("scipy_", "") for after in ("64_", "")):
            if hasattr(library, name % "get") and hasattr(library, name % "set"):
                get, put = getattr(library, name % "get"), getattr(library, name % "set")
                get.argtypes, get.restype = [], ctypes.c_int
                put.argtypes, put.restype = [ctypes.c_int], None
                return get, put
    return None


_threads: list[threading.Thread] = []  # the helpers


@functools.cache
def _helpers() -> SimpleQueue[_Share]:
    """The queue that the helpers take from. They are daemons: nothing that has not been waited for is left in them."""
    jobs: SimpleQueue[_Share] = SimpleQueue()

    def help_out() -> None:
        with np.errstate(all="ignore"):  # as in every thread that runs kernels
            while True:
                jobs.get().run()

    for i in range(max(1, (os.cpu_count() or 2) - 1)):
        thread = threading.Thread(target=help_out, name=f"aioflow-blocks-{i}", daemon=True)
        thread.start()
        _threads.append(thread)
    return jobs


def _forget_after_fork() -> None:
    # A child has no thread of its parent's pool, and may have been forked inside a region.
    global _one_blas_thread
    _helpers.cache_clear()
    _threads.clear()
    _one_blas_thread = _OneBlasThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
