"""Detection of callbacks that hold an event loop too long, by CPU time and by the clock.

CPU time is that of the loop's own thread, so load on the machine does not count. Blocking without CPU use (a sleep,
a lock, a file) shows only on the clock, which load does affect: Linux tells how long the thread has been ready without
a processor; elsewhere only the wider limit allows for that.
The time of the garbage collector is subtracted. It interrupts arbitrary code, and takes half a second among the
objects of ten thousand tests.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aioflow.testing.virtual_clock import VirtualClockLoop

__all__ = ["BUSY", "IDLE", "watched"]

BUSY: Final = 1.0  # seconds of CPU time: on a crowded machine 0.1 s of work on fresh memory has taken 0.5
IDLE: Final = 5.0  # seconds without CPU use
# Lifetime of a reading of the thread's CPU time, in seconds: a reading takes as long as a callback.
_FRESH: Final = 0.05

_run: Final[Any] = asyncio.Handle._run  # called by asyncio's loops for each callback


class _Collector(threading.local):
    """The time that the garbage collector has spent in this thread.

    Class attributes are the initial values of each thread. An `__init__` would run at a thread's first attribute
    access, and the collector may start in the middle of it and call this object.
    """

    seconds = 0.0
    _began: float | None = None

    def __call__(self, phase: str, info: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif self._began is not None:  # else the collection began before the watch did
            self.seconds += time.thread_time() - self._began
            self._began = None


class _Known(threading.local):
    """The last readings of a thread's CPU time and of its waits for a processor, and when they were taken."""

    at = worked = waited = 0.0


@contextmanager
def watched() -> Iterator[list[str]]:
    """Yield a list that collects the callbacks which hold a loop of this process too long during the block."""
    found: list[str] = []
    collector, known = _Collector(), _Known()

    def run(handle: Any) -> None:
        began = time.perf_counter()
        if began - known.at > _FRESH:
            known.at, known.worked, known.waited = began, time.thread_time(), _waited()
        collected = collector.seconds
        try:
            _run(handle)
        finally:
            took = time.perf_counter() - began
            # Cheap test first: only slow callbacks read the thread's CPU time again.
            if took > min(BUSY, IDLE) and not isinstance(handle._loop, VirtualClockLoop):
                worked = time.thread_time() - known.worked
                busy = worked - (collector.seconds - collected)
                idle = took - worked - (_waited() - known.waited)
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


def _waited() -> float:
    """Return the seconds that this thread has been ready to run without a processor; 0.0 where that is unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _named(handle: Any) -> str:
    """Return a description of the callback: the task, if the callback is a task's step."""
    owner = getattr(handle._callback, "__self__", None)
    return repr(owner if isinstance(owner, asyncio.Task) else handle)
