"""A cluster that this program has started, as a training script sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.errors import DeadlineExceededError, OpError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, Task, comm_address
from aioflow.net.credentials import Credentials
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.runtime.worker import WorkerState

__all__ = ["StartedCluster", "TaskStatus"]

_HEALTH_SECONDS: Final = 5.0


@dataclass(slots=True)
class TaskStatus:
    """A task, as far as its supervisor knows.

    Attributes:
        address: Where it serves, "host:port": the same for as long as the cluster lives.
        state: "begins", "serves", or "lost" if it will not be started again.
        node, pid: The machine and the process; "" and 0 before there was one.
        restarts: How often it was started again.
    """

    address: str
    state: str = "begins"
    node: str = ""
    pid: int = 0
    restarts: int = 0


class StartedCluster:
    """The tasks, where they are, and how they are.

    Attributes:
        spec: Who is where.
        credentials: By what a client proves itself to them: sessions of this program need not be told, those of others
            do. Whoever has them cannot say that he is one of the tasks.
        tasks: Each task by its full name.
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
        """What a session is opened with: the first task of the first job, by the names of the jobs."""
        return self.target_of(*next(self.spec.tasks()))

    def target_of(self, job_name: str, task_index: int = 0) -> str:
        """The same for a task of one's choice. Raises UnknownNameError."""
        return f"aioflow://{self.spec.task_address(job_name, task_index)}"

    def status_of(self, job_name: str, task_index: int = 0) -> TaskStatus:
        """How a task is. Raises UnknownNameError."""
        self.spec.task_address(job_name, task_index)
        return self.tasks[Task(job_name, task_index).name]

    async def health(self, seconds: float = _HEALTH_SECONDS) -> Mapping[str, WorkerState | OpError]:
        """What each task says of itself, or why it says nothing, as of `Session.health`.

        Raises:
            UnavailableError: nobody can be reached, each within so many seconds.
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
