"""The settings of one source (cluster, job, task), and the precedence between several."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_sources.host_ranges import expand_addresses
from aioflow.net.cluster_spec import ClusterSpec

CLUSTER, JOB, TASK = "cluster", "job", "task"
AUTO: Final = "auto"
_ALONE: Final = "the cluster"  # origin of a setting that follows because only one task fits
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The settings from one place. A setting that the place lacks is None.

    Attributes:
        said: Returns the origin of a setting ("cluster", "job", "task"), for messages.
        cluster: A cluster as `ClusterSpec` accepts it. Addresses may have ranges, and lists may be given as one text.
        job: Name of the job.
        task: Index of the task.
    """

    said: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | None = None


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """The settings from a caller or a file. A setting that is not given is None.

    Attributes:
        said: As for `SettingsSource`.
        cluster: As for `SettingsSource`.
        job: As for `SettingsSource`.
        task: A number, or "auto" to read it from the environment.
        slurm_jobs: Number of tasks of each job, if the cluster is the current Slurm job.
        slurm_port: Port of the first task of each host under Slurm; never None.
    """

    said: Callable[[str], str]
    cluster: Any = None
    job: str | None = None
    task: int | str | None = None
    slurm_jobs: Mapping[str, int] | None = None
    slurm_port: int = 0


class ClusterTask(NamedTuple):
    """A task of a cluster, with the origin of each setting.

    Attributes:
        cluster: The cluster.
        job_name: Name of the job.
        task_index: Index of the task.
        came_from: Origin of "cluster", "job" and "task"; "the cluster" if only one task fits.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    came_from: Mapping[str, str]

    def is_told_by(self, prefix: str) -> bool:
        """Return True if all settings come from sources whose names start with `prefix`, or follow from those."""
        return all(source == _ALONE or source.startswith(prefix) for source in self.came_from.values())

    def __str__(self) -> str:
        said = ", ".join(f"{setting} from {source}" for setting, source in self.came_from.items())
        return f"job {self.job_name}, task {self.task_index} ({said})"


def believed(sources: Sequence[SettingsSource]) -> ClusterTask:
    """Combine the sources into one task. The first source that defines a setting takes precedence.

    If a source names a job, its task index counts only for that job.

    Raises:
        InvalidArgumentError: the cluster or task is not defined or malformed, or the cluster has no such task.
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
    # An index in a source with another job belongs to that job.
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
            "the job and task do not identify one task of the cluster",
            expected=f"a job and task of {_brief(spec)} ({CLUSTER} from {came_from[CLUSTER]})",
            actual=f"{_said('job', job, came_from[JOB])}, {_said('task', index, came_from[TASK])}",
        )
    return ClusterTask(spec, found[0].job, found[0].number, came_from)


def _spec(source: SettingsSource) -> ClusterSpec:
    try:
        cluster = source.cluster
        if isinstance(cluster, Mapping):
            cluster = {job: _expanded(tasks) for job, tasks in cluster.items()}
        return ClusterSpec(cluster)
    except InvalidArgumentError as error:
        where = source.said(CLUSTER)
        raise type(error)(f"{where}: {error.message}", expected=error.expected, actual=error.actual) from error


def _expanded(tasks: object) -> object:
    if isinstance(tasks, str):
        return expand_addresses(tasks)
    if isinstance(tasks, list | tuple) and all(isinstance(address, str) for address in tasks):
        return [found for address in tasks for found in expand_addresses(address)]
    if isinstance(tasks, Mapping) and all(isinstance(key, str) and _NUMBER.fullmatch(key) for key in tasks):
        return {int(key): address for key, address in tasks.items()}  # JSON and TOML keys are always strings
    return tasks


def _said(setting: str, value: object, source: str) -> str:
    return f"no {setting}" if value is None else f"{setting} {value} ({source})"


def _brief(spec: ClusterSpec) -> str:
    return ", ".join(f"{job} (0 to {max(spec.task_indices(job), default=-1)})" for job in spec.jobs) or "no jobs"
