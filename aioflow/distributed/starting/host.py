"""What it takes to run the tasks of a cluster somewhere: on this machine as processes, or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aioflow.distributed.starting.jobs import Job
from aioflow.net.cluster_spec import ClusterSpec, Task
from aioflow.net.credentials import Credentials

__all__ = ["Host", "Running", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be started.

    Attributes:
        jobs: What the tasks are.
        credentials: By what they prove themselves to one another, and to clients.
        allow_dirs: The folders in which graphs may open files on every task.
        imports: Modules that each task imports, which register ops.
        max_restarts: How often a task is started again; -1 for any number of times.
        drain_seconds: For the steps that run when the cluster is to end.
    """

    jobs: Mapping[str, Job]
    credentials: Credentials
    allow_dirs: Sequence[str] = ()
    imports: Sequence[str] = ()
    max_restarts: int = 3
    drain_seconds: float = 10.0


class Running(NamedTuple):
    """The process of a task.

    Attributes:
        node: The machine, as whoever runs it there calls it.
        pid: Its number there.
    """

    node: str
    pid: int


class Host(Protocol):
    """Where tasks run. All methods are called on one event loop, and any number at a time."""

    async def place(self, seconds: float) -> Mapping[Task, str]:
        """Find a place for each task, and an address that it keeps: it is begun there again, whatever befalls it.

        Raises:
            DeadlineExceededError: there are not enough within so many seconds.
            OpError: there are none.
        """

    async def begin(self, task: Task, spec: ClusterSpec) -> Running:
        """Have a task serve, for the first time or again, and return when it does.

        Raises:
            OpError: it cannot, and will not: the task is lost.
        """

    async def ended(self, task: Task) -> None:
        """Return when the task serves no more. Raises OpError: it is lost."""

    async def drain(self, task: Task) -> None:
        """Have a task begin no more steps, and end when those that run have."""

    async def close(self) -> None:
        """End whatever is left, at once."""
