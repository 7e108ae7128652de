"""The connections of a listener: each has a task of its own, owned by the block in which the listener listens.

Tasks of the cluster and clients have places of their own, so that neither keep the others out. Where there is none for
one more client, the one that has been idle longest gives way: first those that have nothing here. Who comes back has a
place again; its variables are there, and what its nodes keep themselves (the state of random numbers) begins anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from aioflow.errors import UnavailableError
from aioflow.net.comm import Comm, CommOptions, Handler, Idle

__all__ = ["Connections"]

_IDLE: Final = "the connection has been idle for longest, and gives way to another client"


class Connections:
    """Runs the handler for each accepted comm, and closes or aborts the comm after it.

    A handler that fails costs its connection; the event loop's exception handler gets the error. When the block is
    left, handlers that still run are cancelled.
    """

    def __init__(self, handler: Handler, options: CommOptions) -> None:
        self._handler = handler
        self._options = options
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: set[Comm] = set()
        self._clients: dict[Comm, None] = {}
        self._hosts: Counter[str] = Counter()  # of clients
        self._idle: list[tuple[Idle, int, Comm]] = []  # as they were when somebody looked, the next to give way last

    def admit(self, comm: Comm) -> None:
        """Run the handler for a comm.

        Raises:
            UnavailableError: there is no place for it, and nobody gives way.
        """
        if comm.peer_is_task:
            _require(len(self._peers), self._options.peers, "connections of tasks")
            self._peers.add(comm)
        else:
            if comm.host:
                _require(self._hosts[comm.host], self._options.connections_per_host, f"connections from {comm.host}")
            self._make_room()
            self._clients[comm] = None
            self._hosts[comm.host] += 1
        task = self.run(self._serve(comm))
        task.add_done_callback(lambda _: self._leave(comm))
        task.add_done_callback(
            lambda _: comm.abort("its handler has ended")
        )  # one cancelled before it began closes nothing

    def _leave(self, comm: Comm) -> None:
        self._peers.discard(comm)
        if comm in self._clients:
            del self._clients[comm]
            self._hosts[comm.host] -= 1
            self._hosts += Counter()  # forgets those of which there are none

    def _make_room(self) -> None:
        """Let an idle client give way, where there are as many as there may be."""
        most = self._options.connections
        if len(self._clients) < most:
            return
        longest = self._longest_idle()
        if longest is None:
            _require(len(self._clients), most, "connections of clients, and none of them is idle")
            return
        self._leave(longest)
        error = UnavailableError(_IDLE, expected=f"at most {most} connections of clients")
        error.may_have_been_applied = False  # nothing without an answer has been looked at
        longest.dismiss(error)

    def _longest_idle(self) -> Comm | None:
        for _ in range(2):  # to look at all of them for each one that comes would take too long
            while self._idle:
                idle, _, comm = self._idle.pop()
                if comm in self._clients and comm.idle() == idle:
                    return comm
            found = ((comm.idle(), index, comm) for index, comm in enumerate(self._clients))
            self._idle = sorted(((idle, -index, comm) for idle, index, comm in found if idle is not None), reverse=True)
        return None

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that never raises; it is cancelled when the block is left."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
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
        for task in self._tasks:
            task.cancel()
        # Not told of the error, which it would wrap in a group: no task here ever raises.
        await self._group.__aexit__(None, None, None)


def _require(count: int, most: int, what: str) -> None:
    if count >= most:
        error = UnavailableError(f"there are too many {what}", expected=f"at most {most}", actual=count)
        error.may_have_been_applied = False
        raise error
