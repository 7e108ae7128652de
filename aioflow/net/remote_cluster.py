"""The workers of a cluster, for a session: the client plans, has each worker register its parts, and runs steps.

The session's target is one of the workers; it knows who the others are. All connections belong to the cluster and to
one event loop, and each worker forgets the session when its connection ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from aioflow.checks.numbers import check_number
from aioflow.compiler.ir import Part, Plan
from aioflow.config import SessionConfig
from aioflow.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.net.channel import Channel
from aioflow.net.cluster_spec import ClusterSpec, Task, comm_address, parse_task
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.messages import Hello, settings_of
from aioflow.net.remote_worker import RemoteWorker
from aioflow.net.server import client_options, find_server, target_address
from aioflow.net.task_worker import WorkerSession
from aioflow.net.transports import connect
from aioflow.runtime.cluster import StepOfParts
from aioflow.runtime.worker import Worker, WorkerAPI
from aioflow.sync.background import Background

__all__ = ["RemoteCluster"]

T = TypeVar("T")

_STEP_BITS: Final = 57
_LOCAL: Final = frozenset({"_PartialFeed", "_PartialFetch"})
_CONNECT_SECONDS: Final = 2.0
_PAUSE: Final = 0.05  # seconds between attempts to connect


def _random_step() -> int:
    return secrets.randbits(_STEP_BITS) or 1


class RemoteCluster:
    """The workers of the cluster that a target belongs to (`runtime.cluster.Cluster`).

    Args:
        target: "aioflow://host:port".
        timeout: Seconds in which a worker that is needed must let itself be reached.
        options: Of the connections.
        step_ids: Gives the id of each step.

    Attributes:
        pins, settings: As `Cluster.pins` and `Cluster.settings`, the server's.

    Raises:
        InvalidArgumentError: the target is malformed.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = _CONNECT_SECONDS,
        options: CommOptions | None = None,
        step_ids: Callable[[], int] = _random_step,
    ) -> None:
        check_number(timeout, "the time limit of a worker")
        self._address = target_address(target)
        self._target = target
        self._timeout = timeout
        self._options = options or client_options()
        self._step_ids = step_ids
        self.pins: dict[str, str] = {}
        self.settings: SessionConfig | None = None
        self._connections = Background()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._cluster = ClusterSpec({})
        self._workers: dict[str, RemoteWorker] = {}
        self._channels: dict[str, Channel] = {}
        self._local: dict[str, WorkerSession] = {}
        self._peers: dict[str, int] = {}
        self._devices: dict[str, tuple[str, ...]] = {}  # by task, that of the target first

    @property
    def devices(self) -> Sequence[str]:
        """Full names of all devices, those of the target's task first.

        Raises:
            FailedPreconditionError: they are not known before `connect`.
        """
        if not self._devices:
            raise FailedPreconditionError(
                f"the devices of {self._target} are not known yet",
                expected="a session that has been entered by `async with`, or has run a step",
                actual="not connected",
            )
        return tuple(device for devices in self._devices.values() for device in devices)

    @property
    def worker(self) -> Worker:
        """There is more than one. Raises UnimplementedError."""
        raise UnimplementedError(
            "the workers of the session are in other processes", expected="a local session", actual=self._target
        )

    def background(self, session: int) -> Background:
        """Tasks of the session that run here."""
        return Background()

    def forget(self, session: int) -> None:
        """Nothing: the workers do so when the connections end."""

    # -- connections --------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Find out who is in the cluster, unless that is known.

        A task that is not there yet counts as one with a CPU; it must be there when a plan first needs it. Where this
        fails or is cancelled, no connection is left open.

        Raises:
            UnavailableError, DeadlineExceededError: the target cannot be reached.
            FailedPreconditionError: the session has been used on another event loop.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._require_loop()
        if not self._devices:
            async with self._connecting:
                if not self._devices:
                    self._loop = asyncio.get_running_loop()  # again: who held the lock may have given up
                    try:
                        await self._find_all()
                    except BaseException:
                        self._hang_up("the session could not be set up")
                        self._loop = None
                        raise

    def _hang_up(self, reason: str) -> None:
        for channel in self._channels.values():
            channel.comm.abort(reason)
        self._channels.clear()
        self._workers.clear()

    def _require_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise FailedPreconditionError(
                f"the session on {self._target} belongs to the event loop on which it was first used",
                expected="the same event loop",
                actual="another one",
            )

    def next_step(self) -> int:
        """The id of a new step. Raises FailedPreconditionError: this is another event loop."""
        self._require_loop()
        return self._step_ids()

    async def _find_all(self) -> None:
        hello = await self._find_target()
        self.settings = settings_of(hello.settings)
        self._cluster = ClusterSpec({job: dict(tasks) for job, tasks in hello.cluster.items()})
        others = [task for task in self._cluster.tasks() if task.name != hello.task]
        found = await _outcomes(map(self._find, others))
        devices = {hello.task: tuple(hello.devices)}
        for task, result in zip(others, found, strict=True):
            if isinstance(result, BaseException):
                raise result
            devices[task.name] = result
        self._devices = devices

    async def _find_target(self) -> Hello:
        server = find_server(self._address)
        if server is not None:
            if server.task not in self._local:
                self._local[server.task] = await server.open_session(self._peers)
            self._peers[server.task] = server.incarnation
            return server.hello()
        return await self._open(await self._reach(self._address, self._target, self._timeout))

    async def _find(self, task: Task) -> tuple[str, ...]:
        """The devices of a task."""
        try:
            hello = await self._open(await self._reach(self._cluster_address(task), task.name, 0.0))
        except (UnavailableError, DeadlineExceededError):
            return (f"{task.name}/device:CPU:0",)
        self._require_task(hello, task.name)
        return tuple(hello.devices)

    def _cluster_address(self, task: Task) -> str:
        return comm_address(self._cluster.task_address(*task))

    async def _reach(self, address: str, name: str, patience: float) -> Comm:
        """Connect; who is not there yet may come within `patience` seconds."""
        clock = asyncio.get_running_loop().time
        until = clock() + patience
        while True:
            try:
                return await connect(address, self._timeout, self._options, peer=name)
            except UnavailableError:
                if clock() + _PAUSE > until:
                    raise
            await asyncio.sleep(_PAUSE)

    async def _open(self, comm: Comm) -> Hello:
        channel = Channel(comm)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._connections.start(_hold(channel, opened))
        except BaseException:
            comm.abort("the session is closed")
            raise
        try:
            await opened
            worker = RemoteWorker(channel, self._peers)
            hello = await worker.hello()
        except BaseException:
            comm.abort("the worker has not introduced itself")
            raise
        self._workers[hello.task], self._channels[hello.task] = worker, channel
        self._peers[hello.task] = comm.peer_incarnation
        return hello

    def _require_task(self, hello: Hello, task: str) -> None:
        if hello.task != task:
            raise FailedPreconditionError(
                "the server at an address of the cluster is another task's", expected=task, actual=hello.task
            )

    async def _worker(self, task: str) -> WorkerAPI:
        """The worker of a task, which must let itself be reached now."""
        if task in self._local:
            return self._local[task]
        channel = self._channels.get(task)
        if channel is not None and channel.error is None:
            return self._workers[task]
        comm = await self._reach(self._cluster_address(parse_task(task)), task, self._timeout)
        if channel is not None:
            restarted = comm.peer_incarnation != self._peers[task]
            comm.abort("the session that it was for is lost")
            happened = "was restarted" if restarted else "was out of reach for a time"
            raise AbortedError(f"{task} {happened}, and has nothing of this session any more: open a new one")
        hello = await self._open(comm)
        self._require_task(hello, task)
        self._devices[task] = tuple(hello.devices)
        return self._workers[task]

    # -- plans --------------------------------------------------------------------------------------------------------

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> StepOfParts:
        """Have every worker prepare its part.

        Raises:
            OpError: one cannot, or cannot be reached; the first cause. What the others have prepared is forgotten.
            UnimplementedError: the plan is of a partial run, whose values meet in the memory of this process.
        """
        if any(node.op in _LOCAL for node in plan.nodes()):
            raise UnimplementedError("a partial run on workers of a cluster", expected="a local session")
        parts = sorted(plan.parts.values(), key=lambda part: part.task in self._local)
        workers = [await self._worker(part.task) for part in parts]

        async def prepare(worker: WorkerAPI, part: Part) -> tuple[WorkerAPI, Part, int]:
            return worker, part, await worker.register(part, session, config)

        results = await _outcomes(prepare(*pair) for pair in zip(workers, parts, strict=True))
        errors = [result for result in results if isinstance(result, BaseException)]
        done = [result for result in results if not isinstance(result, BaseException)]
        if errors:
            for worker, _, handle in done:
                await worker.deregister(handle)
            raise next((error for error in errors if isinstance(error, OpError)), errors[0])
        return StepOfParts(done)

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of the containers, or of all, on every worker that is there. Raises UnavailableError."""
        await self.connect()
        workers: list[WorkerSession | RemoteWorker] = [*self._local.values(), *self._workers.values()]
        for worker in workers:
            await worker.reset(containers)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all connections; the workers forget the session."""
        try:
            await self._connections.close()
        finally:
            for local in self._local.values():
                await local.close()
            self._local.clear()

    def stop(self) -> None:
        """`close` for one who cannot wait."""
        self._connections.stop()


async def _outcomes(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """What each of the calls comes to, its result or its error, when the last one has ended. They run at once."""

    async def outcome(call: Coroutine[Any, Any, T]) -> T | BaseException:
        try:
            return await call
        except (Exception, asyncio.CancelledError) as error:  # where the group is cancelled, it says so itself
            return error

    async with asyncio.TaskGroup() as tg:
        tasks = [tg.create_task(outcome(call)) for call in calls]
    return [task.result() for task in tasks]


async def _hold(channel: Channel, opened: asyncio.Future[Any]) -> None:
    """Keep a connection until it ends or this is cancelled."""
    await channel.open()
    if not opened.done():
        opened.set_result(None)
    try:
        await channel.wait_ended()
    finally:
        await channel.close()
