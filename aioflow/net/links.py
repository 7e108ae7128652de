"""The links from a client to the tasks of its cluster.

A link is a connection, which is reopened if it is lost, or a server of the same process, which is used directly. A
new connection lists the closed sessions of this process (`PastSessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakKeyDictionary

from aioflow.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, UnavailableError
from aioflow.net.channel import Channel, Reply, ServiceRequest, Taker
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.errors_codec import decode_error
from aioflow.net.messages import ABORT, DELIVER, WANTED, Abort, Hello, Wanted, WhetherWanted, parse
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.resource_directory import Resource
from aioflow.net.server import Server, find_server, own_server, start_own
from aioflow.net.status import ServerStatus, loop_lag
from aioflow.net.step_table import Origin
from aioflow.net.task_worker import WorkerSession
from aioflow.net.transports import connect
from aioflow.runtime.worker import WorkerState
from aioflow.sync.background import Background

# ── the closed sessions of this process, for workers that may not know yet that they are closed ───────────────────────
#
# The message that closes a session may be lost, or may take longer than the next session takes to connect. A step of
# the first session that still runs would then be applied after the second has restored a checkpoint, and be counted
# twice. So each new connection lists the sessions of its process that have ended since the previous one.

_REMEMBERED: Final = 64  # session numbers per address


class PastSessions:
    """Numbers of closed sessions, by the addresses of the workers they were connected to."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[int, None]] = {}

    def add(self, address: str, number: int) -> None:
        """Record that a session has ended and will not connect again."""
        numbers = self._numbers.setdefault(address, {})
        numbers[number] = None
        if len(numbers) > _REMEMBERED:
            del numbers[next(iter(numbers))]

    def at(self, address: str) -> list[int]:
        """Return the closed sessions that the worker at an address has not been told of."""
        return list(self._numbers.get(address, ()))

    def acknowledged(self, address: str, numbers: list[int]) -> None:
        """Remove numbers that the worker at the address has acknowledged."""
        left = self._numbers.get(address, {})
        for number in numbers:
            left.pop(number, None)
        if not left:
            self._numbers.pop(address, None)


_PROCESS: Final = PastSessions()
_SIMULATED: Final[WeakKeyDictionary[object, PastSessions]] = WeakKeyDictionary()


def past_sessions() -> PastSessions:
    """Return the closed sessions of this process, or of the simulated process that is running."""
    process: object = None
    with suppress(RuntimeError):  # no event loop is running
        process = getattr(asyncio.get_running_loop(), "process", None)
    return _PROCESS if process is None else _SIMULATED.setdefault(process, PastSessions())


# ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


_PAUSE: Final = 0.05  # seconds between the first two attempts to connect
_GROWTH: Final = 1.5  # of that pause, from one attempt to the next
_LONGEST_PAUSE: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Hub:
    """The state that all links of one client share.

    Attributes:
        options: Settings of the connections.
        timeout: Connection timeout, in seconds.
        origin: The client, as a server of this process identifies it.
        on_deliver: Receives the values that arrive over a connection.
        peers: Incarnation of each task's process, kept up to date by the links.
        connections: Owner of the tasks that hold the connections.
    """

    options: CommOptions
    timeout: float
    origin: Origin
    on_deliver: Taker
    peers: dict[str, int] = field(default_factory=dict)
    connections: Background = field(default_factory=Background)


