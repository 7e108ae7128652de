"""The interface of a host that runs the tasks of a cluster: this machine with processes, or another place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aioflow.distributed.starting.jobs import Job
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials


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
