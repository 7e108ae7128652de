"""Clusters that a program starts and supervises: the part that is the same for all hosts of tasks.

A host is this machine with processes (`distributed/processes.py`), or another place (`distributed/ray.py`). The tasks
are started on it, restarted when they end, and ended with the block.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from aioflow.arguments import brief, check_number, check_whole, wrong_kind
from aioflow.config import SessionConfig
from aioflow.errors import DeadlineExceededError, DTypeError, InvalidArgumentError, OpError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, TaskId, comm_address
from aioflow.net.credentials import Credentials, introduced
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.net.remote_step import outcomes
from aioflow.runtime.worker import WorkerState

# ── the tasks of a cluster, before their addresses are known ──────────────────────────────────────────────────────────


_STANDS_FOR: Final = "0.0.0.0:0"  # placeholder for an address that is not known yet


@dataclass(frozen=True, slots=True)
class Job:
    """The tasks of a job, which are all alike.

    Attributes:
        count: Number of tasks.
        num_cpus: Processors to reserve for each task, as Ray counts them; processes do not reserve any.
        num_gpus: GPUs that each task has to itself; with Ray also a fraction, such as 0.5.
        resources: Further resources for Ray to reserve for each task, {name: amount}.
        cpu_devices: Number of CPU devices of each task.

    Raises:
        InvalidArgumentError: a number is out of range.
        DTypeError: a value is not a number.
    """

    count: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    cpu_devices: int = 1

    def __post_init__(self) -> None:
        check_whole(self.count, "Job.count", 1)
        check_whole(self.cpu_devices, "Job.cpu_devices", 1)
        amounts: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        for name, amount in (amounts | dict(self.resources)).items():
            check_number(amount, f"Job: {name}")
            if amount < 0:
                raise InvalidArgumentError(f"Job: {name} is out of range", expected="at least 0", actual=amount)


Jobs: TypeAlias = Mapping[str, int | Job]


def read_jobs(jobs: Jobs) -> dict[str, Job]:
    """Return the jobs in the order of a ClusterSpec. A number stands for a job with that many tasks.

    Raises:
        InvalidArgumentError: there are no jobs, or a name is not a valid job name.
        DTypeError: a value is neither a number nor a Job.
    """
    given: object = jobs
    if not isinstance(given, Mapping):
        raise DTypeError("malformed jobs of a cluster", expected="{job: number of tasks}", actual=brief(given))
    if not given:
        raise InvalidArgumentError("a cluster without tasks", expected="at least one job", actual=given)
    found: dict[str, Job] = {}
    # A ClusterSpec sorts its jobs, too.
    for name, job in sorted(given.items()):
        if not isinstance(job, Job):
            # True is an int, but no number of tasks.
            if isinstance(job, bool) or not isinstance(job, int):
                raise wrong_kind(job, f"the job {name!r}", "a number of tasks, or a Job")
            job = Job(job)
        found[name] = job
    # Made only to check the names of the jobs.
    ClusterSpec({name: [_STANDS_FOR] for name in found})
    return found


def tasks_of(jobs: Mapping[str, Job]) -> list[TaskId]:
    """Return all tasks, job by job."""
    return [TaskId(name, index) for name, job in jobs.items() for index in range(job.count)]


def device_count(job: Job) -> dict[str, int]:
    """Return the devices for `SessionConfig.device_count`: no GPUs if the job requests none, visible or not."""
    # GPU: 0 states that none is used, even if the process sees some.
    found = {"CPU": job.cpu_devices} if job.num_gpus else {"CPU": job.cpu_devices, "GPU": 0}
    return dict(SessionConfig(device_count=found).device_count)


# ── the interface of a host that runs the tasks ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The tasks to start.

    Attributes:
        jobs: The tasks of each job.
        credentials: Credentials of the tasks, for each other and for clients.
        allow_dirs: Folders in which graphs may open files on every task.
        imports: Modules that register ops, which each task imports.
        max_restarts: Maximum number of restarts of a task; -1 for no limit.
        drain_seconds: Time for steps that run when the cluster is to end.
    """

    jobs: Mapping[str, Job]
    credentials: Credentials
    allow_dirs: Sequence[str] = ()
    imports: Sequence[str] = ()
    max_restarts: int = 3
    drain_seconds: float = 10.0


class TaskProcess(NamedTuple):
    """The process of a task.

    Attributes:
        node: Machine, by the name that the host uses.
        pid: Number of the process there.
    """

    node: str
    pid: int


