"""The cluster of a Slurm job, from its environment variables: hosts, tasks per host, and the rank of this process.

Assumes that ranks fill the hosts in order, which is the default distribution of `srun`. The tasks of one host have
consecutive ports. The first ranks are the tasks of the first job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aioflow.arguments import brief, check_whole
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.net.cluster_sources.environment import environment_number
from aioflow.net.cluster_sources.host_ranges import expand_hostlist
from aioflow.net.cluster_sources.sources import SettingsSource

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
