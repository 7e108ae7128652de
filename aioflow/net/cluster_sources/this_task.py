"""The cluster and task of this process, from arguments, then a file, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aioflow.arguments import check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_sources.environment import numbered_task, tf_config
from aioflow.net.cluster_sources.slurm import FIRST_PORT, slurm
from aioflow.net.cluster_sources.sources import (
    AUTO,
    CLUSTER,
    JOB,
    TASK,
    ClusterTask,
    GivenSettings,
    SettingsSource,
    believed,
)
from aioflow.net.cluster_sources.toml_file import read_toml
from aioflow.net.cluster_spec import ClusterSpec

_ARGUMENTS: Final[Mapping[str, str]] = {CLUSTER: "cluster", JOB: "job_name", TASK: "task_index"}


def cluster_task(
    cluster: ClusterSpec | Mapping[str, Any] | None = None,
    job_name: str | None = None,
    task_index: int | str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    slurm_jobs: Mapping[str, int] | None = None,
    slurm_port: int = FIRST_PORT,
    environment: Mapping[str, str] | None = None,
) -> ClusterTask:
    """Return the cluster and task of this process, from arguments, a file, or the environment.

        task = aioflow.distributed.cluster_task()
        server = aioflow.train.Server(task.cluster, task.job_name, task.task_index)

    Replaces TensorFlow's `TFConfigClusterResolver` and `SlurmClusterResolver`. Precedence: arguments, then the file,
    then `TF_CONFIG`.

    Args:
        cluster: A cluster as `train.ClusterSpec` accepts it; addresses may have ranges, "job-{0..3}.svc:2222".
        job_name: Name of the job. May be omitted if only one task fits.
        task_index: Index of the task, or "auto" for the number in `JOB_COMPLETION_INDEX` (a Kubernetes indexed Job) or
            `SLURM_PROCID`. May be omitted if only one task fits.
        config: A TOML file (docs/cluster.md).
        slurm_jobs: Number of tasks of each job, if the cluster is the current Slurm job.
        slurm_port: Port of the first task of each host under Slurm.
        environment: Environment variables; `os.environ` by default.

    Raises:
        InvalidArgumentError: the cluster or task is not defined, or malformed; the message names the source.
        NotFoundError: the file cannot be read.
    """
    if task_index is not None and task_index != AUTO:
        check_whole(task_index, "task_index", 0)
    given = [GivenSettings(_ARGUMENTS.__getitem__, cluster, job_name, task_index, slurm_jobs, slurm_port)]
    if config is not None:
        given.append(read_toml(Path(config)).given)
    return find_task(given, os.environ if environment is None else environment)


def find_task(given: Sequence[GivenSettings], environment: Mapping[str, str]) -> ClusterTask:
    """Return the task that these settings define; earlier ones take precedence, the environment is last.

    Raises as `cluster_task`.
    """
    sources: list[SettingsSource] = []
    for one in given:
        if one.cluster is not None and one.slurm_jobs is not None:
            raise InvalidArgumentError(
                "two clusters are given",
                expected="a cluster, or the jobs that Slurm has started",
                actual=one.said(CLUSTER),
            )
        sources.append(_source(one, sources, environment))
        if one.slurm_jobs is not None and all(source.cluster is None for source in sources):
            sources.append(slurm(one.slurm_jobs, environment, one.slurm_port))
    # `TF_CONFIG` is not even parsed if everything is defined, so that a malformed one does no harm.
    if any(_lacks(sources, setting) for setting in (CLUSTER, JOB, TASK)):
        said = tf_config(environment)
        sources += [] if said is None else [said]
    return believed(sources)


def _source(given: GivenSettings, before: Sequence[SettingsSource], environment: Mapping[str, str]) -> SettingsSource:
    task, said = given.task, given.said
    if task == AUTO:
        if given.slurm_jobs is not None or not _lacks(before, TASK):
            task = None  # Slurm or an earlier source defines it
        else:
            task, name = numbered_task(environment)
            return SettingsSource(
                lambda setting: name if setting == TASK else said(setting), given.cluster, given.job, task
            )
    return SettingsSource(said, given.cluster, given.job, task if isinstance(task, int) else None)


def _lacks(sources: Sequence[SettingsSource], setting: str) -> bool:
    return all(getattr(source, setting) is None for source in sources)
