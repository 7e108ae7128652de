"""A CPU device's threads, and the one way to hop into them and back without losing a cancellation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from aioflow.runtime.step import Step

__all__ = ["DeviceThreads", "shared_threads"]

T = TypeVar("T")


class DeviceThreads:
    """The executor of a CPU device: a fixed number of threads, started when first needed."""

    def __init__(self, name: str, threads: int = 0) -> None:
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix=f"aioflow{name}")

    async def run(self, step: Step, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in a thread.

        When the awaiting task is cancelled the step is asked to stop, and this returns (by raising) only when the
        function has: no kernel of a step runs after its `run` has ended.
        """
        work = self._pool.submit(function, *args)
        waiting = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            step.stop()
            work.cancel()
            while not waiting.done():
                try:
                    await asyncio.wait([waiting])
                except asyncio.CancelledError:
                    continue  # asked again while waiting for the kernel to end: the first request is on its way
            if not waiting.cancelled():
                waiting.exception()  # the cancellation is what the caller hears of; mark the error as seen
            raise

    def close(self) -> None:
        """Let the threads end when they have nothing left to do."""
        self._pool.shutdown(wait=False)


@cache
def shared_threads(name: str, threads: int) -> DeviceThreads:
    """The threads of the device of that name: one set a process, whatever the number of sessions."""
    return DeviceThreads(name, threads)
