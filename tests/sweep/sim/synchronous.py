"""Synchronous steps: an accumulator collects the workers' gradients, a chief applies their mean and enqueues tokens.

If no connection is lost, the final value of the variable is the one that a single machine computes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.scenes import Client, Stage, Violation

STEPS = 6
WORKERS = 2


class Training:
    """The graph of a client: a variable, an accumulator and a queue of tokens on the parameter server."""

    def __init__(self, worker: int) -> None:
        with af.device("/job:ps/task:0"):
            self.value = af.Variable(np.zeros(3, np.float64), name="value")
            self.step = af.Variable(np.int64(0), name="step")
            gradients = af.ConditionalAccumulator(af.float64, [3], shared_name="gradients")
            tokens = af.FIFOQueue(100, [af.int64], shapes=[()], shared_name="tokens")
        self.start = af.group(self.value.initializer, self.step.initializer)
        with af.device(f"/job:worker/task:{worker}"):
            self.number = af.placeholder("float64", [])
            self.local = af.placeholder("int64", [])
            gradient = af.constant([1.0, 2.0, 4.0], af.float64) * self.number
        with af.device("/job:ps/task:0"):
            self.apply = gradients.apply_grad(gradient, self.local)
            self.token = tokens.dequeue()
            mean = gradients.take_grad(WORKERS)
            with af.control_dependencies([af.assign_add(self.value, mean)]):
                stepped = af.assign_add(self.step, np.int64(1))
            with af.control_dependencies([stepped]):
                put = tokens.enqueue_many(af.fill([WORKERS], stepped))
                new = gradients.set_global_step(stepped)
            self.update = af.group(put, new)


class Synchronous:
    """A scene: two workers and a chief.

    Args:
        net: Simulated network.
        stage: Simulated cluster and its faults.
        gentle: Whether no fault ends a step, so that the result must be exact.
    """

    def __init__(self, net: SimNet, stage: Stage, gentle: bool) -> None:
        self.net = net
        self.stage = stage
        self.gentle = gentle
        self.failed = 0
        self.chief_done = False
        self.begun = asyncio.Event()

    async def run(self) -> None:
        names = ["chief", *(f"trainer{n}" for n in range(WORKERS))]
        await self.stage.set_up(names)
        if self.gentle:
            self.stage.schedule.faults = [replace(fault, hard=False) for fault in self.stage.schedule.faults]
        await self.stage.perform({"chief": self.chief, **{f"trainer{n}": self.trainer(n) for n in range(WORKERS)}})
        final = await self.stage.afterwards(self.judge)
        if self.gentle:
            expected = np.array([1.0, 2.0, 4.0]) * sum(range(1, STEPS + 1))
            if self.failed or not np.array_equal(final, expected):
                raise Violation(f"{final} instead of {expected}, and {self.failed} steps failed")
        await self.stage.end()

    async def chief(self) -> None:
        with af.Graph().as_default():
            graph = Training(0)
            client = Client(self.net, "chief", self.stage.cluster.target("ps0"))
            await self.persist(client, graph.start, {})
            self.begun.set()
            for _ in range(STEPS):
                await self.persist(client, graph.update, {}, tries=1)
            await client.close()
        self.chief_done = True

    def trainer(self, number: int) -> Any:
        async def train() -> None:
            with af.Graph().as_default():
                graph = Training(number)
                client = Client(self.net, f"trainer{number}", self.stage.cluster.target(f"worker{number}"))
                await self.begun.wait()
                local: Any = 0
                # A fast trainer may have taken the token of a slow one, so trainers run until the chief is done.
                while not self.chief_done:
                    await self.persist(client, graph.apply, {graph.number: 1.0 + local, graph.local: local}, tries=1)
                    token = await self.persist(client, graph.token, {}, tries=1)
                    local = local if token is None else int(token)
                await client.close()

        return train

    async def persist(self, client: Client, fetch: Any, feeds: Any, tries: int = 30) -> Any:
        for _ in range(tries):
            try:
                return await client.run(fetch, feeds, seconds=20.0 if self.gentle else 2.0)
            except OpError:
                self.failed += not self.chief_done
                await asyncio.sleep(0.1)
        return None

    async def judge(self, client: Client) -> Any:
        with af.Graph().as_default():
            graph = Training(0)
            try:
                return await client.run(graph.value)
            except af.errors.FailedPreconditionError:
                await client.run(graph.start)
                raise


async def synchronous(net: SimNet) -> None:
    """Run training: with slow links and an exact result for even seeds, with all faults for odd seeds."""
    gentle = net.seed % 2 == 0
    stage = Stage(net, {"ps": 1, "worker": 2}, faults=net.random("number").randint(0, 4))
    if gentle:
        stage.kinds = ("slow",)
    await Synchronous(net, stage, gentle).run()
