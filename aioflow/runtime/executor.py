"""A CPU device's threads, and the one way to hop into them and back without losing a cancellation.

Written out rather than taken from `concurrent.futures`, because a step pays for the hop every time: one future and one
wake-up of the loop instead of two futures, a condition variable and a chain of callbacks take a third off it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

from aioflow.runtime.step import Step

__all__ = ["DeviceThreads", "kernel_threads", "shared_threads"]

_THIS_THREAD = threading.local()


def kernel_threads() -> int | None:
    """How many threads a kernel in this thread may use, itself included; None where nobody has said so."""
    found: int | None = getattr(_THIS_THREAD, "kernel_threads", None)
    return found


T = TypeVar("T")


class _Work:
    """One call on its way through a thread. Everything but `perform` happens on the caller's loop."""

    __slots__ = ("args", "delivered", "function", "future", "late", "loop", "taken")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.loop = loop
        self.function = function
        self.args = args
        self.future: asyncio.Future[Any] = loop.create_future()
        self.late: asyncio.Future[None] | None = None
        self.delivered = False
        self.taken = threading.Lock()  # held by the thread that performs it, or by the caller who withdrew it

    def perform(self) -> None:
        """Call the function, in the thread, and send what comes of it to the loop."""
        if not self.taken.acquire(blocking=False):
            return
        outcome: Any = None
        error: BaseException | None = None
        try:
            outcome = self.function(*self.args)
        except StopIteration as raised:  # a future cannot carry one
            error = RuntimeError("a function for a thread raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:
            error = raised
        try:
            self.loop.call_soon_threadsafe(self._deliver, outcome, error)
        except RuntimeError:
            pass  # the loop was closed: there is nobody left to tell
        finally:
            del self, outcome, error  # the error's traceback holds this frame, and would hold the step's values by it

    def withdraw(self) -> bool:
        """Take it back, if no thread has begun with it."""
        return self.taken.acquire(blocking=False)

    def _deliver(self, outcome: Any, error: BaseException | None) -> None:
        self.delivered = True
        if self.late is not None:
            if not self.late.done():  # it is, where a second cancellation comes in this very turn of the loop
                self.late.set_result(None)
        elif self.future.done():
            pass  # the caller was cancelled in this very turn of the loop and will not wait
        elif error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome)

    async def end(self) -> None:
        """Wait until the thread is done with it, whoever else cancels meanwhile."""
        while not self.delivered:
            self.late = self.loop.create_future()
            with suppress(asyncio.CancelledError):  # asked again: the first request is on its way already
                await self.late
            self.late = None


class DeviceThreads:
    """The executor of a CPU device: threads that are started when there is work for them, up to a number."""

    def __init__(self, name: str, threads: int = 0) -> None:
        self._name = name
        self._kernel_threads = threads or None
        self._limit = threads or os.cpu_count() or 1
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._started = 0
        self._busy = 0

    async def run(self, step: Step, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in a thread.

        When the awaiting task is cancelled the step is asked to stop, and this returns (by raising) only when the
        function has, or if it has not begun: no kernel of a step runs after its `run` has ended.
        """
        work = _Work(asyncio.get_running_loop(), function, args)
        self._submit(work)
        try:
            result: T = await work.future
        except asyncio.CancelledError:
            step.stop()
            if not work.withdraw():
                await work.end()
            raise
        finally:
            self._busy -= 1
            del work  # as in `perform`
        return result

    def _submit(self, work: _Work) -> None:
        self._busy += 1
        if self._started < self._limit and self._busy > self._started:
            with self._lock:
                if self._started < self._limit:
                    self._started += 1
                    name = f"aioflow{self._name}_{self._started}"
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._queue.put(work)

    def _serve(self) -> None:
        _THIS_THREAD.kernel_threads = self._kernel_threads
        while True:
            self._queue.get().perform()


@cache
def shared_threads(name: str, threads: int) -> DeviceThreads:
    """The threads of the device of that name: one set a process, whatever the number of sessions."""
    return DeviceThreads(name, threads)
