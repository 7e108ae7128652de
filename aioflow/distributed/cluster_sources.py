"""The cluster and task of this process: Slurm's variables, a TOML file, and the precedence of all sources.

`cluster_task` defines the precedence. `cluster_settings` parses texts and `TF_CONFIG`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aioflow.arguments import brief, check_whole
from aioflow.distributed.cluster_settings import (
    AUTO,
    CLUSTER,
    JOB,
    TASK,
    ClusterTask,
    GivenSettings,
    SettingsSource,
    combine_sources,
    environment_number,
    expand_hostlist,
    numbered_task,
    tf_config,
)
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.formats.toml import TomlTable, parse_document, read_document, require_known, table_of
from aioflow.net.cluster_spec import ClusterSpec

# ── Slurm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The cluster of a Slurm job is found in its environment variables: hosts, tasks per host, and the rank of this process.
# Assumes that ranks fill the hosts in order, which is the default distribution of `srun`. The tasks of one host have
# consecutive ports. The first ranks are the tasks of the first job.


FIRST_PORT: Final = 8888
_RANK: Final = "SLURM_PROCID"
_NODE: Final = "SLURM_NODEID"
# The variables of the step come first, because a step may be only a part of the Slurm job.
_HOSTS: Final = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_COUNT: Final = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_PER_HOST: Final = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_MOST_PORT: Final = 65535
_MOST_TASKS: Final = 1 << 16
_TIMES: Final = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def parse_jobs(text: str) -> dict[str, int]:
    """Return the number of tasks of each job in "ps=1,worker=3". Raises InvalidArgumentError."""
    jobs: dict[str, int] = {}
    for part in text.split(","):
        job, equals, count = part.partition("=")
        if not (job and equals and re.fullmatch(r"[0-9]{1,5}", count)) or job in jobs:
            raise InvalidArgumentError(
                "malformed jobs of a cluster", expected="JOB=COUNT[,…], each job once", actual=brief(text)
            )
        jobs[job] = int(count)
    return jobs


def slurm(jobs: Mapping[str, int], environment: Mapping[str, str], port: int = FIRST_PORT) -> SettingsSource:
    """Return the cluster, and this process's job and task in it.

    Args:
        jobs: Number of tasks of each job, in the order in which ranks are assigned.
        environment: The environment variables.
        port: Port of the first task of each host.

    Raises:
        InvalidArgumentError: not running under Slurm, the numbers of tasks differ, the tasks are not distributed host
            by host, or a variable is malformed.
    """
    if not isinstance(jobs, Mapping):
        raise DTypeError("malformed jobs of a cluster", expected="{job: count}", actual=brief(jobs))
    check_whole(port, "the first port of Slurm's tasks", 1)
    for job, count in jobs.items():
        check_whole(count, f"the number of tasks of {job}", 0)
    rank = environment_number(environment, _RANK)
    places = _places(environment, port)
    if sum(jobs.values()) != len(places) or rank >= len(places):
        raise InvalidArgumentError(
            "the number of tasks differs from the number that Slurm has started",
            expected=f"{len(places)} tasks, of which this is {rank}",
            actual=", ".join(f"{job}={count}" for job, count in jobs.items()),
        )
    # Ranks would not match the hosts if the tasks were distributed cyclically.
    if environment.get(_NODE) and environment_number(environment, _NODE) != places[rank][0]:
        raise InvalidArgumentError(
            "Slurm has not distributed its tasks host by host; use srun --distribution=block",
            expected=f"rank {rank} on node {places[rank][0]}",
            actual=f"{_NODE}={environment[_NODE]}",
        )
    addresses = iter([address for _, address in places])
    cluster = {job: [next(addresses) for _ in range(count)] for job, count in jobs.items()}
    for job, count in jobs.items():
        if rank < count:
            return SettingsSource(lambda _: "Slurm", cluster, job, rank)
        rank -= count
    raise InvalidArgumentError("there are no jobs", expected="JOB=COUNT[,…]", actual=dict(jobs))


def _places(environment: Mapping[str, str], port: int) -> list[tuple[int, str]]:
    """Return the host number and the address of each rank."""
    name, text = _first(environment, _HOSTS)
    hosts = expand_hostlist(text)
    counts = _counts(environment, len(hosts))
    if max(counts) + port - 1 > _MOST_PORT:
        raise InvalidArgumentError("the ports are out of range", expected=f"at most {_MOST_PORT}", actual=port)
    if len(counts) != len(hosts):
        raise InvalidArgumentError(
            f"{name} has a different number of hosts than there are task counts",
            expected=len(counts),
            actual=len(hosts),
        )
    return [
        (number, f"{host}:{port + local}")
        for number, (host, count) in enumerate(zip(hosts, counts, strict=True))
        for local in range(count)
    ]


def _counts(environment: Mapping[str, str], hosts: int) -> list[int]:
    """Return the number of tasks of each host; if Slurm does not state it, distribute them as evenly as possible."""
    if any(environment.get(name) for name in _PER_HOST):
        name, text = _first(environment, _PER_HOST)
        return _times(name, text)
    total = environment_number(environment, _first(environment, _COUNT)[0])
    _require_few(total, str(total))
    return [total // hosts + (number < total % hosts) for number in range(hosts)]


def _times(name: str, text: str) -> list[int]:
    """Return the numbers in "2(x3),1"."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TIMES.fullmatch(part)
        if match is None:
            raise InvalidArgumentError(f"{name} is malformed", expected="such as 2(x3),1", actual=brief(text))
        times = int(match[2] or 1)
        _require_few(len(counts) + times, text)
        counts += [int(match[1])] * times
        _require_few(sum(counts), text)
    return counts


