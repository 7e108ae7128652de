"""Training with replicas that die for good and return, on simulated clusters: real servers, sessions and health checks.

Worker i always contributes the i-th unit vector, so the variable shows the workers whose gradients were applied. The
mean of a step sums to one for any set of workers, so the sum of the variable shows that each update was complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.support.random_examples import seeds

WORKERS = 3
STEP = 0.05  # mean virtual seconds that a worker computes
REBOOT = 0.2  # maximum virtual seconds of a quick restart, which no peer notices
PATIENCE = 15.0  # timeout of each wait, in virtual seconds

Build = Callable[[], af.train.Optimizer]


def elastic(needed: int, total: int = WORKERS) -> Build:
    return lambda: af.train.SyncReplicasOptimizer(
        af.train.GradientDescentOptimizer(1.0), needed, total, elastic=True
    )  # fmt: skip


class Training:
    """A cluster with a parameter server, and a trainer on each worker, in the process of its server.

    Attributes:
        ended: The workers whose training has ended by itself.
        computed: The number of gradients that each worker has computed.
    """

    def __init__(self, net: SimNet, build: Build) -> None:
        self.net = net
        self.cluster = SimCluster(net, {"ps": 1, "worker": WORKERS})
        self.build = build
        self.ended: list[int] = []
        self.computed = [0] * WORKERS
        self.last = 10**6

    async def start(self, *workers: int) -> None:
        """Start the servers, and the trainers of these workers. The hosts of the other workers are down."""
        await self.cluster.start()
        for worker in set(range(WORKERS)) - set(workers):
            self.net.crash(f"worker{worker}")
        for worker in workers:
            self.begin(worker)
        graph = af.Graph()
        with graph.as_default():
            self.v, self.step, _ = self._model(0)
        self.look = af.Session(self.cluster.target("ps0"), graph=graph, config=SIMULATED)

    def begin(self, worker: int) -> None:
        """Start a trainer."""
        self.net.host(f"worker{worker}").start(lambda: self._train(worker), "trainer")

    async def again(self, worker: int) -> None:
        """Restart the process of a worker that has died."""
        await self.net.restart(f"worker{worker}")
        self.begin(worker)

    def _model(self, worker: int) -> tuple[af.Variable, af.Variable, Any]:
        with af.device(af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{worker}")):
            v = af.get_variable("v", initializer=np.zeros(WORKERS))
            return v, af.train.get_or_create_global_step(), af.identity(np.eye(WORKERS)[worker])

    async def _train(self, worker: int) -> None:
        chief, chance = worker == 0, self.net.random(f"trainer {worker}")
        with af.Graph().as_default():
            v, step, gradient = self._model(worker)
            with af.device(gradient.device):
                optimizer = self.build()
                train = optimizer.apply_gradients([(gradient, v)], step)
            hooks: list[Any] = []
            if isinstance(optimizer, af.train.SyncReplicasOptimizer):
                hooks.append(optimizer.make_session_run_hook(chief))
            async with af.train.MonitoredTrainingSession(
                self.cluster.target(f"worker{worker}"), chief, hooks=hooks, config=SIMULATED, log_step_count_steps=None
            ) as session:
                while not session.should_stop():
                    await asyncio.sleep(STEP * chance.uniform(0.5, 1.5))
                    self.computed[worker] += 1
                    await session.run(train)
                    if chief and await session.run(step) >= self.last:
                        break
        self.ended.append(worker)

    async def values(self) -> tuple[int, Any]:
        """Return the global step, and the variable after it."""
        while True:
            # Equal steps before and after the read mean that the variable belongs to that step.
            before, v, after = [await self.look.run(what) for what in (self.step, self.v, self.step)]
            if before == after:
                return int(before), v

    async def until(self, seen: Callable[[int, Any], bool]) -> tuple[int, Any]:
        """Wait until `seen` returns True for the step and the variable, and return them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    step, v = await self.values()
                    if seen(step, v):
                        return step, v
                except af.errors.FailedPreconditionError:
                    pass  # the chief has not initialized the variables yet
                await asyncio.sleep(STEP / 2)

    async def steps(self, count: int) -> tuple[int, Any]:
        """Wait until this many more steps have been made."""
        now = (await self.until(lambda step, v: True))[0]
        return await self.until(lambda step, v: step >= now + count)

    async def finish(self) -> None:
        """Stop the chief, and wait until all workers have stopped."""
        self.last = 0
        async with asyncio.timeout(PATIENCE):
            while len(self.ended) < WORKERS:  # noqa: ASYNC110
                await asyncio.sleep(STEP)
        step, v = await self.values()
        await self.look.close()
        await self.cluster.stop()
        assert step > 0
        assert v.sum() == pytest.approx(-step, abs=1e-9)


