"""Variables that moved to another task, and the session's plans made before the move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aioflow as af
from aioflow.session.prepared import PreparedStep
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate

pytestmark = pytest.mark.blocks_loop("a simulation runs without a stop")


class Moved:
    """A session whose variable moves.

    The variable first is on the coordinator. After a restart of the coordinator, another client creates it on a worker.

    Args:
        net: Simulated network.
        before: Called with the session before the restart.
        after: Called with the session once the variable is elsewhere.
    """

    def __init__(
        self,
        net: SimNet,
        before: Callable[[Moved, af.Session], Awaitable[None]],
        after: Callable[[Moved, af.Session], Awaitable[None]],
    ) -> None:
        self.net = net
        self.cluster = SimCluster(net, {"chief": 1, "worker": 2})
        self._before = before
        self._after = after
        self._placed, self._moved = asyncio.Event(), asyncio.Event()
        with af.Graph().as_default() as self.graph:
            self.v = af.Variable([1.0], name="v")
            self.x = af.placeholder("float32", [1])
            with af.device("/job:worker/task:1"):
                self.product = self.v * self.x

    async def play(self) -> None:
        await self.cluster.start()
        async with asyncio.TaskGroup() as tg:
            tg.create_task(self.net.host("client").call(self._client))
            await self._placed.wait()
            self.net.crash("chief0")
            await self.net.restart("chief0")
            await self.net.host("other").call(self._other)
            self._moved.set()
        await self.cluster.stop()

    async def _client(self) -> None:
        async with af.Session(self.cluster.target("chief0"), graph=self.graph, config=SIMULATED) as session:
            await session.run(self.v.initializer)
            await self._before(self, session)
            self._placed.set()
            await self._moved.wait()
            await self._after(self, session)

    async def _other(self) -> None:
        with af.Graph().as_default() as graph:
            v = af.Variable([5.0], name="v")
            async with af.Session(self.cluster.target("worker0"), graph=graph, config=SIMULATED) as session:
                await session.run(v.initializer)

    async def told(self, call: Awaitable[Any]) -> None:
        with pytest.raises(af.errors.AbortedError, match="restarted") as raised:
            await call
        assert not raised.value.may_have_been_applied

    async def registered(self, host: str) -> int:
        """Return the number of a worker's parts, after enough time for it to be notified."""
        await asyncio.sleep(1.0)
        return (await self.cluster.servers[host].worker.state()).registered


def test_workers_forget_plans_made_before_a_move() -> None:
    async def before(scene: Moved, session: af.Session) -> None:
        for factor in (1.0, 2.0):
            with scene.graph.as_default(), af.device("/job:worker/task:1"):
                product = scene.product * factor
            assert (await session.run(product, {scene.x: [3.0]})).tolist() == [3.0 * factor]

    async def after(scene: Moved, session: af.Session) -> None:
        assert await scene.registered("worker1") == 2
        await scene.told(session.run(scene.v))
        assert await scene.registered("worker1") == 0
        assert (await session.run(scene.product, {scene.x: [3.0]})).tolist() == [15.0]
        assert await scene.registered("worker1") == 1

    simulate(lambda net: Moved(net, before, after).play())


def test_partial_runs_are_set_up_again_after_a_move() -> None:
    async def run(scene: Moved, session: af.Session) -> Any:
        handle = await session.partial_run_setup([scene.product], [scene.x])
        return (await session.partial_run(handle, scene.product, {scene.x: [3.0]})).tolist()

    async def before(scene: Moved, session: af.Session) -> None:
        assert await run(scene, session) == [3.0]

    async def after(scene: Moved, session: af.Session) -> None:
        assert await scene.registered("worker1") == 1
        await scene.told(run(scene, session))
        assert await scene.registered("worker1") == 0
        assert await run(scene, session) == [15.0]
        assert await scene.registered("worker1") == 1

    simulate(lambda net: Moved(net, before, after).play())


def test_session_does_not_wait_for_workers_to_forget_plans() -> None:
    async def before(scene: Moved, session: af.Session) -> None:
        await session.run(scene.product, {scene.x: [3.0]})

    async def after(scene: Moved, session: af.Session) -> None:
        scene.net.pause("worker1")
        began = scene.net.loop.time()
        await scene.told(session.run(scene.v))
        assert (await session.run(scene.v)).tolist() == [5.0]
        assert scene.net.loop.time() - began < 0.5
        scene.net.resume("worker1")

    simulate(lambda net: Moved(net, before, after).play())


def test_step_planned_before_a_move_is_not_run() -> None:
    """Look up a plan, and then let another step learn of the restart."""
    plans: list[PreparedStep] = []

    async def before(scene: Moved, session: af.Session) -> None:
        plans.append(await session._cache.prepare(scene.v.initializer, {}))

    async def after(scene: Moved, session: af.Session) -> None:
        await scene.told(session.run(scene.v))
        with pytest.raises(af.errors.AbortedError, match="on other tasks") as raised:
            await session._running.step(plans[0], [])
        assert not raised.value.may_have_been_applied
        (device,) = scene.cluster.servers["chief0"].worker.devices.values()
        assert device.resources.names() == []

    simulate(lambda net: Moved(net, before, after).play())
