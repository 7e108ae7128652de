"""The workers of a cluster, for a session: the client plans, has each worker register its parts, and runs steps.

The session's target is one of the workers and knows the addresses of the others. All connections belong to the cluster
and to one event loop; a worker forgets the session when its connection ends. The next step that needs a lost connection
opens it again and registers its parts again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final, TypeVar

from aioflow.arguments import check_number
from aioflow.compiler.ir import Plan
from aioflow.compiler.messages import unanswered
from aioflow.config import SessionConfig
from aioflow.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    OpError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.graph.device_spec import task_of
from aioflow.net.chance import fresh_number
from aioflow.net.channel import Channel, ServiceRequest
from aioflow.net.client_task import ClientTask
from aioflow.net.cluster_spec import ClusterSpec, comm_address
from aioflow.net.comm import CommOptions, bare
from aioflow.net.credentials import Credentials, credentials_at
from aioflow.net.links import Hub, Link, within
from aioflow.net.messages import settings_of
from aioflow.net.outbox import ValueMessage
from aioflow.net.remote_step import RemoteStep, Standing, Way, outcomes
from aioflow.net.resource_directory import Resource, coordinator_of
from aioflow.net.server import client_options, is_of_this_process, own_server, target_address
from aioflow.net.status import ServerStatus
from aioflow.net.step_table import Origin
from aioflow.runtime.cluster import Home
from aioflow.runtime.step import root_cause
from aioflow.runtime.worker import Worker, WorkerState
from aioflow.sync.background import Background

T = TypeVar("T")

# Step ids are request numbers, too, which must be below 2**62.
_STEP_BITS: Final = 57
_CONNECT_SECONDS: Final = 2.0
_OWN_JOB: Final = "client"
_AWAY: Final = (UnavailableError, DeadlineExceededError)


def _random_step() -> int:
    return fresh_number(_STEP_BITS)


@contextmanager
def _before_the_step() -> Iterator[None]:
    """Mark errors of the block as raised before the step began: nothing has been applied."""
    try:
        yield
    except OpError as error:
        error.may_have_been_applied = False
        raise


async def _opened(link: Link, patience: float) -> None:
    await link.open(patience)


@contextmanager
def _one_error(seconds: float) -> Iterator[None]:
    """Raise an error of the block that means "not reachable" without its causes, which its message contains."""
    try:
        yield
    except _AWAY as error:
        found = bare(error)
        found.expected = f"an answer within {seconds:g} s"
        raise found from None


class RemoteCluster:
    """The workers of the cluster that a target belongs to (`runtime.cluster.Cluster`).

    Args:
        target: "aioflow://host:port".
        timeout: Connection timeout for a worker that is needed, in seconds.
        connect_timeout: Seconds to wait for the target at first contact; by default `timeout`.
        options: Options of the connections.
        credentials: Credentials for both ends, used if `options` is not given. Default: those of the cluster if this
            process started it, else those of the environment.
        step_ids: Returns the id of each new step.

    Attributes:
        pins, settings, on_move: As in `Cluster`; the settings are the server's.

    Raises:
        InvalidArgumentError: the target is malformed.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = _CONNECT_SECONDS,
        connect_timeout: float | None = None,
        options: CommOptions | None = None,
        credentials: Credentials | None = None,
        step_ids: Callable[[], int] = _random_step,
    ) -> None:
        check_number(timeout, "the timeout of a worker")
        self._patience = timeout if connect_timeout is None else connect_timeout
        self._address = target_address(target)
        self._target = target
        self._step_ids = step_ids
        self.pins: dict[str, str] = {}
        self.settings: SessionConfig | None = None
        origin = Origin(self._take, self._connection)
        known = credentials or credentials_at(self._address)
        self._hub = Hub(options or client_options(known), timeout, origin, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._links: dict[str, Link] = {}  # by task; the target's first
        self._own: ClientTask | None = None
        self._resolved: dict[Resource, str] = {}  # devices of resources, agreed on by the whole cluster
        self._moves = 0  # number of times that resources were found to have moved
        self.on_move: list[Callable[[], Awaitable[None]]] = []

    @property
    def devices(self) -> Sequence[str]:
        """Full names of all devices; those of the target's task first.

        Raises:
            FailedPreconditionError: called before `connect`.
        """
        if not self._links:
            raise FailedPreconditionError(
                f"the devices of {self._target} are not known yet",
                expected="a session that was entered by `async with` or has run a step",
                actual="not connected",
            )
        return tuple(device for link in self._links.values() for device in link.devices)

    @property
    def home(self) -> frozenset[str]:
        """Names of the devices in this process, including the client's own."""
        here = [link.devices for link in self._links.values() if is_of_this_process(link.address)]
        return frozenset(device for devices in (*here, self._client.devices) for device in devices)

    @property
    def files(self) -> frozenset[str]:
        """Names of the devices of tasks on which graphs may open files, as far as is known."""
        return frozenset(name for link in self._links.values() if link.opens_files for name in link.devices)

    @property
    def own(self) -> str:
        """Name of the client's own device."""
        return self._client.devices[0]

    @property
    def worker(self) -> Worker:
        """Not available, since there are several workers: raises UnimplementedError."""
        raise UnimplementedError(
            "the workers of the session run in other processes", expected="a local session", actual=self._target
        )

    def keep_checkpoints_in(self, folder: str | os.PathLike[str]) -> None:
        """Let the target open files in that folder, if it is a server of this program."""
        server = own_server(self._address)
        if server is not None:
            server.worker.folders.allow(folder)

    def background(self, session: int) -> Background:
        """Return a new group for the session's tasks in this process."""
        return Background()

    def forget(self, session: int) -> None:
        """Do nothing: the workers forget the session when its connections end."""

    # -- connections --------------------------------------------------------------------------------------------------

    async def connect(self, others: bool = True, wait: float | None = None) -> None:
        """Connect to the target and look up the tasks of its cluster. Idempotent.

        A task that is not reachable yet is assumed to have one CPU; it must be reachable when a plan first needs it. On
        failure or cancellation, no connection is left open.

        Args:
            others: Whether to wait for the tasks other than the target. Their names are known in any case.
            wait: Seconds to keep trying while the target is not reachable; by default `connect_timeout`.

        Raises:
            UnavailableError, DeadlineExceededError: the target cannot be reached. The error has no causes.
            FailedPreconditionError: the session has been used on another event loop.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._require_loop()
        if not self._links:
            async with self._connecting:
                # Another caller may have connected while this one waited for the lock.
                if not self._links:
                    # Again: the previous holder of the lock resets it if it fails.
                    self._loop = asyncio.get_running_loop()
                    patience = self._patience if wait is None else wait
                    try:
                        with _one_error(patience), _before_the_step():
                            self._links = await self._find_all(others, patience)
                    except BaseException:
                        self._loop = None
                        raise

    async def reach(self, wait: float | None) -> None:
        """Wait until all tasks of the cluster are connected, as `Cluster.reach`.

        Raises:
            UnavailableError, DeadlineExceededError: a task cannot be reached. The others may stay connected.
        """
        clock = asyncio.get_running_loop().time
        seconds = self._patience if wait is None else wait
        until = clock() + seconds
        await self.connect(others=False, wait=seconds)
        self._require_loop()
        left = max(0.0, until - clock())
        with _one_error(seconds), _before_the_step():
            try:
                async with asyncio.TaskGroup() as tg:
                    for link in self._links.values():
                        tg.create_task(_opened(link, left))
            except BaseExceptionGroup as group:
                raise root_cause(group) from None

    def _require_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise FailedPreconditionError(
                f"the session on {self._target} belongs to the event loop on which it was first used",
                expected="that event loop",
                actual="another event loop",
            )

    def next_step(self) -> int:
        """Return the id of a new step. Raises FailedPreconditionError on another event loop than the session's."""
        self._require_loop()
        return self._step_ids()

    async def _find_all(self, wait: bool, patience: float) -> dict[str, Link]:
        target = Link(self._hub, self._address)
        links = [target]
        try:
            hello = await target.open(patience)
            if hello is None:
                raise InternalError("another caller has already opened the connection to the target")
            settings = settings_of(hello.settings)
            spec = ClusterSpec({job: dict(tasks) for job, tasks in hello.cluster.items()})
            others = [task for task in spec.tasks() if task.name != hello.task]
            links += [Link(self._hub, comm_address(spec.task_address(*task)), task.name) for task in others]
            for outcome in await outcomes(link.open(0.0) for link in links[1:] if wait):
                if isinstance(outcome, BaseException) and not isinstance(outcome, _AWAY):
                    raise outcome
        except BaseException:
            async with AsyncExitStack() as closing:
                for link in links:
                    closing.push_async_callback(link.close)
            raise
        self.settings = settings
        return {link.task: link for link in links}

    @property
    def _client(self) -> ClientTask:
        if self._own is None:
            jobs = {link.task.split("/")[1].removeprefix("job:") for link in self._links.values()}
            job = _OWN_JOB
            # The cluster may have a job of that name.
            while job in jobs:
                job += "_"
            self._own = ClientTask(f"/job:{job}/replica:0/task:0", self._link, self._hub.connections)
        return self._own

    def _link(self, task: str) -> Link:
        found = self._links.get(task)
        if found is None:
            raise InternalError("no such task", expected=list(self._links), actual=task)
        return found

    def _way(self, task: str) -> Way:
        return self._client if task == self._client.task else self._link(task)

    def _take(self, message: ValueMessage) -> None:
        self._client.take(message)

    def _connection(self, task: str) -> Channel | None:
        link = self._links.get(task)
        return None if link is None else link.connection

    def _deliver(self, request: ServiceRequest) -> None:
        self._client.deliver(request)

    # -- plans --------------------------------------------------------------------------------------------------------

    async def register(self, plan: Plan, session: int, config: SessionConfig) -> RemoteStep:
        """Register each part with its worker.

        Raises:
            OpError: a worker refuses or cannot be reached; the first cause. Parts registered by other workers are
                forgotten.
        """
        # A step without fetches and targets has one part, which has no task.
        ways = [(self._way(part.task), part) for part in plan.parts.values() if part.task]
        # Remote parts first, so that their messages are in transit while the others compute.
        ways.sort(key=lambda pair: is_of_this_process(pair[0].address))
        standing, quiet = self._standing(), unanswered(plan)
        step = RemoteStep(ways, config, self._hub.timeout, self._hub.connections, standing, quiet)
        with _before_the_step():
            await step.open()
        return step

    async def resolve(self, homes: Mapping[Home, str]) -> Mapping[Home, str]:
        """Resolve the devices of resources, as `Cluster.resolve`.

        Raises:
            UnavailableError: the coordinator of the resource directory cannot be reached.
        """
        new = {Resource(*key): device for key, device in homes.items() if key not in self._resolved}
        if new:
            with _before_the_step():
                await self._ask_coordinator(new)
        return {key: self._resolved[Resource(*key)] for key in homes}

    async def _ask_coordinator(self, asked: Mapping[Resource, str]) -> None:
        """Resolve these resources using only tasks that this client has reached, so that it notices their restarts."""
        coordinator = self._link(coordinator_of(list(self._links)))
        try:
            while True:
                await coordinator.open(self._hub.timeout)
                known = {link.task: link.restarts for link in self._links.values() if link.is_known}
                devices = await coordinator.resolve(list(asked), list(asked.values()))
                # Owners that were not reached before, or restarted meanwhile: connect to them, and resolve again.
                strange = [link for link in self._homes(devices) if known.get(link.task) != link.restarts]
                if not strange:
                    break
                for link in strange:
                    await link.open(self._hub.timeout)
        except _AWAY as error:
            if not coordinator.is_open:
                error.message += f"; {coordinator.task} coordinates the resource directory of the cluster"
            raise
        moved = any(
            self._resolved.get(resource, device) != device for resource, device in zip(asked, devices, strict=True)
        )
        self._resolved.update(zip(asked, devices, strict=True))
        if moved:
            self._moves += 1
            self.pins.clear()
            for drop in self.on_move:
                await drop()

    def _homes(self, devices: Iterable[str]) -> list[Link]:
        """Return the links to the tasks that devices belong to."""
        return [self._links[task] for task in dict.fromkeys(map(task_of, devices)) if task in self._links]

    def _standing(self) -> Standing:
        """Return the conditions under which a step that is made now stays valid."""
        moves = self._moves
        return Standing(self._resolve_again, lambda: moves == self._moves)

    async def _resolve_again(self, tasks: Collection[str]) -> None:
        """Resolve the resources of restarted tasks again: other clients may have moved them in the meantime."""
        asked = {resource: device for resource, device in self._resolved.items() if task_of(device) in tasks}
        if asked:
            await self._ask_coordinator(asked)

    async def reset(self, containers: Sequence[str] | None) -> None:
        """Drop the resources of these containers, or of all, on every connected worker. Raises UnavailableError."""
        await self.connect()
        for link in self._links.values():
            if link.is_open:
                await link.worker.reset(containers)

    async def health(self, seconds: float) -> Mapping[str, WorkerState | OpError]:
        """Return the state of each worker, or the error that prevented it, as `Cluster.health`.

        Raises:
            UnavailableError, DeadlineExceededError: the target has never been reached.
        """
        return await self._of_all(seconds, Link.state)

    async def status(self, seconds: float) -> Mapping[str, ServerStatus | OpError]:
        """Return the status of each task's server, or the error that prevented it. Raises as `health`."""
        return await self._of_all(seconds, Link.status)

    async def _of_all(
        self, seconds: float, ask: Callable[[Link, float], Coroutine[object, object, T]]
    ) -> dict[str, T | OpError]:
        check_number(seconds, "the timeout of an answer", "a number of seconds", above=0)
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        async with within(seconds, self._target):
            await self.connect(others=False)
        left = max(0.0, until - clock())
        found = await outcomes(ask(link, left) for link in self._links.values())
        answers: dict[str, T | OpError] = {}
        for task, outcome in zip(self._links, found, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, OpError):
                raise outcome
            answers[task] = outcome
        return answers

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all connections; the workers then forget the session."""
        # An exit stack runs all of its callbacks, the last one first, even if some raise.
        async with AsyncExitStack() as closing:
            for link in self._links.values():
                closing.push_async_callback(link.close)
            closing.push_async_callback(self._hub.connections.close)
            if self._own is not None:
                closing.push_async_callback(self._own.close)

    def stop(self) -> None:
        """Start closing without waiting."""
        self._hub.connections.stop()
