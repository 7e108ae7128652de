"""Values lost between two workers: the step stops, even if the part that sent the value has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

import aioflow as af
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate

Story: TypeAlias = Callable[["Steps", af.Session], Awaitable[None]]

BOUND = 10.0  # virtual seconds within which a step that lost a value must end


class Steps:
    """A client whose steps have a part at worker 0, and one at worker 1 that receives a value from it."""

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
        """Run `story` on a separate host; if `connected`, a first step connects the workers."""
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
def test_worker_never_reached_by_another_is_unavailable(seed: int) -> None:
    """Raise UnavailableError, on which a training session restarts, and not the connection's DeadlineExceededError."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        with pytest.raises(af.errors.UnavailableError, match="worker/replica:0/task:1 cannot be reached"):
            await session.run(steps.result, {steps.fed: 1.0})

    play(story, seed, connected=False)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reset", [False, True])
def test_value_lost_in_a_partition_fails_the_step(reset: bool, seed: int) -> None:
    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.partition("worker0", "worker1")
        if reset:
            asyncio.get_running_loop().call_later(1.0, lambda: steps.net.heal(reset=True))
        with pytest.raises(af.errors.UnavailableError, match="worker/replica:0/task:1") as raised:
            await session.run(steps.result, {steps.fed: 1.0})
        assert not raised.value.may_have_been_applied  # the step has no effects
        steps.net.heal()
        assert await session.run(steps.result, {steps.fed: 2.0}) == 6.0

    play(story, seed)


@pytest.mark.parametrize("seed", range(2))
def test_lost_peer_is_logged_once_with_its_name(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.crash("worker1")
        with pytest.raises(af.errors.UnavailableError):
            await session.run(steps.result, {steps.fed: 1.0})

    play(story, seed)
    (line,) = (record for record in caplog.records if record.name == "aioflow.net")
    names = [f"/job:worker/replica:0/task:{number}" for number in (0, 1)]
    assert line.levelname == "WARNING"
    assert line.getMessage().startswith(f"{names[0]} has lost {names[1]}: {names[1]} ")


@pytest.mark.parametrize("seed", range(2))
def test_peer_that_shuts_down_is_not_logged(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story(steps: Steps, session: af.Session) -> None:
        await steps.cluster.servers["worker1"].drain(1.0)

    play(story, seed)
    assert not caplog.records


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("silent", [False, True])
def test_value_lost_with_its_sender_fails_the_step(silent: bool, seed: int) -> None:
    """Crash the sender after its part has ended, while the value cannot get through."""

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
def test_draining_sender_waits_for_delivery(heals: bool, seed: int) -> None:
    """Drain for as long as allowed until sent values have arrived, and close only then."""

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
def test_value_reaches_a_host_after_its_silent_restart(seed: int) -> None:
    """Send over a peer that still has the connection to the host's predecessor."""

    async def again(steps: Steps) -> None:
        async with af.Session(steps.cluster.target("worker1"), graph=steps.graph, config=SIMULATED) as session:
            assert await session.run(steps.result, {steps.fed: 1.0}) == 4.0

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.crash("worker1", silent=True)
        await steps.net.restart("worker1")
        await steps.net.host("worker1").call(lambda: again(steps))

    play(story, seed)


@pytest.mark.parametrize("seed", range(3))
def test_worker_silent_during_reconnection_is_unavailable(seed: int) -> None:
    """Raise UnavailableError and not DeadlineExceededError: training sessions are recreated after the former."""

    async def story(steps: Steps, session: af.Session) -> None:
        steps.net.drop("client", "worker1")
        steps.net.partition("client", "worker1")
        await asyncio.sleep(0.1)
        with pytest.raises(af.errors.UnavailableError, match="did not answer"):
            await session.run(steps.result, {steps.fed: 1.0})
        steps.net.heal()
        assert await session.run(steps.result, {steps.fed: 2.0}) == 6.0

    play(story, seed)


@pytest.mark.parametrize("seed", range(2))
def test_peer_whose_program_ends_is_not_logged(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """End a program as `asyncio.run` does: all of its tasks are cancelled at once."""

    async def story(steps: Steps, session: af.Session) -> None:
        await asyncio.sleep(1.0)  # until the value of the first step is confirmed
        process = steps.net.host("worker1").process
        assert process is not None
        for task in list(process.tasks):
            task.cancel()
        await process.ended()
        await asyncio.sleep(1.0)
        with pytest.raises(af.errors.UnavailableError):
            await session.run(steps.result, {steps.fed: 1.0})

    play(story, seed)
    assert not [record for record in caplog.records if record.name == "aioflow.net"]