def _require_few(count: int, text: str) -> None:
    if count > _MOST_TASKS:
        raise InvalidArgumentError("too many tasks", expected=f"at most {_MOST_TASKS}", actual=brief(text))


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    for name in names:
        if environment.get(name):
            return name, environment[name].strip()
    raise InvalidArgumentError(
        "not running under Slurm: its environment variables are missing", expected=" or ".join(names), actual="not set"
    )


# ── a TOML file ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
#     job = "worker"
#     task = "auto"
#
#     [cluster]
#     ps = ["ps.example:2222"]
#     worker = "worker-{0..3}.example:2222"
#
# Instead of `[cluster]`, a file may have `[slurm]` with `jobs = {ps = 1, worker = 3}` and `port`. `[worker]` holds
# options of `python -m aioflow.worker`. `[limits]` holds limits on clients and peers, by the names in `Limits` and
# `CommOptions`.


_KEYS: Final = ("cluster", "job", "task", "slurm", "worker", "limits")
_SLURM: Final = ("jobs", "port")


class ClusterFile(NamedTuple):
    """The contents of a file.

    Attributes:
        given: The cluster and the task.
        worker: Options of the worker.
        limits: Limits by name.
    """

    given: GivenSettings
    worker: TomlTable
    limits: TomlTable


def read_toml(path: Path) -> ClusterFile:
    """Read and parse a file. Raises as `read_document` and `parse_toml`."""
    return _cluster_file(str(path), read_document(path))


def parse_toml(name: str, data: bytes) -> ClusterFile:
    """Parse the bytes of a file. Raises InvalidArgumentError, which names the file and the key."""
    return _cluster_file(name, parse_document(name, data))


def _cluster_file(name: str, document: TomlTable) -> ClusterFile:
    require_known(name, document, _KEYS)
    cluster, slurm, worker, limits = (table_of(name, document, key) for key in ("cluster", "slurm", "worker", "limits"))
    require_known(f"{name}: [slurm]", slurm or {}, _SLURM)
    jobs = None if slurm is None else table_of(f"{name}: [slurm]", {"jobs": {}, **slurm}, "jobs")
    port = (slurm or {}).get("port", FIRST_PORT)
    check_whole(port, f"{name}: [slurm]: port", 1)
    job, task = document.get("job"), document.get("task")
    if job is not None and not isinstance(job, str):
        raise InvalidArgumentError(f"{name}: job", expected="the name of a job", actual=brief(job))
    if task not in (None, AUTO):
        check_whole(task, f"{name}: task", 0)
    return ClusterFile(GivenSettings(lambda _: name, cluster, job, task, jobs, port), worker or {}, limits or {})


# ── the precedence: arguments, then a file, then the environment ──────────────────────────────────────────────────────


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
                actual=one.origin(CLUSTER),
            )
        sources.append(_source(one, sources, environment))
        if one.slurm_jobs is not None and all(source.cluster is None for source in sources):
            sources.append(slurm(one.slurm_jobs, environment, one.slurm_port))
    # `TF_CONFIG` is not even parsed if everything is defined, so that a malformed one does no harm.
    if any(_lacks(sources, setting) for setting in (CLUSTER, JOB, TASK)):
        last = tf_config(environment)
        sources += [] if last is None else [last]
    return combine_sources(sources)


def _source(given: GivenSettings, before: Sequence[SettingsSource], environment: Mapping[str, str]) -> SettingsSource:
    task, origin = given.task, given.origin
    if task == AUTO:
        if given.slurm_jobs is not None or not _lacks(before, TASK):
            task = None  # Slurm or an earlier source defines it
        else:
            task, name = numbered_task(environment)
            return SettingsSource(
                lambda setting: name if setting == TASK else origin(setting), given.cluster, given.job, task
            )
    return SettingsSource(origin, given.cluster, given.job, task if isinstance(task, int) else None)


def _lacks(sources: Sequence[SettingsSource], setting: str) -> bool:
    return all(getattr(source, setting) is None for source in sources)
