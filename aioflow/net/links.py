"""The ways from a client to the tasks of its cluster: each is a connection, which is made anew when it was lost, or a
server of the same process, which is used without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from aioflow.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, UnavailableError
from aioflow.net.channel import Channel, Reply, Request, Taker
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.errors_codec import decode_error
from aioflow.net.homes import Resource
from aioflow.net.messages import ABORT, DELIVER, WANTED, Abort, Hello, Wanted, WhetherWanted, parse
from aioflow.net.own_process import loop_lag
from aioflow.net.past_sessions import past_sessions
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.server import Server, find_server, own_server, start_own
from aioflow.net.server_status import ServerStatus
from aioflow.net.step_table import Origin
from aioflow.net.task_worker import WorkerSession
from aioflow.net.transports import connect
from aioflow.runtime.worker import WorkerState
from aioflow.sync.background import Background

__all__ = ["Hub", "Link", "within"]

_PAUSE: Final = 0.05  # seconds between attempts to connect


@dataclass(frozen=True, slots=True)
class Hub:
    """What the links of one client share.

    Attributes:
        options: Of the connections.
        timeout: Seconds in which a task that is needed must let itself be reached.
        origin: The client, for a server of this process.
        on_deliver: Takes one that comes by a connection.
        peers: For each task the number of its process; the links keep it up to date.
        connections: Holds the connections.
    """

    options: CommOptions
    timeout: float
    origin: Origin
    on_deliver: Taker
    peers: dict[str, int] = field(default_factory=dict)
    connections: Background = field(default_factory=Background)


class Link:
    """The way to one task.

    Args:
        address: Of its comm.
        task: Its full name; "" for the target of the session, whoever is there. A server of this process and event loop
            is used without a connection if it is the target.

    Attributes:
        devices: Their full names, of who was there last; a task that has not been reached counts as one with a CPU.
        restarts: How many times another process was found at its end than before.
        is_told: Whether somebody has been told of the last of these.
        is_known: Whether the task has been reached, so that a restart from now on is noticed.
    """

    def __init__(self, hub: Hub, address: str, task: str = "") -> None:
        self.task = task
        self.devices: tuple[str, ...] = (f"{task}/device:CPU:0",)
        self.restarts = 0
        self.is_told = True
        self._hub = hub
        self.address = address
        self._is_target = not task
        self._lock = asyncio.Lock()
        self._incarnation = 0
        self._opens_files = False
        self._channel: Channel | None = None
        self._worker: RemoteWorker | None = None
        self._server: Server | None = None
        self._session: WorkerSession | None = None

    @property
    def is_open(self) -> bool:
        """Whether the task can be asked right now, as far as is known."""
        worker = self._session or self._worker
        return worker is not None and worker.is_open

    @property
    def opens_files(self) -> bool:
        """Whether graphs may open any files on it, as far as is known."""
        here = own_server(self.address)  # which may have been given a folder since
        return self._opens_files if here is None else bool(here.worker.folders)

    @property
    def is_known(self) -> bool:
        return self._incarnation != 0

    @property
    def worker(self) -> RemoteWorker | WorkerSession:
        """The worker of the task. Raises UnavailableError before it was reached."""
        found = self._session or self._worker
        if found is None:
            raise UnavailableError(f"{self.task} has not been reached")
        return found

    @property
    def channel(self) -> Channel:
        """The connection. Raises UnavailableError where there is none."""
        if self._channel is None:
            raise UnavailableError(f"there is no connection to {self.task}")
        return self._channel

    @property
    def connection(self) -> Channel | None:
        """The connection, if there is one."""
        return self._channel

    async def settle(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """As `Homes.settle`, of the task at the end. Raises UnavailableError."""
        if self._server is not None:
            return await self._server.homes.settle(resources, devices)
        if self._worker is None:
            raise UnavailableError(f"{self.task} has not been reached")
        return await self._worker.settle(resources, devices)

    async def state(self, seconds: float) -> WorkerState:
        """How the worker is, within so many seconds.

        Raises:
            OpError: it cannot be reached, or does not answer.
        """
        async with within(seconds, self.task):
            await self.open(0.0)
            return await self.worker.state()

    async def status(self, seconds: float) -> ServerStatus:
        """How the server is, within so many seconds.

        Raises:
            OpError: it cannot be reached, or does not answer.
        """
        async with within(seconds, self.task):
            await self.open(0.0)
            if self._server is not None:
                return replace(self._server.status(), lag=await loop_lag())
            if self._worker is None:
                raise UnavailableError(f"{self.task} has not been reached")
            return await self._worker.status()

    def tell(self) -> None:
        """Raises AbortedError, once: the task was restarted."""
        if not self.is_told:
            self.is_told = True
            raise self.restarted()

    def restarted(self) -> AbortedError:
        """The error of those whose step meets another process than the one before."""
        error = AbortedError(
            f"{self.task} was restarted, and what it kept is gone: its variables have to be restored or initialized"
        )
        error.may_have_been_applied = False
        return error

    async def open(self, patience: float) -> Hello | None:
        """Make the way, unless it is there; returns what the task says of itself if it was made now.

        Args:
            patience: Seconds in which one who is not there yet may come.

        Raises:
            UnavailableError, DeadlineExceededError: the task cannot be reached.
            FailedPreconditionError: another task is at the address.
        """
        if self.is_open:
            return None
        async with self._lock:
            return await self._make(patience)

    async def _make(self, patience: float) -> Hello | None:
        if self.is_open:  # somebody else has made it meanwhile
            return None
        await self._leave()
        server = find_server(self.address) if self._is_target else None
        return await (self._join(server) if server is not None else self._connect(patience))

    async def _join(self, server: Server) -> Hello:
        self._session, self._server = await server.open_session(self._hub.peers, self._hub.origin), server
        hello = server.hello()
        self._met(hello, server.incarnation)
        return hello

    async def _connect(self, patience: float) -> Hello:
        await start_own(self.address)
        comm = await self._reach(patience)
        takers = {DELIVER: self._hub.on_deliver, ABORT: self._on_abort}
        channel = Channel(comm, {WANTED: self._is_wanted}, takers)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        options = self._hub.options
        patience = options.heartbeat * options.misses * 2 / 3
        here = own_server(self.address)  # another process may have its port, if it has not been started
        home = here is not None and here.incarnation == comm.peer_incarnation
        worker = RemoteWorker(channel, self._hub.peers, patience=patience, home=home)
        try:
            holder = await self._hub.connections.start(_hold(channel, opened, worker))
            holder.add_done_callback(lambda _: opened.cancel())
            await asyncio.wait([opened])
            if opened.cancelled():
                raise UnavailableError("the session is closed")
            hello = await self._introduced(worker)
            self._met(hello, comm.peer_incarnation)
        except BaseException:
            comm.abort("the worker has not introduced itself")
            raise
        self._channel, self._worker = channel, worker
        return hello

    async def _introduced(self, worker: RemoteWorker) -> Hello:
        past = past_sessions()
        past.told(self.address, [self._hub.options.incarnation])  # one that could not be set up is tried again
        ended = past.at(self.address)
        hello = await worker.hello(ended)
        past.told(self.address, ended)
        return hello

    async def _reach(self, patience: float) -> Comm:
        clock = asyncio.get_running_loop().time
        until = clock() + patience
        while True:
            try:
                peer = self.task or self.address
                return await connect(self.address, self._hub.timeout, self._hub.options, peer=peer)
            except DeadlineExceededError as error:  # not the caller's limit: nobody is there, whoever does not say so
                raise UnavailableError(f"{peer} cannot be reached: {error.message}") from error
            except UnavailableError:
                if clock() + _PAUSE > until:
                    raise
            await asyncio.sleep(_PAUSE)

    def _met(self, hello: Hello, incarnation: int) -> None:
        if self.task not in ("", hello.task):
            raise FailedPreconditionError(
                "the server at an address of the cluster is another task's", expected=self.task, actual=hello.task
            )
        if self._incarnation not in (0, incarnation):
            self.restarts += 1
            self.is_told = False
        self.task, self._incarnation = hello.task, incarnation
        self.devices = tuple(hello.devices)
        self._opens_files = hello.files
        self._hub.peers[hello.task] = incarnation

    async def _is_wanted(self, request: Request) -> Reply:
        step = parse(Wanted, request.header).step
        return Reply(WhetherWanted(self._worker is not None and self._worker.wants(step))._asdict())

    def _on_abort(self, request: Request) -> None:
        asked = parse(Abort, request.header)
        if self._worker is not None:
            self._worker.failed(asked.step, decode_error(asked.error, request.peer))

    async def close(self) -> None:
        """End what is left of the way, which is not made again."""
        if self._incarnation and self._server is None:
            past_sessions().add(self.address, self._hub.options.incarnation)
        await self._leave()

    async def _leave(self) -> None:
        if self._channel is not None:
            self._channel.comm.abort("the connection is not used any more")
            self._channel = self._worker = None
        session, self._session, self._server = self._session, None, None
        if session is not None:
            await session.close()


@asynccontextmanager
async def within(seconds: float, peer: str) -> AsyncIterator[None]:
    """A block that takes no longer. Raises DeadlineExceededError, which names the peer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(f"{peer} has not answered within {seconds:g} s") from error


async def _hold(channel: Channel, opened: asyncio.Future[None], worker: RemoteWorker) -> None:
    """Keep a connection until it ends, which the worker's steps are told, or this is cancelled."""
    await channel.open()
    if not opened.done():
        opened.set_result(None)
    try:
        worker.ended(await channel.wait_ended())
    finally:
        await channel.close()