def play(story: Callable[[SimNet], Any], seed: int) -> None:
    """Run a story in a simulated network, on a separate host."""

    async def main(net: SimNet) -> None:
        await net.host("observer").call(lambda: story(net))

    simulate(main, seed)


pytestmark = pytest.mark.blocks_loop("a simulation runs without a stop")


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("silent", [False, True], ids=["killed", "switched off"])
@pytest.mark.parametrize("needed", [3, 2], ids=["all", "with a backup worker"])
def test_training_continues_without_a_dead_worker_and_readmits_it(needed: int, silent: bool, seed: int) -> None:
    async def story(net: SimNet) -> None:
        training = Training(net, elastic(needed))
        await training.start(0, 1, 2)
        await training.until(lambda step, v: step >= 10 and bool((v < 0).all()))
        net.crash("worker2", silent=silent)
        await asyncio.sleep(5.0)  # until its death has been detected and its leftover gradients have been handled
        first, before = await training.steps(10)
        computed = sum(training.computed)
        last, after = await training.steps(20)
        assert after[2] == before[2]
        assert (after < before)[:2].all()
        assert sum(training.computed) - computed <= 2 * (last - first) + 4, "nobody does the work of the dead"
        await training.again(2)
        await training.until(lambda step, v: bool((v <= after - 2).all()))
        await training.finish()

    play(story, seed)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_training_starts_with_the_chief_and_admits_workers_later(seed: int) -> None:
    """The chief also trains alone, and stops while workers are missing."""

    async def story(net: SimNet) -> None:
        training = Training(net, elastic(3))
        await training.start(0)
        step, v = await training.steps(10)
        assert v.tolist() == [-step, 0.0, 0.0]
        for worker in (2, 1):
            await training.again(worker)
            await training.until(lambda _, v: bool(v[worker] <= -2))  # noqa: B023  # the wait ends before the next iteration
        _, before = await training.steps(10)
        _, after = await training.steps(9)
        np.testing.assert_allclose(after - before, [-3.0] * 3, atol=1.0)  # each worker contributes a third
        for worker in (1, 2):
            net.crash(f"worker{worker}")
        await training.steps(10)
        training.ended += [1, 2]
        await training.finish()

    play(story, seed)


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_training_continues_under_random_faults_of_replicas(seed: int) -> None:
    """Replicas are killed, switched off, paused and disconnected at random times, several at once, and return."""

    async def story(net: SimNet) -> None:
        chance = net.random("faults")
        training = Training(net, elastic(chance.choice([2, 3])))
        await training.start(0, 1, 2)

        async def disturb(worker: int) -> None:
            name = f"worker{worker}"
            for _ in range(4):
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                kind, pause = chance.choice(["crash", "silence", "pause", "cut"]), chance.uniform(0.0, 5.0)
                if kind == "pause":
                    net.pause(name)
                    await asyncio.sleep(pause)
                    net.resume(name)
                elif kind == "cut":
                    other = chance.choice(["ps0", "worker0"])
                    net.partition(name, other)
                    await asyncio.sleep(pause)
                    net.heal(name, other, reset=chance.random() < 0.5)
                else:
                    net.crash(name, silent=kind == "silence")
                    await asyncio.sleep(chance.choice([pause, chance.uniform(0.0, REBOOT)]))
                    await training.again(worker)
                await training.steps(3)

        async with asyncio.TaskGroup() as group:
            for worker in (1, 2):
                group.create_task(disturb(worker))
        await training.steps(30)
        _, before = await training.values()
        await training.until(lambda _, v: bool((v <= before - 2)[1:].all()))  # the chief also evaluates, and so is slow
        await training.finish()

    play(story, seed)


def test_asynchronous_training_continues_without_a_dead_worker() -> None:
    async def story(net: SimNet) -> None:
        training = Training(net, lambda: af.train.GradientDescentOptimizer(1.0))
        await training.start(0, 1, 2)
        await training.until(lambda step, v: step >= 10 and bool((v < 0).all()))
        net.crash("worker2")
        await training.steps(1)
        _, before = await training.values()
        _, after = await training.steps(10)
        assert after[2] == before[2]
        await training.again(2)
        await training.until(lambda step, v: bool((v <= after - 2).all()))
        for worker in (1, 2):  # nothing would tell these workers to stop
            net.crash(f"worker{worker}")
        training.ended += [1, 2]
        await training.finish()

    play(story, 0)
