"""Runs the blocks of a kernel in several threads.

A block with a product in it copies its operands and multiplies them in one thread (`products.matmul_here`). What one
core copied and the BLAS then shares between cores has to cross from cache to cache: measured on two cores, a copy and a
product by two BLAS threads take 25 ms where two threads with a copy and a product of their own take 12.

There are as many threads as the user lets OpenBLAS have. With another BLAS, whose threads we do not know how to keep
out of the way, blocks run in turn.
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

from aioflow.runtime.executor import kernel_threads
from aioflow.work.forking import Locked, in_child
from aioflow.work.slices import ask_for_long_slice
from aioflow.work.stopping import checkpoint, current_work, doing
from aioflow_numpy.blas_threads import blas_threads
from aioflow_numpy.crew import CREW
from aioflow_numpy.placing import roam, wake_elsewhere

T = TypeVar("T")


def for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Calls `work` with each item, in this thread and helpers, `thread_count` together.

    The helpers are shared: where they are busy with another kernel, this thread does what they do not come to. All work
    has ended when this returns. The first exception of `work` is raised, and items not begun are
    left, as they are where the step is to stop.
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
    CREW.call()
    try:
        _drain(work, pending)
    finally:
        pending.clear()
        errors = [error for share in shares if (error := share.wait()) is not None]
    if errors:
        raise errors[0]


def wake_helpers(count: int) -> bool:
    """Have so many helpers that sleep wait awake for products (`crew`); False where there can be none now."""
    try:
        jobs = _helpers()
    except RuntimeError:  # there may be no more threads, or the process is ending: one goes without
        return False
    processors = wake_elsewhere(thread.native_id for thread in _threads if thread.native_id is not None)
    for _ in range(min(count, len(_threads))):
        jobs.put(_Share(_idle, deque(), processors))
    return True


def _idle(item: object) -> None:
    """What there is to do for nothing."""


def thread_count() -> int:
    """How many threads `for_each` would use now."""
    threads, limit = blas_threads(), kernel_threads()
    return threads if limit is None else min(threads, limit)


def _drain(work: Callable[[T], None], pending: deque[T]) -> None:
    while True:
        try:
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
    """A helper's part in one `for_each`. Bare locks: a future costs a tenth of a small block."""

    __slots__ = ("_begun", "_ended", "_error", "_part_of", "_pending", "_processors", "_work")

    def __init__(self, work: Callable[[Any], None], pending: deque[Any], processors: set[int] | None) -> None:
        self._work = work
        self._part_of = current_work()
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
                doing(self._part_of, _drain, self._work, self._pending)
            except BaseException as error:  # it is the caller of `for_each` who gets it
                self._error = error
            finally:
                self._ended.release()

    def wait(self) -> BaseException | None:
        """Wait for the end, and return the error. One that never began need not be waited for: nothing is left."""
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()
        return self._error


_threads: list[threading.Thread] = []  # the helpers
_STARTING: Final = Locked()


def _helpers() -> SimpleQueue[_Share]:
    """The queue that the helpers take from. They are daemons: nothing that has not been waited for is left in them."""
    with _STARTING.lock:  # two threads that want the first ones at once must not begin two sets of them
        return _started()


@functools.cache
def _started() -> SimpleQueue[_Share]:
    jobs: SimpleQueue[_Share] = SimpleQueue()

    crew, count = CREW, max(1, (os.cpu_count() or 2) - 1)
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
        except RuntimeError:  # there may be no more threads
            if not _threads:
                raise
            break
        _threads.append(thread)
    return jobs


@in_child
def _forget_helpers() -> None:
    _started.cache_clear()
    _threads.clear()