class Host(Protocol):
    """A place where tasks run. All methods are called on one event loop, and concurrently."""

    async def place(self, seconds: float) -> Mapping[TaskId, str]:
        """Find a place and a permanent address for each task: it is always started again at this address.

        Raises:
            DeadlineExceededError: there are not enough places within `seconds`.
            OpError: there are no places.
        """

    async def begin(self, task: TaskId, spec: ClusterSpec) -> TaskProcess:
        """Start serving a task, for the first time or again, and return when it serves.

        Raises:
            OpError: the task is lost: it cannot be started again.
        """

    async def ended(self, task: TaskId) -> None:
        """Wait until the task serves no more. Raise OpError if it is lost."""

    async def drain(self, task: TaskId) -> None:
        """Make a task accept no more steps, and end when its running steps have ended."""

    async def close(self) -> None:
        """End all that is left at once."""


# ── the cluster, as a training script uses it ─────────────────────────────────────────────────────────────────────────


_HEALTH_SECONDS: Final = 5.0


@dataclass(slots=True)
class TaskStatus:
    """The supervisor's knowledge of a task.

    Attributes:
        address: Address at which it serves, "host:port": the same for the lifetime of the cluster.
        state: "begins", "serves", or "lost" if it will not be started again.
        node: Its machine; "" before the first start.
        pid: Its process; 0 before the first start.
        restarts: Number of restarts.
    """

    address: str
    state: str = "begins"
    node: str = ""
    pid: int = 0
    restarts: int = 0


class StartedCluster:
    """The tasks of a cluster, their addresses and their status.

    Attributes:
        spec: The addresses of all tasks.
        credentials: Credentials for clients of the tasks. Sessions of this program find them themselves; sessions of
            other programs need them. They do not suffice to pose as a task.
        tasks: The status of each task by its full name.
    """

    def __init__(self, spec: ClusterSpec, credentials: Credentials) -> None:
        self.spec = spec
        self.credentials = credentials
        self.tasks: Mapping[str, TaskStatus] = {
            task.name: TaskStatus(spec.task_address(*task)) for task in spec.tasks()
        }

    def __repr__(self) -> str:
        states = ", ".join(f"{task}: {status.state}" for task, status in self.tasks.items())
        return f"<StartedCluster {states}>"

    @property
    def target(self) -> str:
        """The target for a session: the first task of the first job, by the names of the jobs."""
        return self.target_of(*next(self.spec.tasks()))

    def target_of(self, job_name: str, task_index: int = 0) -> str:
        """Return the target for a session at this task. Raise UnknownNameError if there is no such task."""
        return f"aioflow://{self.spec.task_address(job_name, task_index)}"

    def status_of(self, job_name: str, task_index: int = 0) -> TaskStatus:
        """Return the status of a task. Raise UnknownNameError if there is no such task."""
        # Called only for its UnknownNameError.
        self.spec.task_address(job_name, task_index)
        return self.tasks[TaskId(job_name, task_index).name]

    async def health(self, seconds: float = _HEALTH_SECONDS) -> Mapping[str, WorkerState | OpError]:
        """Return the state that each task reports, or the error of one that does not answer, as `Session.health` does.

        Raises:
            UnavailableError: no task can be reached; each is tried for `seconds`.
        """
        last: OpError = UnavailableError("the cluster has no tasks")
        for task in self.spec.tasks():
            remote = RemoteCluster(comm_address(self.spec.task_address(*task)), credentials=self.credentials)
            try:
                return await remote.health(seconds)
            except (UnavailableError, DeadlineExceededError) as error:
                last = error
            finally:
                await remote.close()
        raise UnavailableError(f"no task of the cluster can be reached: {last.message}") from last


# ── supervision ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Each task of the cluster has one asyncio task that starts it, waits until it has ended, and starts it again at the
# same address. So the other tasks and all sessions find it where it was; the number of its process tells them that its
# variables are gone. The block would wait forever for a task that is lost for good, so such a task ends the block with
# an error.


_LOGGER: Final = logging.getLogger("aioflow.distributed")
_END_SECONDS: Final = 15.0  # after the time for the steps, for tasks to end


def cluster_request(
    jobs: Jobs,
    *,
    credentials: Credentials | None,
    allow_dirs: Iterable[str | os.PathLike[str]],
    imports: Iterable[str],
    max_restarts: int,
    drain_seconds: float,
) -> ClusterRequest:
    """Return the tasks to start.

    Without `credentials`, the tasks get those of the environment, or else a new secret.

    Raises:
        InvalidArgumentError: a value is out of range.
        DTypeError: a value has the wrong type.
    """
    check_whole(max_restarts, "max_restarts", -1)
    check_number(drain_seconds, "drain_seconds", "a number of seconds")
    known = Credentials.from_environment() if credentials is None else credentials
    # Without a secret anyone on the machine could use the tasks.
    if not known.prove:
        known = Credentials(secrets.token_hex(32).encode())
    return ClusterRequest(
        read_jobs(jobs), known, tuple(map(str, allow_dirs)), tuple(imports), max_restarts, drain_seconds
    )


