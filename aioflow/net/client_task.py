"""The client as a task of the cluster, for nodes that must run in its process: Python functions and partial runs.

Values are exchanged with workers over the client's existing connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aioflow.errors import AbortedError, OpError
from aioflow.net.channel import Channel, ServiceRequest
from aioflow.net.links import Link
from aioflow.net.outbox import Outbox, ValueMessage
from aioflow.net.task_worker import TaskWorker, WorkerSession
from aioflow.runtime.device import import_backends
from aioflow.runtime.worker import Worker
from aioflow.sync.background import Background


class ClientTask:
    """The client's own task, with the interface of `Link`. It is always reachable.

    Args:
        task: Its full name.
        link: Returns the link to another task by name.
        background: Owner of the asyncio task in which the worker runs.
    """

    restarts = 0
    is_told = True
    address = "inproc://"

    def __init__(self, task: str, link: Callable[[str], Link], background: Background) -> None:
        self.task = task
        self.devices = (f"{task}/device:CPU:0",)
        self._link = link
        self._background = background
        self._ready: asyncio.Future[TaskWorker] | None = None
        self._session: WorkerSession | None = None

    @property
    def is_open(self) -> bool:
        """True if it has been opened."""
        return self._session is not None

    @property
    def worker(self) -> WorkerSession:
        """The worker. Raises AbortedError before it has been opened or after it has been closed."""
        if self._session is None:
            raise AbortedError("the session is closed")
        return self._session

    def tell(self) -> None:
        """Do nothing: this task never restarts."""

    async def open(self, patience: float) -> None:
        """Start the worker, unless it runs already. The dead-peer timeout `patience` is not used."""
        if self._ready is None:
            ready = self._ready = asyncio.get_running_loop().create_future()
            holder = await self._background.start(self._serve(ready))
            # A task that is cancelled before it starts sets no result.
            holder.add_done_callback(lambda _: ready.cancel())
        # Not awaited directly: a caller that is cancelled would cancel it for the others.
        await asyncio.wait([self._ready])
        if self._ready.cancelled():
            raise AbortedError("the session is closed")
        tasks = self._ready.result()
        if self._session is None:
            self._session = tasks.open_session()

    async def _serve(self, ready: asyncio.Future[TaskWorker]) -> None:
        async with Outbox(self._reach) as outbox:

            def push(message: ValueMessage) -> None:
                try:
                    worker = self._link(message.task).worker
                except OpError as error:
                    message.fail(error)
                    return
                if isinstance(worker, WorkerSession):
                    worker.take(message)
                else:
                    outbox.push(message)

            await import_backends()
            tasks = TaskWorker(Worker(task=self.task), push)
            ready.set_result(tasks)
            try:
                # Until the background is closed, which cancels this task.
                await asyncio.Event().wait()
            finally:
                tasks.close()

    @asynccontextmanager
    async def _reach(self, task: str) -> AsyncIterator[Channel]:
        yield self._link(task).channel

    def take(self, message: ValueMessage) -> None:
        """Accept a value from a server in this process; drop it while there is no session. Thread-safe."""
        if self._session is not None:
            self._session.take(message)

    def deliver(self, request: ServiceRequest) -> None:
        """Accept a value that arrived over a connection; drop it while there is no session."""
        if self._session is not None:
            self._session.deliver(request)

    async def close(self) -> None:
        """Close the worker's session, which stops what runs in it."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
