"""A task of a cluster in this process: its worker, served to clients and other tasks (TensorFlow's `train.Server`).

    async with af.train.Server(cluster, job_name="ps", task_index=0) as server:
        await server.join()

Addresses beyond the loopback are served only with mutual authentication (`aioflow.distributed.Credentials`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from aioflow.arguments import check_number
from aioflow.concurrency.forking import check_process, generation
from aioflow.config import SessionConfig
from aioflow.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.net.addresses import PortReservation, bound_place, join_host, split_address, split_host
from aioflow.net.channel import Channel
from aioflow.net.cluster_spec import ClusterSpec, TaskId, comm_address, parse_task
from aioflow.net.comm import CommOptions, fresh_incarnation
from aioflow.net.credentials import Credentials
from aioflow.net.messages import Hello, settings_document
from aioflow.net.outbox import Outbox
from aioflow.net.resource_directory import Holdings, ResourceDirectory
from aioflow.net.serving import Serving
from aioflow.net.status import Activity, ServerStatus
from aioflow.net.step_table import Origin
from aioflow.net.task_worker import TaskWorker, WorkerSession
from aioflow.net.transports import connect, listen
from aioflow.net.worker_service import WorkerService
from aioflow.protos.session_config import session_config
from aioflow.runtime.device import import_backends
from aioflow.runtime.worker import Worker
from aioflow.sync.background import Background

_LOGGER: Final = logging.getLogger("aioflow.net")
_TARGET: Final = "aioflow"
_HEARTBEAT: Final = 0.45  # seconds
_CONNECT_SECONDS: Final = 2.0

# Servers of this process by the address of their comm.
_SERVERS: Final[weakref.WeakValueDictionary[str, Server]] = weakref.WeakValueDictionary()


def client_options(credentials: Credentials | None = None) -> CommOptions:
    """Return the connection options of clients: a silent worker counts as dead within two seconds."""
    known = Credentials.from_environment() if credentials is None else credentials
    return CommOptions(heartbeat=_HEARTBEAT, misses=3, close_timeout=1.0, credentials=known)


def server_options(credentials: Credentials | None = None) -> CommOptions:
    """Return the connection options of servers, with a long dead-peer timeout."""
    known = Credentials.from_environment() if credentials is None else credentials
    # Many misses: a client's own program may block its event loop, and nothing waits for the client meanwhile.
    return CommOptions(heartbeat=_HEARTBEAT, misses=130, close_timeout=1.0, connections=4096, credentials=known)


def _chosen_options(options: CommOptions | None, credentials: Credentials | None) -> CommOptions:
    if options is None:
        return server_options(credentials)
    # Several servers may be given the same options, but peers tell processes apart by this number.
    number_of_its_own = fresh_incarnation()
    known = options.credentials if credentials is None else credentials
    return replace(options, incarnation=number_of_its_own, credentials=known)


def target_address(target: str) -> str:
    """Return the comm address of a session's target. Raises InvalidArgumentError."""
    scheme, _, place = target.partition("://")
    return comm_address(place if scheme == _TARGET else target)


def _target(address: str) -> str:
    return f"{_TARGET}://{address.removeprefix('tcp://')}" if address.startswith("tcp://") else address


