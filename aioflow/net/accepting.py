"""The connections of a listener. Each has its own task, owned by the block in which the listener listens.

Tasks of the cluster and clients have separate limits, so that neither can crowd out the other. If the clients' limit is
reached, the connection that has been idle longest is evicted, first among those without state here. An evicted client
may connect again. Its variables are kept; state that its nodes keep themselves (such as that of random numbers) is
lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from types import TracebackType
from typing import Final, Self

from aioflow.errors import UnavailableError
from aioflow.net.comm import Comm, CommOptions, Handler, Idle

_IDLE: Final = "the connection was idle the longest, and is closed in favor of another client"


class Connections:
    """The accepted connections. Each comm has a task that runs the handler and then closes or aborts the comm.

    If a handler fails, its connection ends and the event loop's exception handler receives the error. Leaving the block
    cancels handlers that still run.
    """

    def __init__(self, handler: Handler, options: CommOptions) -> None:
        self._handler = handler
        self._options = options
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: set[Comm] = set()
        self._clients: dict[Comm, None] = {}
        self._hosts: Counter[str] = Counter()  # client connections per host
        # Candidates for eviction as of the last scan, the next one last.
        self._idle: list[tuple[Idle, int, Comm]] = []

    def admit(self, comm: Comm) -> None:
        """Run the handler for a comm.

        Raises:
            UnavailableError: a limit is reached, and no idle connection can be evicted.
        """
        if comm.peer_is_task:
            _require(len(self._peers), self._options.peers, "connections of tasks")
            self._peers.add(comm)
        else:
            # Loopback connections are limited only in total.
            if comm.host:
                _require(self._hosts[comm.host], self._options.connections_per_host, f"connections from {comm.host}")
            self._make_room()
            self._clients[comm] = None
            self._hosts[comm.host] += 1
        task = self.run(self._serve(comm))
        task.add_done_callback(lambda _: self._leave(comm))
        # A task that is cancelled before it starts does not close the comm.
        task.add_done_callback(lambda _: comm.abort("the handler has ended"))

    def _leave(self, comm: Comm) -> None:
        self._peers.discard(comm)
        if comm in self._clients:
            del self._clients[comm]
            self._hosts[comm.host] -= 1
            self._hosts += Counter()  # drops entries with a count of zero

    def _make_room(self) -> None:
        """Evict an idle client if the limit is reached."""
        most = self._options.connections
        if len(self._clients) < most:
            return
        longest = self._longest_idle()
        if longest is None:
            _require(len(self._clients), most, "connections of clients, none of which is idle")
            return
        # Now, not when its task ends: its place is for the new connection.
        self._leave(longest)
        error = UnavailableError(_IDLE, expected=f"at most {most} connections of clients")
        error.may_have_been_applied = False  # unanswered requests have not been started
        longest.close_with(error)

    def _longest_idle(self) -> Comm | None:
        # Scan all connections only when the last scan's candidates are used up: a scan per arrival would be too slow.
        for _ in range(2):
            while self._idle:
                idle, _, comm = self._idle.pop()
                # The candidate may have left, or been used, since the scan.
                if comm in self._clients and comm.idle() == idle:
                    return comm
            # `pop` returns the smallest `Idle`, and of equal ones the oldest connection.
            found = ((comm.idle(), index, comm) for index, comm in enumerate(self._clients))
            self._idle = sorted(((idle, -index, comm) for idle, index, comm in found if idle is not None), reverse=True)
        return None

    def run(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a task, which must never raise. Leaving the block cancels it."""
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
        # Exit without the error: otherwise TaskGroup would wrap it in an exception group, though no task here raises.
        await self._group.__aexit__(None, None, None)


def _require(count: int, most: int, what: str) -> None:
    if count >= most:
        error = UnavailableError(f"too many {what}", expected=f"at most {most}", actual=count)
        error.may_have_been_applied = False
        raise error
