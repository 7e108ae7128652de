"""Requests to Ray as plain data: a bundle of resources for each task, and the options of its actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioflow.distributed.starting.host import ClusterRequest
from aioflow.distributed.starting.jobs import Job, device_count, tasks_of
from aioflow.errors import InvalidArgumentError
from aioflow.net.cluster_spec import ClusterSpec, TaskId

STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def check_strategy(strategy: str) -> None:
    """Raise InvalidArgumentError if Ray has no such strategy."""
    if strategy not in STRATEGIES:
        raise InvalidArgumentError("no such strategy of placement", expected=STRATEGIES, actual=strategy)


def bundles(jobs: Mapping[str, Job]) -> list[dict[str, float]]:
    """Return the resources of each task's bundle, in the order of `tasks_of`.

    Raises InvalidArgumentError if a task needs no resources.
    """
    found = []
    for task in tasks_of(jobs):
        bundle = {name: amount for name, amount in _amounts(jobs[task.job]).items() if amount}
        if not bundle:
            raise InvalidArgumentError(
                f"the job {task.job!r} needs nothing, and Ray would have no place for it", expected="num_cpus above 0"
            )
        found.append(bundle)
    return found


def _amounts(job: Job) -> dict[str, float]:
    return {"CPU": job.num_cpus, "GPU": job.num_gpus, **job.resources}


def actor_options(job: Job, max_restarts: int) -> dict[str, object]:
    """Return the options for `ray.remote(…).options`.

    Ray repeats no call of a restarted actor. The supervisor does, and so notices the restart.
    """
    return {
        "num_cpus": job.num_cpus,
        "num_gpus": job.num_gpus,
        "resources": dict(job.resources) or None,
        "max_restarts": max_restarts,
        # Calls are not repeated: a repeated `ended` would hide the restart.
        "max_task_retries": 0,
    }


def orders(wanted: ClusterRequest, task: TaskId, spec: ClusterSpec, bind: str | None) -> dict[str, object]:
    """Return the arguments with which an actor starts serving, as plain data.

    They are never part of the actor's constructor arguments, since Ray stores those.
    """
    known = wanted.credentials
    return {
        "cluster": spec.as_dict(),
        "secret": known.secret,
        "tls": None if known.tls is None else known.tls.files,
        "seals_loopback": known.seals_loopback,
        "allow_dirs": list(wanted.allow_dirs),
        "device_count": device_count(wanted.jobs[task.job]),
        "bind": bind,
    }
