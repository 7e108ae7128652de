"""Draining of servers: no new steps, time for the running ones, and reliable errors for clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, OpError, UnavailableError
from aioflow.net.limits import DEFAULT_LIMITS
from aioflow.net.server import Server
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.net.clusters import cluster
from tests.support.outcomes import failure
from tests.support.waiting import eventually

SECONDS = 60.0


class Gate:
    """A value that the client's task produces once the gate is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self.value = af.py_coroutine(self._pass, [], af.float32, shapes=[])

    async def _pass(self) -> float:
        await self._open.wait()
        return 40.0

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("tcp", [False, True])
async def test_drain_finishes_running_steps_and_refuses_new_ones(tcp: bool) -> None:
    gate = Gate()
    with af.device("/job:ps"):
        v = af.Variable(1.0)
        late = v.assign_add(gate.value)
        one = v.assign_add(1.0)
    async with (
        cluster("ps", "worker", tcp=tcp) as (ps, worker),
        asyncio.timeout(SECONDS),
        af.Session(worker.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        await session.run(v.initializer)
        await session.run(one)
        running = tg.create_task(session.run(late))
        await eventually(lambda: ps.status().activity.running == 1)
        draining = tg.create_task(ps.drain(SECONDS))
        await eventually(lambda: ps.status().state == "drains")
        refused = await failure(session.run(one))
        assert isinstance(refused, UnavailableError)
        assert f"{ps.task} is shutting down" in refused.message
        assert not refused.may_have_been_applied
        assert ps.status().activity.refused == 1
        assert not draining.done()
        gate.open()
        assert await running == 42.0
        await draining
        assert ps.status().state == "ended"


async def test_drain_stops_a_step_that_exceeds_the_time() -> None:
    with af.device("/job:ps"):
        queue = af.FIFOQueue(1, [af.float32], shapes=[()])
        element = queue.dequeue()
    async with (
        cluster("ps", "worker", tcp=True) as (ps, worker),
        asyncio.timeout(SECONDS),
        af.Session(worker.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        running = tg.create_task(failure(session.run(element)))
        await eventually(lambda: ps.status().activity.running == 1)
        await ps.drain(0.0)
        error = await running
        assert isinstance(error, UnavailableError)
        assert f"{ps.task} is shutting down, and the step did not finish within 0 s" in error.message
        assert (ps.status().state, ps.status().activity.running) == ("ended", 0)


@pytest.mark.parametrize("tcp", [False, True])
async def test_sent_value_arrives_after_its_worker_was_drained(tcp: bool) -> None:
    """Drain a worker whose part has ended, while the part at the second worker still waits for another value.

    Stopping the first worker without a drain would fail the step.
    """
    gate = Gate()
    with af.device("/job:first"):
        v = af.Variable([1.0, 1.0])
        sent = v.assign_add([1.0, 1.0])
    with af.device("/job:second"):
        result = sent + gate.value
    async with (
        cluster("first", "second", "third", tcp=tcp) as (first, second, third),
        asyncio.timeout(SECONDS),
        af.Session(third.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        await session.run(v.initializer)
        begun = first.status().activity.begun
        running = tg.create_task(session.run(result))
        await eventually(lambda: first.status().activity.begun > begun and not first.status().activity.running)
        assert second.status().activity.running == 1
        await first.drain(SECONDS)
        gate.open()
        assert (await running).tolist() == [42.0, 42.0]


@pytest.mark.parametrize("between", [0, 6])
async def test_outcome_of_a_forgotten_part_is_reported_as_uncertain(
    between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forget a part that ended without an answer.

    More parts have ended since than are remembered, so no worker may claim that the part had not begun.
    """
    monkeypatch.setattr("aioflow.net.requests.REMEMBERED", 4)
    monkeypatch.setattr("aioflow.net.pending_steps.REMEMBERED", 4 + DEFAULT_LIMITS.open_requests)
    opened = asyncio.Event()

    async def wait() -> float:
        await opened.wait()
        return 40.0

    with af.device("/job:first"):
        v = af.Variable(1.0, use_resource=True)
        added, read = v.assign_add(1.0), v + 1.0
    with af.device("/job:second"):
        late, soon = added + af.py_coroutine(wait, [], af.float32, shapes=[], stateful=False), read * 2.0
    async with (
        cluster("first", "second", "third") as (first, _, third),
        asyncio.timeout(SECONDS),
        af.Session(third.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        await session.run(v.initializer)
        assert await session.run(soon) == 4.0
        begun = first.status().activity.begun
        running = tg.create_task(outcome(session.run(late)))
        await eventually(lambda: first.status().activity.begun > begun and not first.status().activity.running)
        for _ in range(between):
            assert await session.run(soon) == 6.0
        await first.drain(SECONDS)
        opened.set()
        found = await running
        if between:
            assert isinstance(found, UnavailableError)
            assert found.may_have_been_applied
        else:
            assert found == 42.0


async def outcome(run: Awaitable[Any]) -> Any:
    try:
        return await run
    except OpError as error:
        return error


@pytest.mark.blocks_loop("a simulation runs without a stop")
@pytest.mark.parametrize("seed", range(5))
def test_refused_step_was_not_applied(seed: int) -> None:
    """Check also a step that is in transit when the worker closes, and that receives no answer."""
    with af.Graph().as_default() as graph, af.device("/job:worker/task:1"):
        v = af.Variable(0.0)
        one = v.assign_add(1.0)

    async def main(net: SimNet) -> None:
        servers = SimCluster(net, {"worker": 2})
        await servers.start()
        server = servers.servers["worker1"]
        results: list[float] = []
        errors: list[OpError] = []

        async def steps(session: af.Session) -> None:
            while not errors or "is shutting down" in errors[-1].message:
                try:
                    results.append(float(await session.run(one)))
                except OpError as error:
                    errors.append(error)

        async def client() -> None:
            async with af.Session(servers.target("worker0"), graph=graph, config=SIMULATED) as session:
                await session.run(v.initializer)
                async with asyncio.TaskGroup() as tg:
                    for _ in range(8):
                        tg.create_task(steps(session))
                    await asyncio.sleep(0.1)
                    tg.create_task(net.host("worker1").call(lambda: server.drain(SECONDS)))

        async with asyncio.timeout(SECONDS):
            await net.host("client").call(client)
        assert sorted(results) == [float(n + 1) for n in range(len(results))]
        assert len(errors) >= 8
        assert {(type(error), error.may_have_been_applied) for error in errors} == {(UnavailableError, False)}
        await servers.stop()

    simulate(main, seed)


async def test_drain_refuses_sessions_of_the_same_process() -> None:
    async with cluster("ps") as (ps,), af.Session(ps.target) as session, asyncio.timeout(SECONDS):
        with af.device("/job:ps"):
            gate = Gate()
            waits, quick = gate.value + 1.0, af.random.uniform([])
        async with asyncio.TaskGroup() as tg:
            running = tg.create_task(session.run(waits))
            await eventually(lambda: ps.status().activity.running == 1)
            tg.create_task(ps.drain(SECONDS))
            await eventually(lambda: ps.status().state == "drains")
            error = await failure(session.run(quick))
            assert isinstance(error, UnavailableError)
            assert not error.may_have_been_applied
            gate.open()
            assert await running == 41.0


async def test_join_returns_after_the_drain() -> None:
    server = Server.create_local_server()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tg:
        joining = tg.create_task(server.join())
        await eventually(lambda: server.status().state == "serves")
        await server.drain(SECONDS)
        await joining
    await server.drain(SECONDS)
    await asyncio.wait_for(server.join(), SECONDS)
    assert isinstance(await failure(server.start()), FailedPreconditionError)


async def test_drain_of_an_unstarted_server_ends_it() -> None:
    server = Server.create_local_server()
    assert server.status().state == "begins"
    await server.drain(SECONDS)
    assert server.status().state == "ended"
    await asyncio.wait_for(server.join(), SECONDS)
    assert isinstance(await failure(server.start()), FailedPreconditionError)


async def test_cancelled_drain_ends_the_server_at_once() -> None:
    with af.device("/job:ps"):
        element = af.FIFOQueue(1, [af.float32], shapes=[()]).dequeue()
    async with (
        cluster("ps", "worker") as (ps, worker),
        asyncio.timeout(SECONDS),
        af.Session(worker.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        running = tg.create_task(failure(session.run(element)))
        await eventually(lambda: ps.status().activity.running == 1)
        draining = tg.create_task(ps.drain(SECONDS))
        await eventually(lambda: ps.status().state == "drains")
        draining.cancel()
        assert isinstance(await running, OpError)
        await asyncio.wait([draining])
        assert ps.status().state == "ended"


@pytest.mark.parametrize("seconds", [float("nan"), "soon", None])
async def test_drain_rejects_a_time_that_is_not_a_number(seconds: Any) -> None:
    async with cluster("ps") as (ps,):
        assert isinstance(await failure(ps.drain(seconds)), InvalidArgumentError)
        assert ps.status().state == "serves"
