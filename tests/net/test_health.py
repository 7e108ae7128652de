"""`Session.health`: the states of reachable and unreachable tasks, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.server import Server
from aioflow.runtime.worker import WorkerState
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.net.clusters import cluster

TASKS = ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0")


async def test_health_reports_reachable_and_unreachable_tasks() -> None:
    """Start and stop a task twice, and check its reported state each time."""
    ports = free_addresses(2)
    spec = {"ps": ports[:1], "worker": ports[1:]}
    async with Server(spec, "worker", 0) as worker, af.Session(worker.target) as session:
        for _ in range(2):
            health = await session.health()
            assert isinstance(health[TASKS[0]], af.errors.UnavailableError)
            assert TASKS[0] in str(health[TASKS[0]])
            async with Server(spec, "ps", 0):
                health = await session.health()
                assert list(health) == [TASKS[1], TASKS[0]]
                for task, state in health.items():
                    assert isinstance(state, WorkerState)
                    assert state.devices == (f"{task}/device:CPU:0",)
    async with af.Session() as session:
        assert list(await session.health()) == ["/job:localhost/replica:0/task:0"]


async def seconds_of_health(net: SimNet, **limit: float) -> tuple[float, Mapping[str, Any], Mapping[str, Any]]:
    """Measure the health check of a new session while two workers of the cluster are paused.

    Returns:
        The seconds that the check took, its result, and the result after the workers resumed.
    """
    cluster = SimCluster(net, {"ps": 1, "worker": 3})
    await cluster.start()
    for worker in ("worker1", "worker2"):
        net.pause(worker)

    async def client() -> tuple[float, Mapping[str, Any], Mapping[str, Any]]:
        async with af.Session(cluster.target("ps0"), graph=af.Graph(), config=SIMULATED) as session:
            since = net.loop.time()
            found = await session.health(**limit)
            seconds = net.loop.time() - since
            for worker in ("worker1", "worker2"):
                net.resume(worker)
            await asyncio.sleep(5.0)
            return seconds, found, await session.health(**limit)

    answer: tuple[float, Mapping[str, Any], Mapping[str, Any]] = await net.host("client").call(client)
    await cluster.stop()
    return answer


@pytest.mark.parametrize("limit", [{}, {"timeout": 0.5}])
def test_health_returns_in_time_despite_silent_workers(limit: dict[str, float]) -> None:
    seconds, found, later = simulate(lambda net: seconds_of_health(net, **limit))
    assert seconds <= limit.get("timeout", 1.0) + 0.01
    silent = {task for task, state in found.items() if isinstance(state, af.errors.DeadlineExceededError)}
    assert {task.rpartition("/")[2] for task in silent} == {"task:1", "task:2"}
    for task, state in found.items():
        assert task in silent or isinstance(state, WorkerState)
    assert all(isinstance(state, WorkerState) for state in later.values())


async def test_health_rejects_an_invalid_timeout() -> None:
    async with cluster("worker") as (server,), af.Session(server.target) as session:
        for wrong in (0, -1.0, float("nan")):
            with pytest.raises(af.errors.InvalidArgumentError):
                await session.health(timeout=wrong)