class Server:
    """One task of a cluster.

    Args:
        server_or_cluster_def: The cluster, in any form that `ClusterSpec` accepts.
        job_name, task_index: The task of this server. May be omitted if only one task matches.
        protocol: None or "aioflow".
        config: Devices of the worker (`device_count`) and their settings; also the settings of sessions on this target
            that have no settings of their own. TensorFlow's `ConfigProto` is accepted, too.
        start: Whether the first use in this process starts the server, on the event loop of that use: a session on it
            or on another task of the cluster, a server that sends to it, or `join`. `async with` always starts it.
        options: Options of the connections to the server. Default: `server_options`.
        allow_dirs: Folders, and URLs of folders in stores, in which graphs may open files on this task. Any client that
            can reach the server can then read and write there. By default only the `checkpoint_dir` of monitored
            sessions, supervisors and session managers of this program that have this server as their target.
        credentials: Credentials for mutual authentication with the other tasks and with clients
            (`aioflow.distributed.Credentials`). Default: those of the environment.
        bind: Listening address, "host" or "host:port", if it differs from the address at which others reach the server:
            behind address translation, or 0.0.0.0 in a container. The cluster still names the latter address.

    Attributes:
        worker: The worker, which owns the devices and the variables on them.
        homes: The resource directory of the cluster, if this task is its coordinator; and the resources owned by this
            task.
        cluster: The cluster. Port 0 of this task is replaced by a free port that is reserved for the server.

    Raises:
        InvalidArgumentError, NotFoundError: the task is not in the cluster; `bind` is malformed.
        AlreadyExistsError: another server of this process uses the address and has not been stopped.
        UnavailableError: there is no free port.
        PermissionDeniedError: the port is beyond this machine's loopback and there are no credentials; or the
            credentials are for clients.
        UnimplementedError: there is no such protocol.
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterSpec | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: SessionConfig | None = None,
        start: bool = True,
        *,
        options: CommOptions | None = None,
        allow_dirs: Iterable[str | os.PathLike[str]] = (),
        credentials: Credentials | None = None,
        bind: str | None = None,
    ) -> None:
        if protocol not in (None, _TARGET):
            raise UnimplementedError("no such protocol", expected=_TARGET, actual=protocol)
        self.cluster = ClusterSpec(server_or_cluster_def)
        self._task = _chosen(self.cluster, job_name, task_index)
        self._address = comm_address(self.cluster.task_address(*self._task))
        self._options = _chosen_options(options, credentials)
        if self._options.credentials.is_client:
            raise PermissionDeniedError(
                f"the server of {self.task} has the secret of clients", expected="the cluster's secret"
            )
        self._listens_at = _listening_address(self._address, bind)
        self._reservation = self._reserved()
        asking, shares = client_options(self._options.credentials), self._options.shared_memory
        self._client_options = replace(asking, is_task=True, shared_memory=shares)
        self._starts_itself = start
        self._process = generation()
        self._maker = threading.get_ident()
        self._config = session_config(config)
        self.worker = Worker(self._config, self._task.name, AllowedFolders(allow_dirs))
        limits = self._options.limits
        self.homes = ResourceDirectory(Holdings(self.worker, limits), self._others, self._reach, limits)
        self._background = Background()
        self._home: object = None
        self._serving: Serving | None = None
        self._since = monotonic()
        self._ready: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._enter()

    @staticmethod
    def create_local_server(config: SessionConfig | None = None, start: bool = True) -> Server:
        """Create the server of a cluster with one task, "local", at a free port."""
        return Server({"local": ["127.0.0.1:0"]}, config=config, start=start)

    @property
    def target(self) -> str:
        """Target of a `Session` on this server, in this or another process."""
        return _target(self._address)

    @property
    def incarnation(self) -> int:
        """Number that distinguishes this server from earlier ones at the same address."""
        return self._options.incarnation

    @property
    def task(self) -> str:
        """Full name of the task."""
        return self._task.name

    def hello(self) -> Hello:
        """Return the description of the server that it sends to clients."""
        jobs = {
            # Pairs instead of a map by index: the maps of a header have only texts as keys.
            job: [[index, self.cluster.task_address(job, index)] for index in self.cluster.task_indices(job)]
            for job in self.cluster.jobs
        }
        worker = self.worker
        return Hello(self._task.name, jobs, list(worker.devices), settings_document(self._config), bool(worker.folders))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to listen. Idempotent.

        Raises:
            PermissionDeniedError: the address is beyond this machine's loopback, and there are no credentials.
            AlreadyExistsError: the address is in use.
            UnavailableError: the address does not belong to this machine.
            FailedPreconditionError: the server has been stopped, or runs on another event loop.
        """
        check_process(self._process, f"the server of {self.task}")
        home = _home()
        if self._closing.is_set() or self._home not in (None, home):
            raise FailedPreconditionError(
                f"the server of {self.task} has been stopped, or belongs to another event loop",
                expected="a running or new server of this event loop",
                actual="stopped" if self._closing.is_set() else "another event loop",
            )
        if self._ready is None:
            self._home, self._ready = home, asyncio.get_running_loop().create_future()
            serving = await self._background.start(self._serve(self._ready))
            serving.add_done_callback(self._served)
        # Several callers may wait: a cancelled one must not cancel the start for the others.
        await asyncio.shield(self._ready)

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        try:
            await import_backends()
            async with Outbox(self._reach, confirms=True, most=self._options.limits.unsent_bytes) as outbox:
                tasks = TaskWorker(self.worker, outbox.push, self._is_task, self._options.limits)
                service = WorkerService(tasks, self.hello, self.homes, self.status, lambda: outbox.is_empty)
                self._serving = Serving(tasks, outbox, service)
                async with listen(self._listens_at, service.serve, self._options):
                    ready.set_result(None)
                    await self._closing.wait()
        except OpError as error:
            if not ready.done():
                ready.set_exception(error)

    def _served(self, _: asyncio.Task[None]) -> None:
        """Clean up after the server's task has ended, or was cancelled before it began."""
        if self._ready is not None and not self._ready.done():
            self._ready.cancel()
        if self._serving is not None:
            self._serving.tasks.close()
        self._ended.set()
        self._leave()

    def _reserved(self) -> PortReservation | None:
        """Replace port 0 by a reserved free port, so that the target belongs to this server from the beginning."""
        scheme, place = split_address(self._listens_at)
        if scheme != "tcp":
            return None
        reservation, (host, port) = None, split_host(place)
        if port == 0:
            reservation = PortReservation(host, self._options.credentials.prove)
            self._listens_at, port = comm_address(reservation.place), split_host(reservation.place)[1]
        host, named = split_host(split_address(self._address)[1])
        if named == 0:
            self._address = comm_address(join_host(host, port))
            self.cluster = self.cluster.at(self._task, join_host(host, port))
        return reservation

    def _enter(self) -> None:
        present = _SERVERS.setdefault(self._address, self)
        if present is not self:
            raise AlreadyExistsError(
                f"{present.task} already uses {self._address} in this process",
                expected="another address, or stop the other server",
                actual=self._address,
            )

    def _leave(self) -> None:
        # After a stop, another server may have taken the address.
        if _SERVERS.get(self._address) is self:
            del _SERVERS[self._address]

    def _others(self) -> list[str]:
        return [task.name for task in self.cluster.tasks() if task.name != self.task]

    def _is_task(self, name: str) -> bool:
        return any(task.name == name for task in self.cluster.tasks())

    @asynccontextmanager
    async def _reach(self, task: str) -> AsyncIterator[Channel]:
        address = comm_address(self.cluster.task_address(*parse_task(task)))
        # The task may be a server of this process that starts on first use.
        await start_own(address)
        try:
            comm = await connect(address, _CONNECT_SECONDS, self._client_options, peer=task)
        except DeadlineExceededError as error:
            # The connection's deadline, not the step's: the task is stopped or cut off.
            raise UnavailableError(f"{task} cannot be reached: {error.message}") from error
        async with Channel(comm) as channel:
            yield channel
            # Without an error, the owner of the channel has ended it; in order, the peer has been shut down.
            if channel.error is not None and not channel.in_order:
                _LOGGER.warning("%s has lost %s: %s", self.task, task, channel.error.message)

    def is_here(self) -> bool:
        """Return True if sessions on the running event loop may use the worker without a connection."""
        home = _home()
        return not self._closing.is_set() and (self._home is home or (self._home is None and self._starts_itself))

    def is_of_this_process(self) -> bool:
        """Return True if the server is in this process, on any event loop.

        Simulated processes share one: there, it must be in the one that runs now.
        """
        process: object = None
        with suppress(RuntimeError):  # no event loop is running
            process = getattr(asyncio.get_running_loop(), "process", None)
        return process is None or self._home is process

    async def start_on_use(self) -> None:
        """Start the server if it starts on first use, as `Server(start=)`, and has not been started.

        A server made by another thread is left to that thread's event loop. Raises as `start`.
        """
        is_new = self._home is None and self.is_here()
        if is_new and self._process == generation() and self._maker == threading.get_ident():
            await self.start()

    async def open_session(self, peers: Mapping[str, int], origin: Origin | None = None) -> WorkerSession:
        """Open a session of the worker for a client in this process, and start the server if necessary.

        Args:
            peers: As for `TaskWorker.open_session`.
            origin: As for `TaskWorker.open_session`.
        """
        await self.start()
        if self._serving is None:
            raise FailedPreconditionError(f"the server of {self.task} has been stopped")
        return self._serving.tasks.open_session(peers, origin)

    async def join(self) -> None:
        """Serve until the server is stopped or drained. Cancellation stops it."""
        check_process(self._process, f"the server of {self.task}")
        if self._starts_itself and not self._closing.is_set():
            await self.start()
        try:
            await self._ended.wait()
        finally:
            await self.stop()

    def status(self) -> ServerStatus:
        """Return the state of the server and its activity. Call on its event loop."""
        serving = None if self._ended.is_set() else self._serving
        activity = Activity() if serving is None else serving.activity()
        state = "ended" if self._ended.is_set() else "begins" if serving is None else serving.state
        return ServerStatus(
            self.task, self.target, state, monotonic() - self._since, tuple(self.worker.devices), activity
        )

    async def drain(self, seconds: float) -> None:
        """Refuse new steps, wait for the running ones, and stop the server.

        A refused step fails with an UnavailableError that states that nothing was applied.

        Args:
            seconds: Time for the running steps. After that they are stopped, with an UnavailableError, too.
        """
        check_number(seconds, "the time for running steps", "a number of seconds")
        check_process(self._process, f"the server of {self.task}")
        try:
            if self._serving is not None and not self._closing.is_set():
                await self._serving.drain(seconds)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Close all connections and stop listening; running steps are stopped. Does nothing in a forked child."""
        if self._process != generation():
            return
        self._closing.set()
        # A server that was never started has no task that would set the event.
        if self._ready is None:
            self._ended.set()
        await self._ended.wait()
        await self._background.close()
        self._leave()
        self._reservation = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()


def _chosen(cluster: ClusterSpec, job: str | None, index: int | None) -> TaskId:
    found = [t for t in cluster.tasks() if job in (None, t.job) and index in (None, t.number)]
    if len(found) != 1:
        raise InvalidArgumentError(
            "job_name and task_index do not identify one task of the cluster",
            expected="a job_name and task_index of " + ", ".join(t.name for t in cluster.tasks()),
            actual=(job, index),
        )
    return found[0]


def _listening_address(address: str, bind: str | None) -> str:
    if bind is None:
        return address
    scheme, place = split_address(address)
    if scheme != "tcp":
        raise InvalidArgumentError("bind is for TCP addresses", expected="host:port in the cluster", actual=address)
    return comm_address(bound_place(place, bind))


def _home() -> object:
    """Return the running event loop, or the simulated process if several of them share the loop."""
    loop = asyncio.get_running_loop()
    return getattr(loop, "process", loop)


def find_server(address: str) -> Server | None:
    """Return the server at a comm address that this process and event loop may use without a connection, if any."""
    server = _SERVERS.get(address)
    with suppress(RuntimeError):  # no event loop is running
        return server if server is not None and server.is_here() else None
    return None


def own_server(address: str) -> Server | None:
    """Return this process's server at a comm address, on any event loop, if there is one."""
    server = _SERVERS.get(address)
    return server if server is not None and server.is_of_this_process() else None


async def start_own(address: str) -> None:
    """Start this process's server at a comm address, if there is one, as `Server.start_on_use`."""
    server = _SERVERS.get(address)
    if server is not None:
        await server.start_on_use()


def is_of_this_process(address: str) -> bool:
    """Return True if the server at a comm address is in this process, on any event loop."""
    return own_server(address) is not None
