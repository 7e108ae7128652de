"""Clusters whose tasks are actors of Ray, which places and supervises them; tensors go by aioflow's own TCP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from aioflow.distributed.ray.asked import check_strategy
from aioflow.distributed.ray.host import RayHost, in_thread
from aioflow.distributed.starting.cluster import StartedCluster
from aioflow.distributed.starting.jobs import Jobs
from aioflow.distributed.starting.supervising import supervised, wanted
from aioflow.errors import UnimplementedError
from aioflow.net.credentials import Credentials
from aioflow.release import install_command

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
    """A cluster of actors, for as long as the block runs.

        jobs = {"ps": 1, "worker": aioflow.distributed.Job(4, num_cpus=2, num_gpus=1)}
        async with aioflow.distributed.ray.start(jobs, strategy="SPREAD") as cluster:
            async with aioflow.Session(cluster.target) as session:
                ...

    The program is connected to the Ray cluster that it has chosen by `ray.init`, or to the one that `ray.init()` finds
    or starts. Each task is an actor in a bundle of one placement group, with the resources of its `Job`; its GPUs are
    those that Ray gives it. An actor that dies is started again by Ray on its node, at its address, empty: a
    `train.MonitoredTrainingSession` goes on from its last checkpoint. If the node is gone, the task is lost. Actors and
    placement group end with the block, and with this program.

    Args:
        strategy: Of the placement group: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        bind: Where the workers listen if that is not their node's address, such as "0.0.0.0".
        timeout: Seconds until all tasks serve, and in which Ray starts an actor again.
        jobs, max_restarts, allow_dirs, imports, credentials, drain_seconds, may_lose: As of
            `aioflow.distributed.processes.start`. Folders and certificates are those of the nodes.

    Raises:
        UnimplementedError: Ray is not installed: `pip install 'aioflow-engine[ray]'`.
        InvalidArgumentError, DTypeError: an argument is not as it should be.
        DeadlineExceededError: Ray has no room for all tasks in time, or they do not serve.
        UnavailableError: a task is lost: its node is gone, or it has ended more often than it may. If that is while the
            block runs, it is cancelled, and this is its error. A cluster that is started again goes on from the last
            checkpoint.
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
    """The library: it takes a third of a second."""
    try:
        ray = import_module("ray")
        for part in ("exceptions", "util.placement_group", "util.scheduling_strategies"):
            import_module(f"ray.{part}")
    except ImportError as error:
        raise UnimplementedError(
            f"the tasks are to be actors of Ray, which is not installed: {install_command('ray')}",
            expected="Ray",
            actual="none",
        ) from error
    return ray


@asynccontextmanager
async def _connected() -> AsyncIterator[Any]:
    """Ray, connected to a cluster; if that was not so before, only for the block."""
    ray = await in_thread(_ray)
    if ray.is_initialized():
        yield ray
        return
    try:
        await in_thread(ray.init)
        yield ray
    finally:
        await in_thread(ray.shutdown)
