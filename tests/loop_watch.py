"""What holds an event loop: how long each callback took, by the processor's time and by the clock.

The processor's time is that of the loop's own thread, so a busy machine does not count. What blocks without using the
processor (a sleep, a lock, a file) is seen by the clock only, which a busy machine does move: hence the wider limit.
The garbage collector comes in the middle of whatever runs, and takes half a second among the objects of ten thousand
tests: its time is nobody's.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aioflow.testing.virtual_clock import VirtualClockLoop

__all__ = ["BUSY", "IDLE", "watched"]

BUSY: Final = 1.0  # seconds of the processor: on a crowded machine 0.1 s of work on fresh memory has been 0.5
IDLE: Final = 5.0  # seconds without it: what a thread may have to wait for its turn on a crowded machine, and more
_FRESH: Final = 0.05  # seconds for which it is known how long a thread has worked: to ask takes as long as a callback

_run: Final[Any] = asyncio.Handle._run  # what a loop of asyncio calls for each callback


class _Collector(threading.local):
    """How long the garbage collector has been at work in this thread's name.

    The values of a new thread are those of the class: in the middle of an `__init__`, which the first look at one would
    call, the collector may come, and call this.
    """

    seconds = 0.0
    _began: float | None = None

    def __call__(self, phase: str, info: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif self._began is not None:  # it was at work already when the watch began
            self.seconds += time.thread_time() - self._began
            self._began = None


class _Known(threading.local):
    """When this thread was last asked how long it has worked, and what it said."""

    at = worked = 0.0


@contextmanager
def watched() -> Iterator[list[str]]:
    """A list of the callbacks that hold a loop of this process for too long from here to the end of the block."""
    found: list[str] = []
    collector, known = _Collector(), _Known()

    def run(handle: Any) -> None:
        began = time.perf_counter()
        if began - known.at > _FRESH:
            known.at, known.worked = began, time.thread_time()
        collected = collector.seconds
        try:
            _run(handle)
        finally:
            took = time.perf_counter() - began
            if took > min(BUSY, IDLE) and not isinstance(handle._loop, VirtualClockLoop):
                worked = time.thread_time() - known.worked
                busy, idle = worked - (collector.seconds - collected), took - worked
                if busy > BUSY or idle > IDLE:
                    found.append(f"{busy:.2f} s of the processor and {idle:.2f} s without it: {_named(handle)}")

    before = asyncio.Handle._run
    gc.callbacks.append(collector)
    setattr(asyncio.Handle, "_run", run)  # noqa: B010  # type checkers refuse to replace a method
    try:
        yield found
    finally:
        setattr(asyncio.Handle, "_run", before)  # noqa: B010
        gc.callbacks.remove(collector)


def _named(handle: Any) -> str:
    """What was called: the task, where it is a task's turn."""
    owner = getattr(handle._callback, "__self__", None)
    return repr(owner if isinstance(owner, asyncio.Task) else handle)
