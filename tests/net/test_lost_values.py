"""A value that was lost between two workers stops its step, also where the part that has sent it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

import aioflow as af
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate

Story: TypeAlias = Callable[["Steps", af.Session], Awaitable[None]]

BOUND = 10.0  # virtual seconds in which a step that has lost a value must end


class Steps:
    """A client whose steps have a part at worker 0 and one at worker 1, which gets a value from it."""

    def __init__(self, net: SimNet) -> None:
        self.net = net
        self.cluster = SimCluster(net, {"worker": 2})
        self.graph = af.Graph()
        with self.graph.as_default():
            with af.device("/job:worker/task:0"):
                self.fed = af.placeholder(af.float32, [])
                made = self.fed + 1.0
            with af.device("/job:worker/task:1"):
                self.result = made * 2.0

    async def play(self, story: Story, connected: bool = True) -> None:
        """From a host of its own. The workers are `connected` by a first step."""
        await self.cluster.start()

        async def client() -> None:
            async with af.Session(self.cluster.target("worker0"), graph=self.graph, config=SIMULATED) as session:
                if connected:
                    assert await session.run(self.result, {self.fed: 1.0}) == 4.0
                async with asyncio.timeout(BOUND):
                    await story(self, session)

        await self.net.host("client").call(client)
        await self.cluster.stop()


def play(story: Story, seed: int, connected: bool = True) -> None:
    simulate(lambda net: Steps(net).play(story, connected), seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_that_another_has_never_reached_is_unavailable(seed: int) -> None:
    """The time limit of a connection is none of the step: whoever trains begins anew."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        with pytest.raises(af.errors.UnavailableError, match="worker/replica:0/task:1 cannot be reached"):
            await session.run(steps.result, {steps.fed: 1.0})

    play(story, seed, connected=False)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reset", [False, True])
def test_between_workers_that_cannot_reach_one_another(reset: bool, seed: int) -> None:
    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        if reset:
            asyncio.get_running_loop().call_later(1.0, lambda: steps.net.heal(reset=True))
        with pytest.raises(af.errors.UnavailableError, match="worker/replica:0/task:1") as raised:
            await session.run(steps.result, {steps.fed: 1.0})
        assert not raised.value.may_have_been_applied  # there is nothing to apply
        steps.net.heal()
        assert await session.run(steps.result, {steps.fed: 2.0}) == 6.0

    play(story, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("silent", [False, True])
def test_with_the_worker_that_has_sent_it(silent: bool, seed: int) -> None:
    """Its part has ended when it dies, and the value cannot get through."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        asyncio.get_running_loop().call_later(0.5, lambda: steps.net.crash("worker0", silent=silent))
        with pytest.raises(af.errors.UnavailableError):
            await session.run(steps.result, {steps.fed: 1.0})
        steps.net.heal()
        await steps.net.restart("worker0")
        with pytest.raises(af.errors.AbortedError):
            await session.run(steps.result, {steps.fed: 1.0})
        assert await session.run(steps.result, {steps.fed: 2.0}) == 6.0

    play(story, seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("heals", [False, True])
def test_with_a_worker_that_drains(heals: bool, seed: int) -> None:
    """It waits until what it has sent has arrived, for as long as it may, and says goodbye only then."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        server = steps.cluster.servers["worker0"]
        async with asyncio.TaskGroup() as tg:
            running = tg.create_task(result(steps, session))
            await asyncio.sleep(0.3)
            assert not server.status().activity.running
            draining = tg.create_task(steps.net.host("worker0").call(lambda: server.drain(1.0)))
            await asyncio.sleep(0.2)
            assert not draining.done()
            if heals:
                steps.net.heal()
        assert isinstance(running.result(), float if heals else af.errors.UnavailableError)

    async def result(steps: Steps, session: af.Session) -> object:
        try:
            return float(await session.run(steps.result, {steps.fed: 1.0}))
        except af.errors.OpError as error:
            return error

    play(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_for_a_host_that_was_switched_off_for_a_moment_reaches_it(seed: int) -> None:
    """Its peer still has the connection to its predecessor."""

    async def again(steps: Steps) -> None:
        async with af.Session(steps.cluster.target("worker1"), graph=steps.graph, config=SIMULATED) as session:
            assert await session.run(steps.result, {steps.fed: 1.0}) == 4.0

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.crash("worker1", silent=True)
        await steps.net.restart("worker1")
        await steps.net.host("worker1").call(lambda: again(steps))

    play(story, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_does_not_answer_when_a_connection_is_made_again_is_unavailable(seed: int) -> None:
    """And not a time limit of the caller's that has passed: sessions of training are made again after this."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.drop("client", "worker1")
        steps.net.partition("client", "worker1")
        await asyncio.sleep(0.1)
        with pytest.raises(af.errors.UnavailableError, match="has not answered"):
            await session.run(steps.result, {steps.fed: 1.0})
        steps.net.heal()
        assert await session.run(steps.result, {steps.fed: 2.0}) == 6.0

    play(story, seed)
