"""The tasks of each job of a cluster and their addresses, as plain data (TensorFlow's `train.ClusterSpec`)."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aioflow.errors import DTypeError, InvalidArgumentError, UnknownNameError
from aioflow.graph.device_spec import DeviceSpec
from aioflow.net.addresses import split_address, split_host

_SCHEME: Final = "tcp"  # for addresses without a scheme
_MOST_TASKS: Final = 1 << 16


class TaskId(NamedTuple):
    """One process of a cluster."""

    job: str
    number: int

    @property
    def name(self) -> str:
        """The full name, "/job:J/replica:0/task:T", which is the prefix of its devices' names."""
        return DeviceSpec(self.job, 0, self.number).to_string()


def parse_task(name: str) -> TaskId:
    """Return the task of this full name. Raises InvalidArgumentError."""
    spec = DeviceSpec.from_string(name)
    if spec.job is None or spec.task is None:
        raise InvalidArgumentError("not the name of a task", expected="/job:J/replica:0/task:T", actual=name)
    return TaskId(spec.job, spec.task)


def comm_address(address: str) -> str:
    """Return the comm address of a task's address, "host:port" or with a scheme. Raises InvalidArgumentError."""
    if "://" not in address:
        address = f"{_SCHEME}://{address}"
    scheme, place = split_address(address)
    if scheme == _SCHEME:
        split_host(place)
    return address


def free_addresses(count: int) -> list[str]:
    """Return addresses "127.0.0.1:port" at which nothing listens now, for a cluster on this machine."""
    with ExitStack() as stack:
        # All sockets stay open until the end, so that no port is returned twice.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


class ClusterSpec:
    """The tasks of a cluster, by job.

    Args:
        cluster: Another ClusterSpec, or a mapping from each job to a list of addresses "host:port", or to a dictionary
            of addresses by task index, which may have gaps.

    Raises:
        DTypeError: the argument, or the tasks of a job, have another type.
        InvalidArgumentError: an address or the name of a job is malformed.
    """

    def __init__(self, cluster: ClusterSpec | Mapping[str, Any]) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs: Mapping[str, Mapping[int, str]] = cluster._jobs
            return
        if not isinstance(cluster, Mapping):
            raise DTypeError("not a cluster", expected="{job: addresses}", actual=repr(cluster))
        jobs = {job: MappingProxyType(_addresses(job, tasks)) for job, tasks in sorted(cluster.items())}
        self._jobs = MappingProxyType(jobs)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as in TensorFlow: specs compare by value

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Return, for each job, the list of its addresses, or a dictionary by task index if there are gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of a job. Raises UnknownNameError."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of a job's tasks, in order. Raises UnknownNameError."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of a task. Raises UnknownNameError."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise UnknownNameError(f"job {job_name!r} has no such task", expected=sorted(tasks), actual=task_index)
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of a job's tasks by index, with None for gaps. Raises UnknownNameError."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def tasks(self) -> Iterator[TaskId]:
        """Return an iterator over all tasks, job by job."""
        return (TaskId(job, index) for job, tasks in self._jobs.items() for index in tasks)

    def at(self, task: TaskId, address: str) -> ClusterSpec:
        """Return a copy of the cluster with another address for a task."""
        jobs = {job: dict(tasks) for job, tasks in self._jobs.items()}
        jobs[task.job][task.number] = address
        return ClusterSpec(jobs)

    def _job(self, name: str) -> Mapping[int, str]:
        if name not in self._jobs:
            raise UnknownNameError("no such job", expected=f"one of {self.jobs}", actual=name)
        return self._jobs[name]


def _addresses(job: object, tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        found = dict(sorted(tasks.items()))
    elif isinstance(tasks, Sequence) and not isinstance(tasks, str):
        found = dict(enumerate(tasks))
    else:
        raise DTypeError("not the tasks of a job", expected="a list or dictionary", actual=repr(tasks))
    fits = all(type(i) is int and 0 <= i < _MOST_TASKS and isinstance(a, str) for i, a in found.items())
    if not fits:
        raise DTypeError("not the tasks of a job", expected="addresses by index", actual=repr(tasks))
    # Raises if the job's name cannot be part of a device name.
    parse_task(TaskId(str(job), 0).name)
    for address in found.values():
        comm_address(address)
    return found
