"""The threads that run the blocks of a kernel.

A block with a product copies its operands and multiplies them in one thread (`products.matmul_here`). If the BLAS
shared the product between cores, data that one core copied would have to cross between caches. Measured on two cores,
a copy and a product by two BLAS threads take 25 ms; two threads that each copy and multiply take 12 ms.

There are as many threads as the user allows OpenBLAS to have. With another BLAS, whose threads cannot be controlled
here, blocks run in turn.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np

from aioflow.concurrency.forking import Locked, in_child
from aioflow.concurrency.slices import ask_for_long_slice
from aioflow.concurrency.stopping import checkpoint, current_work, doing
from aioflow.runtime.executor import kernel_threads
from aioflow_numpy.blas_threads import blas_threads
from aioflow_numpy.crew import CREW
from aioflow_numpy.placing import roam, wake_elsewhere

T = TypeVar("T")


def for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Call `work` with each item, in this thread and helpers, `thread_count()` in total, and wait for all of it.

    The helpers are shared: while they are busy with another kernel, this thread computes the items itself. The first
    exception of `work` is raised. After an exception or a request to stop the step, the remaining items are skipped.
    """
    if len(items) < 2:
        for item in items:
            work(item)
        return
    pending = deque(items)
    jobs = _helpers()
    processors = wake_elsewhere(thread.native_id for thread in _threads if thread.native_id is not None)
    shares = [_Share(work, pending, processors) for _ in range(min(thread_count(), len(items)) - 1)]
    for share in shares:
        jobs.put(share)
    # Helpers that spin look into the queue only once they have stopped.
    CREW.call()
    try:
        _drain(work, pending)
    finally:
        # After an error, too, this waits for the helpers: they may still use the arrays of the caller.
        pending.clear()
        errors = [error for share in shares if (error := share.wait()) is not None]
    if errors:
        raise errors[0]


def wake_helpers(count: int) -> bool:
    """Make sleeping helpers spin for products (`crew`); return False if no helper can be started now."""
    try:
        jobs = _helpers()
    except RuntimeError:  # the thread limit is reached or the process is ending: go on without helpers
        return False
    processors = wake_elsewhere(thread.native_id for thread in _threads if thread.native_id is not None)
    for _ in range(min(count, len(_threads))):
        # A helper that finds nothing in the empty task then spins (`Crew.stay`).
        jobs.put(_Share(_idle, deque(), processors))
    return True


def _idle(item: object) -> None:
    """Do nothing."""


def thread_count() -> int:
    """Return the number of threads that `for_each` would use now."""
    threads, limit = blas_threads(), kernel_threads()
    return threads if limit is None else min(threads, limit)


def _drain(work: Callable[[T], None], pending: deque[T]) -> None:
    while True:
        try:
            # All threads share the deque; `popleft` is atomic and raises once it is empty.
            item = pending.popleft()
        except IndexError:
            return
        try:
            checkpoint()
            work(item)
        except BaseException:
            pending.clear()
            raise


class _Share:
    """The task of one helper in one `for_each`. It uses bare locks: a future would cost a tenth of a small block."""

    __slots__ = ("_begun", "_ended", "_error", "_part_of", "_pending", "_processors", "_work")

    def __init__(self, work: Callable[[Any], None], pending: deque[Any], processors: set[int] | None) -> None:
        self._work = work
        self._part_of = current_work()
        self._pending = pending
        self._processors = processors
        self._error: BaseException | None = None
        # Acquired either by the helper in `run` or by `wait`: the later one sees that the other came first.
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        """Compute remaining items, unless `for_each` has already returned."""
        # The restriction has served its purpose: the thread has woken up on another processor.
        roam(self._processors)
        if self._begun.acquire(blocking=False):
            try:
                doing(self._part_of, _drain, self._work, self._pending)
            except BaseException as error:  # raised by `for_each` in the caller's thread
                self._error = error
            finally:
                self._ended.release()

    def wait(self) -> BaseException | None:
        """Wait for the end and return the error.

        If the helper has not begun, prevent it from beginning instead: no items are left.
        """
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()
        return self._error


_threads: list[threading.Thread] = []  # the helpers
_STARTING: Final = Locked()


def _helpers() -> SimpleQueue[_Share]:
    """Return the task queue of the helpers. Their threads are daemons, since `for_each` waits for all work in them."""
    with _STARTING.lock:  # two threads that need the first helpers at once must not start two sets
        return _started()


@functools.cache
def _started() -> SimpleQueue[_Share]:
    jobs: SimpleQueue[_Share] = SimpleQueue()

    crew, count = CREW, max(1, (os.cpu_count() or 2) - 1)
    # Before the threads start: each of them reads its board.
    crew.gather(count)

    def help_out(number: int) -> None:
        ask_for_long_slice()
        with np.errstate(all="ignore"):  # as in every thread that runs kernels
            while True:
                jobs.get().run()
                crew.stay(number, lambda: not jobs.empty())

    for i in range(count):
        thread = threading.Thread(target=help_out, args=(i,), name=f"aioflow-blocks-{i}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the thread limit is reached
            if not _threads:
                raise
            break
        _threads.append(thread)
    return jobs


@in_child
def _forget_helpers() -> None:
    _started.cache_clear()
    _threads.clear()
