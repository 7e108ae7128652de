"""Clusters whose tasks are Ray actors. Ray places and supervises them; tensors use aioflow's own TCP connections."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from aioflow.concurrency.threads import in_thread
from aioflow.distributed.ray.asked import check_strategy
from aioflow.distributed.ray.host import RayHost
from aioflow.distributed.starting.cluster import StartedCluster
from aioflow.distributed.starting.jobs import Jobs
from aioflow.distributed.starting.supervising import supervised, wanted
from aioflow.loading.later import not_installed
from aioflow.net.credentials import Credentials

__all__ = ["start"]


@asynccontextmanager
async def start(
    jobs: Jobs,
    *,
    strategy: str = "PACK",
    bind: str | None = None,
    max_restarts: int = 3,
    allow_dirs: Iterable[str | os.PathLike[str]] = (),
    imports: Iterable[str] = (),
    credentials: Credentials | None = None,
    timeout: float = 60.0,
    drain_seconds: float = 10.0,
    may_lose: Collection[str] = (),
) -> AsyncIterator[StartedCluster]:
    """Start a cluster of Ray actors for the duration of the block.

        jobs = {"ps": 1, "worker": aioflow.distributed.Job(4, num_cpus=2, num_gpus=1)}
        async with aioflow.distributed.ray.start(jobs, strategy="SPREAD") as cluster:
            async with aioflow.Session(cluster.target) as session:
                ...

    The program uses the Ray cluster that it has chosen by `ray.init`, or else the one that `ray.init()` finds or
    starts. Each task is an actor in a bundle of one placement group, with the resources of its `Job` and the GPUs that
    Ray assigns. Ray restarts an actor that dies on its node, at its address, without state: a
    `train.MonitoredTrainingSession` resumes from its last checkpoint. If the node is gone, the task is lost. Actors and
    placement group end with the block, and with this program.

    Args:
        jobs: As in `aioflow.distributed.processes.start`.
        strategy: Strategy of the placement group: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        bind: Host to listen at if that is not the node's address, such as "0.0.0.0".
        max_restarts: As in `aioflow.distributed.processes.start`.
        allow_dirs: As in `aioflow.distributed.processes.start`; folders of the nodes.
        imports: As in `aioflow.distributed.processes.start`.
        credentials: As in `aioflow.distributed.processes.start`; certificate files are those of the nodes.
        timeout: Time limit in seconds for the start of all tasks, and for each restart of an actor by Ray.
        drain_seconds: As in `aioflow.distributed.processes.start`.
        may_lose: As in `aioflow.distributed.processes.start`.

    Raises:
        UnimplementedError: Ray is not installed: `pip install 'aioflow-engine[ray]'`.
        InvalidArgumentError: an argument is out of range.
        DTypeError: an argument has the wrong type.
        DeadlineExceededError: Ray has no room for all tasks in time, or they do not serve in time.
        UnavailableError: a task is lost: its node is gone, or it has ended more often than `max_restarts` allows. If
            that happens while the block runs, the block is cancelled and raises this error. A cluster that is started
            again resumes from the last checkpoint.
    """
    check_strategy(strategy)
    asked = wanted(
        jobs,
        credentials=credentials,
        allow_dirs=allow_dirs,
        imports=imports,
        max_restarts=max_restarts,
        drain_seconds=drain_seconds,
    )
    async with _connected() as ray:
        host = RayHost(ray, asked, strategy, bind, timeout)
        async with supervised(host, asked, timeout=timeout, may_lose=may_lose) as cluster:
            yield cluster


def _ray() -> Any:
    """Import Ray, which takes a third of a second."""
    try:
        ray = import_module("ray")
        for part in ("exceptions", "util.placement_group", "util.scheduling_strategies"):
            import_module(f"ray.{part}")
    except ImportError as error:
        raise not_installed("a cluster of actors", "Ray", error, "ray") from error
    return ray


@asynccontextmanager
async def _connected() -> AsyncIterator[Any]:
    """Yield Ray, connected to a cluster. A connection made here ends with the block."""
    # In a thread: the import would block the event loop for as long.
    ray = await in_thread(_ray)
    # The program's own connection stays open after the block.
    if ray.is_initialized():
        yield ray
        return
    try:
        await in_thread(ray.init, critical=True)
        yield ray
    finally:
        # Also after a failed `init`, which may have started processes.
        await in_thread(ray.shutdown, critical=True)
