"""What one place says of the cluster, the job and the task, and who is believed where several do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_sources.host_ranges import expand_addresses
from aioflow.net.cluster_spec import ClusterSpec

__all__ = ["AUTO", "ClusterTask", "Given", "Source", "believed"]

CLUSTER, JOB, TASK = "cluster", "job", "task"
AUTO: Final = "auto"
_ALONE: Final = "the cluster"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Source:
    """What one place says; None where it says nothing.

    Attributes:
        said: Where it says a setting ("cluster", "job", "task"), for messages.
        cluster: As `ClusterSpec` takes it; an address may have ranges, and a text is as good as a list.
    """

    said: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller or a file says; None where it says nothing.

    Attributes:
        said, cluster, job: As of `Source`.
        task: A number, or "auto": the environment has it.
        slurm_jobs: How many tasks each job has of what Slurm has started: that is the cluster.
        slurm_port: Of the first task of each host.
    """

    said: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | str | None = None
    slurm_jobs: Mapping[str, int] | None = None
    slurm_port: int = 0


class ClusterTask(NamedTuple):
    """One task of a cluster, as it was found.

    Attributes:
        came_from: For "cluster", "job" and "task" who said so; "the cluster" where only one fits.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    came_from: Mapping[str, str]

    def is_told_by(self, prefix: str) -> bool:
        """Whether all is said by sources whose names begin so, or follows from that."""
        return all(source == _ALONE or source.startswith(prefix) for source in self.came_from.values())

    def __str__(self) -> str:
        said = ", ".join(f"{setting} from {source}" for setting, source in self.came_from.items())
        return f"job {self.job_name}, task {self.task_index} ({said})"


def believed(sources: Sequence[Source]) -> ClusterTask:
    """The task that the sources speak of. For each setting the first one that has it is believed; but the task's number
    in one that names a job is a number of that job, and counts for no other.

    Raises:
        InvalidArgumentError: nobody says which cluster or which task, or it is malformed.
        NotFoundError: there is no such job or task.
    """
    of_cluster = next((source for source in sources if source.cluster is not None), None)
    if of_cluster is None:
        raise InvalidArgumentError(
            "no cluster is given",
            expected="--cluster, --config or --slurm (or the argument of cluster_task), or TF_CONFIG",
        )
    spec = _spec(of_cluster)
    of_job = next((source for source in sources if source.job is not None), None)
    job = None if of_job is None else of_job.job
    fitting = (source for source in sources if source.task is not None and job in (None, source.job or job))
    of_task = next(fitting, None)
    index = None if of_task is None else of_task.task
    came_from = {
        CLUSTER: of_cluster.said(CLUSTER),
        JOB: _ALONE if of_job is None else of_job.said(JOB),
        TASK: _ALONE if of_task is None else of_task.said(TASK),
    }
    found = [task for task in spec.tasks() if job in (None, task.job) and index in (None, task.number)]
    if len(found) != 1:
        raise InvalidArgumentError(
            "which task of the cluster is this?",
            expected=f"a job and task of {_brief(spec)} ({CLUSTER} from {came_from[CLUSTER]})",
            actual=f"{_said('job', job, came_from[JOB])}, {_said('task', index, came_from[TASK])}",
        )
    return ClusterTask(spec, found[0].job, found[0].number, came_from)


def _spec(source: Source) -> ClusterSpec:
    try:
        cluster = source.cluster
        if isinstance(cluster, Mapping):
            cluster = {job: _expanded(tasks) for job, tasks in cluster.items()}
        return ClusterSpec(cluster)
    except InvalidArgumentError as error:
        where = source.said(CLUSTER)
        raise type(error)(f"{where}: {error.message}", expected=error.expected, actual=error.actual) from error


def _expanded(tasks: Any) -> Any:
    if isinstance(tasks, str):
        return expand_addresses(tasks)
    if isinstance(tasks, list | tuple) and all(isinstance(address, str) for address in tasks):
        return [found for address in tasks for found in expand_addresses(address)]
    if isinstance(tasks, Mapping) and all(isinstance(key, str) and _NUMBER.fullmatch(key) for key in tasks):
        return {int(key): address for key, address in tasks.items()}  # in JSON and TOML all keys are texts
    return tasks


def _said(setting: str, value: object, source: str) -> str:
    return f"no {setting}" if value is None else f"{setting} {value} ({source})"


def _brief(spec: ClusterSpec) -> str:
    return ", ".join(f"{job} (0 to {max(spec.task_indices(job), default=-1)})" for job in spec.jobs) or "no jobs"
