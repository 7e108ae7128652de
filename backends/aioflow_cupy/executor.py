"""The executor of a GPU: one thread launches kernels, in order, into the compute stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aioflow.concurrency.threads import although_cancelled
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step
from aioflow_cupy.completion import Completions
from aioflow_cupy.driver import Event
from aioflow_cupy.streams import Streams

T = TypeVar("T")


class StreamExecutor:
    """A `backend_api.Executor`. While the kernels of one function run, the thread launches those of the next."""

    def __init__(self, name: str, streams: Streams, completions: Completions) -> None:
        self._threads = DeviceThreads(name, 1)
        self._streams = streams
        self._completions = completions

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` in the launching thread, with the compute stream current.

        Returns after its kernels are done.
        """
        result: T
        try:
            result, launched = await self._threads.run(step, self._launch, function, args)
            await self._completions.future(launched)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                step.stop()
            # Also after a cancellation: the step ends only when no kernel of it is running.
            await self._wait_until_done()
            raise
        return result

    def _launch(self, function: Callable[..., T], args: tuple[object, ...]) -> tuple[T, Event]:
        with self._streams.computing():
            result = function(*args)
        # Marked in the launching thread, so that no work of a later function is before the event.
        return result, self._streams.mark(self._streams.compute)

    async def _wait_until_done(self) -> None:
        """Wait until the compute stream is done, ignoring further cancellation."""
        done = self._completions.future(self._streams.mark(self._streams.compute))
        await although_cancelled(done)
        # Retrieve the error: the caller raises its own, and reads of the results report this one.
        done.exception()
