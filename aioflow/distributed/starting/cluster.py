"""The handle of a cluster that this program has started: targets for sessions, status and health of the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.errors import DeadlineExceededError, OpError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, TaskId, comm_address
from aioflow.net.credentials import Credentials
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.runtime.worker import WorkerState

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
