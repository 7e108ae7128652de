"""The connections of a listener: each has a task of its own, owned by the block in which the listener listens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from aioflow.net.comm import Comm, Handler

__all__ = ["Connections"]


class Connections:
    """Runs the handler for each accepted comm, and closes or aborts the comm after it.

    A handler that fails costs its connection; the event loop's exception handler gets the error. When the block is
    left, handlers that still run are cancelled.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._tasks)

    def start(self, comm: Comm) -> None:
        """Run the handler for a comm."""
        task = self._group.create_task(self._serve(comm))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: comm.abort("its handler has ended")
        )  # one cancelled before it began closes nothing

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that is none of a handler's, and never raises; it is cancelled when the block is left."""
        task = self._group.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)
        return task

    async def _serve(self, comm: Comm) -> None:
        try:
            async with comm:
                await self._handler(comm)
        except Exception as error:
            loop = asyncio.get_running_loop()
            loop.call_exception_handler(
                {"message": f"the handler of the connection from {comm.peer} has failed", "exception": error}
            )

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks | self._others:
            task.cancel()
        # Not told of the error, which it would wrap in a group: no task here ever raises.
        await self._group.__aexit__(None, None, None)
