"""Which task of which cluster this process is: arguments, then a file, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aioflow.checks.numbers import check_whole
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_sources.environment import numbered_task, tf_config
from aioflow.net.cluster_sources.slurm import FIRST_PORT, slurm
from aioflow.net.cluster_sources.sources import AUTO, CLUSTER, JOB, TASK, ClusterTask, Given, Source, believed
from aioflow.net.cluster_sources.toml_file import read_toml
from aioflow.net.cluster_spec import ClusterSpec

__all__ = ["ClusterTask", "cluster_task", "find_task"]

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
    """Which task of which cluster this process is, as its arguments, a file, or its environment say.

        task = aioflow.distributed.cluster_task()
        server = aioflow.train.Server(task.cluster, task.job_name, task.task_index)

    It stands for TensorFlow's `TFConfigClusterResolver` and `SlurmClusterResolver`. Arguments are believed before the
    file, and the file before `TF_CONFIG`.

    Args:
        cluster: As `train.ClusterSpec` takes it; addresses may have ranges, "job-{0..3}.svc:2222".
        job_name, task_index: Which task. "auto" is the number in `JOB_COMPLETION_INDEX` (a Kubernetes indexed Job) or
            `SLURM_PROCID`. May be left out where only one fits.
        config: A TOML file (docs/cluster.md).
        slurm_jobs: How many tasks each job has: the cluster is what Slurm has started.
        slurm_port: Of the first task of each host.
        environment: `os.environ` by default.

    Raises:
        InvalidArgumentError: nobody says which cluster or task, or what they say is malformed; the message names who.
        NotFoundError: the file cannot be read.
    """
    if task_index is not None and task_index != AUTO:
        check_whole(task_index, "task_index", 0)
    given = [Given(_ARGUMENTS.__getitem__, cluster, job_name, task_index, slurm_jobs, slurm_port)]
    if config is not None:
        given.append(read_toml(Path(config)).given)
    return find_task(given, os.environ if environment is None else environment)


def find_task(given: Sequence[Given], environment: Mapping[str, str]) -> ClusterTask:
    """The task that these speak of, the first one first, and then the environment. Raises as `cluster_task`."""
    sources: list[Source] = []
    for one in given:
        if one.cluster is not None and one.slurm_jobs is not None:
            raise InvalidArgumentError(
                "two clusters are given",
                expected="one, or the jobs of what Slurm has started",
                actual=one.said(CLUSTER),
            )
        sources.append(_source(one, sources, environment))
        if one.slurm_jobs is not None and all(source.cluster is None for source in sources):
            sources.append(slurm(one.slurm_jobs, environment, one.slurm_port))
    if any(_lacks(sources, setting) for setting in (CLUSTER, JOB, TASK)):
        said = tf_config(environment)
        sources += [] if said is None else [said]
    return believed(sources)


def _source(given: Given, before: Sequence[Source], environment: Mapping[str, str]) -> Source:
    task, said = given.task, given.said
    if task == AUTO:
        if given.slurm_jobs is not None or not _lacks(before, TASK):
            task = None  # which Slurm says, or somebody has said
        else:
            task, name = numbered_task(environment)
            return Source(lambda setting: name if setting == TASK else said(setting), given.cluster, given.job, task)
    return Source(said, given.cluster, given.job, task if isinstance(task, int) else None)


def _lacks(sources: Sequence[Source], setting: str) -> bool:
    return all(getattr(source, setting) is None for source in sources)