@asynccontextmanager
async def supervised(
    host: Host, request: ClusterRequest, *, timeout: float, may_lose: Collection[str]
) -> AsyncIterator[StartedCluster]:
    """Yield a cluster that runs for the duration of the block.

    Args:
        host: Host on which the tasks run.
        request: The tasks to start.
        timeout: Time limit in seconds for the start of all tasks.
        may_lose: Jobs whose tasks may be lost without ending the block.

    Raises:
        DeadlineExceededError: not all tasks serve in time.
        OpError: a task cannot be started, or is lost for good.
        InvalidArgumentError: `timeout` is out of range, or `may_lose` names an unknown job.
    """
    check_number(timeout, "the start timeout", "a number of seconds", above=0)
    unknown = sorted(set(may_lose) - set(request.jobs))
    if unknown:
        raise InvalidArgumentError("may_lose names unknown jobs", expected=list(request.jobs), actual=unknown)
    clock = asyncio.get_running_loop().time
    until = clock() + timeout
    # Stays empty if no place was found: there is nothing to drain then.
    placed: list[TaskId] = []
    try:
        addresses = await host.place(timeout)
        placed += addresses
        # Clients get a secret that does not suffice to pose as a task.
        known = request.credentials if request.credentials.secret is None else request.credentials.client()
        supervisor = _Supervisor(host, StartedCluster(_spec(addresses), known), may_lose)
        # From now on sessions of this program find the credentials by the address.
        with introduced(map(comm_address, addresses.values()), known):
            async with supervisor.supervising():
                # Finding the places has used part of the time limit.
                await supervisor.all_serve(until - clock())
                yield supervisor.cluster
    finally:
        try:
            with suppress(TimeoutError):  # `close` kills tasks that do not drain in time
                async with asyncio.timeout(request.drain_seconds + _END_SECONDS):
                    await outcomes(host.drain(task) for task in placed)
        finally:
            await host.close()


def _spec(addresses: Mapping[TaskId, str]) -> ClusterSpec:
    jobs: dict[str, dict[int, str]] = {}
    for task, address in addresses.items():
        jobs.setdefault(task.job, {})[task.number] = address
    return ClusterSpec(jobs)


class _Supervisor:
    """Supervises all tasks, each in an asyncio task of its own."""

    def __init__(self, host: Host, cluster: StartedCluster, may_lose: Collection[str]) -> None:
        self.cluster = cluster
        self._host = host
        self._may_lose = may_lose
        self._lost: Exception | None = None
        self._serving = {task: asyncio.Event() for task in cluster.spec.tasks()}

    async def all_serve(self, seconds: float) -> None:
        """Wait until each task serves. Raise DeadlineExceededError, which names the tasks that do not."""
        try:
            async with asyncio.timeout(seconds):
                for event in self._serving.values():
                    await event.wait()
        except TimeoutError as error:
            late = [task.name for task, event in self._serving.items() if not event.is_set()]
            raise DeadlineExceededError(
                "not all tasks started serving in time", expected="all", actual=f"not {late}"
            ) from error

    @asynccontextmanager
    async def supervising(self) -> AsyncIterator[None]:
        """Supervise the tasks while the block runs. Raise the error of a lost task, or else the block's own."""
        raised: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                supervising = [group.create_task(self._supervise(task)) for task in self._serving]
                try:
                    yield
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    for each in supervising:
                        # Supervision runs forever, so the group ends only with its cancellation.
                        each.cancel()
        # The group wraps every error; the caller expects the lost task's error, or the one that the block raised.
        except BaseExceptionGroup:
            if self._lost is None and raised is None:
                raise
        else:
            return
        if self._lost is not None:  # a lost task cancels the block, unless the block has failed before
            raise self._lost from (None if isinstance(raised, asyncio.CancelledError) else raised)
        if raised is not None:
            raise raised

    async def _supervise(self, task: TaskId) -> None:
        status, spec = self.cluster.tasks[task.name], self.cluster.spec
        try:
            while True:
                running = await self._host.begin(task, spec)
                # The first start is not a restart.
                status.restarts += status.pid != 0
                status.state, (status.node, status.pid) = "serves", running
                self._serving[task].set()
                _LOGGER.info("%s serves at %s: process %d of %s", task.name, status.address, status.pid, status.node)
                await self._host.ended(task)
                status.state = "begins"
                _LOGGER.warning("%s has ended", task.name)
        except Exception as error:  # not only errors of the task: the host may fail
            status.state = "lost"
            # A task that never served was not lost in training: the cluster could not be started.
            if isinstance(error, OpError) and task.job in self._may_lose and self._serving[task].is_set():
                _LOGGER.warning("%s is lost; training continues without it: %s", task.name, error.message)
                return
            self._lost = error
            raise