class Link:
    """The link to one task.

    Args:
        hub: The shared state.
        address: Address of the task's comm.
        task: Full name of the task; "" for the session's target, whichever task that is. If the target is a server of
            this process and event loop, it is used without a connection.

    Attributes:
        devices: Full device names of the task as of its last process; one CPU before the task is first reached.
        restarts: Number of times that another process was found at the address than before.
        is_told: Whether the last restart has been reported.
        is_known: Whether the task has been reached, so that later restarts are noticed.
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
        """True if the task can be called now, as far as is known."""
        worker = self._session or self._worker
        return worker is not None and worker.is_open

    @property
    def opens_files(self) -> bool:
        """True if graphs may open files on the task, as far as is known."""
        here = own_server(self.address)  # it may have been granted a folder after connecting
        return self._opens_files if here is None else bool(here.worker.folders)

    @property
    def is_known(self) -> bool:
        """True if the task has been reached."""
        return self._incarnation != 0

    @property
    def worker(self) -> RemoteWorker | WorkerSession:
        """The worker of the task. Raises UnavailableError if the task has not been reached."""
        found = self._session or self._worker
        if found is None:
            raise UnavailableError(f"not connected to {self.task}")
        return found

    @property
    def channel(self) -> Channel:
        """The connection. Raises UnavailableError if there is no connection."""
        if self._channel is None:
            raise UnavailableError(f"no connection to {self.task}")
        return self._channel

    @property
    def connection(self) -> Channel | None:
        """The connection, or None."""
        return self._channel

    async def resolve(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """Resolve resources at the linked task; see `ResourceDirectory.resolve`. Raises UnavailableError."""
        if self._server is not None:
            return await self._server.homes.resolve(resources, devices)
        if self._worker is None:
            raise UnavailableError(f"not connected to {self.task}")
        return await self._worker.resolve(resources, devices)

    async def state(self, seconds: float) -> WorkerState:
        """Return the state of the worker, within `seconds`.

        Raises:
            OpError: the worker cannot be reached, or does not answer.
        """
        async with within(seconds, self.task):
            await self.open(0.0)
            return await self.worker.state()

    async def status(self, seconds: float) -> ServerStatus:
        """Return the status of the server, within `seconds`.

        Raises:
            OpError: the server cannot be reached, or does not answer.
        """
        async with within(seconds, self.task):
            await self.open(0.0)
            if self._server is not None:
                return replace(self._server.status(), lag=await loop_lag())
            if self._worker is None:
                raise UnavailableError(f"not connected to {self.task}")
            return await self._worker.status()

    def tell(self) -> None:
        """Report a restart of the task: raises AbortedError once per restart."""
        if not self.is_told:
            self.is_told = True
            raise self.restarted()

    def restarted(self) -> AbortedError:
        """Return the error for steps that find a new process of the task."""
        error = AbortedError(f"{self.task} was restarted and lost its state: restore or initialize its variables")
        error.may_have_been_applied = False
        return error

    async def open(self, patience: float) -> Hello | None:
        """Open the link unless it is open. Return the task's description if it was opened now, else None.

        Args:
            patience: Seconds to keep trying while the task is not reachable.

        Raises:
            UnavailableError, DeadlineExceededError: the task cannot be reached.
            FailedPreconditionError: another task is at the address.
        """
        if self.is_open:
            return None
        async with self._lock:
            return await self._make(patience)

    async def _make(self, patience: float) -> Hello | None:
        if self.is_open:  # opened by another task while this one waited for the lock
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
        # Values and aborts are taken on arrival: neither may wait.
        takers = {DELIVER: self._hub.on_deliver, ABORT: self._on_abort}
        channel = Channel(comm, {WANTED: self._is_wanted}, takers)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        options = self._hub.options
        # Less than the dead-peer timeout, as `RemoteWorker` requires.
        patience = options.heartbeat * options.misses * 2 / 3
        # Another process may have that port, if the server of this process has not been started.
        here = own_server(self.address)
        home = here is not None and here.incarnation == comm.peer_incarnation
        worker = RemoteWorker(channel, self._hub.peers, patience=patience, home=home)
        try:
            holder = await self._hub.connections.start(_hold(channel, opened, worker))
            # Ends the wait below if the task is cancelled before it starts.
            holder.add_done_callback(lambda _: opened.cancel())
            # Not `await opened`: if that future is cancelled, it would look like a cancellation of this task.
            await asyncio.wait([opened])
            if opened.cancelled():
                raise UnavailableError("the session is closed")
            hello = await self._introduced(worker)
            self._met(hello, comm.peer_incarnation)
        except BaseException:
            comm.abort("the worker did not complete the handshake")
            raise
        self._channel, self._worker = channel, worker
        return hello

    async def _introduced(self, worker: RemoteWorker) -> Hello:
        past = past_sessions()
        # This session may be listed as ended, if an earlier attempt to set it up failed.
        past.acknowledged(self.address, [self._hub.options.incarnation])
        ended = past.at(self.address)
        hello = await worker.hello(ended)
        # Only after the answer: if the connection fails before, the next one lists these sessions again.
        past.acknowledged(self.address, ended)
        return hello

    async def _reach(self, patience: float) -> Comm:
        clock = asyncio.get_running_loop().time
        began, peer = clock(), self.task or self.address
        least = min(self._hub.timeout, patience) or self._hub.timeout
        pause = _PAUSE
        while True:
            # Later attempts may take longer, for a host that is up but slow.
            limit = max(least, min(clock() - began, began + patience - clock()))
            try:
                return await connect(self.address, limit, self._hub.options, peer=peer)
            except (UnavailableError, DeadlineExceededError) as error:
                left = began + patience - clock()
                if left <= 0 or self._hub.connections.is_closed:
                    if isinstance(error, UnavailableError):
                        raise
                    # The time limit of the attempt, not of the caller: the task is unreachable.
                    raise UnavailableError(f"{peer} cannot be reached: {error.message}") from error
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)

    def _met(self, hello: Hello, incarnation: int) -> None:
        if self.task not in ("", hello.task):
            raise FailedPreconditionError(
                "the server at an address of the cluster runs another task", expected=self.task, actual=hello.task
            )
        if self._incarnation not in (0, incarnation):
            # The variables of the earlier process are lost: `tell` reports that to one step.
            self.restarts += 1
            self.is_told = False
        self.task, self._incarnation = hello.task, incarnation
        self.devices = tuple(hello.devices)
        self._opens_files = hello.files
        self._hub.peers[hello.task] = incarnation

    async def _is_wanted(self, request: ServiceRequest) -> Reply:
        step = parse(Wanted, request.header).step
        return Reply(WhetherWanted(self._worker is not None and self._worker.steps.is_awaited(step))._asdict())

    def _on_abort(self, request: ServiceRequest) -> None:
        asked = parse(Abort, request.header)
        if self._worker is not None:
            self._worker.steps.failed(asked.step, decode_error(asked.error, request.peer))

    async def close(self) -> None:
        """Close the link. It must not be opened again."""
        # A task that was never reached has no step of this session; a server of this process sees its session close.
        if self._incarnation and self._server is None:
            past_sessions().add(self.address, self._hub.options.incarnation)
        await self._leave()

    async def _leave(self) -> None:
        if self._channel is not None:
            self._channel.comm.abort("the connection is no longer used")
            self._channel = self._worker = None
        # Cleared before the await, so that no caller meanwhile finds a session that is closing.
        session, self._session, self._server = self._session, None, None
        if session is not None:
            await session.close()


@asynccontextmanager
async def within(seconds: float, peer: str) -> AsyncIterator[None]:
    """Limit the time of the block. Raises DeadlineExceededError, which names the peer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        # DeadlineExceededError is a TimeoutError, too: one from inside the block passes unchanged.
        if isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(f"{peer} did not answer within {seconds:g} s") from error


async def _hold(channel: Channel, opened: asyncio.Future[None], worker: RemoteWorker) -> None:
    """Keep a connection open until it ends or this task is cancelled, and report its end to the worker's steps."""
    await channel.open()
    if not opened.done():
        opened.set_result(None)
    try:
        worker.steps.connection_ended(await channel.wait_ended())
    finally:
        await channel.close()
