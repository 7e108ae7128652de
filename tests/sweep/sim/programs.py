"""Random programs with every node on a random task: each step returns the right values or a typed error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.evaluate import evaluate
from aioflow.testing.sim_net import SimNet
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.support.outcomes import bits
from tests.sweep.sim.scenes import Client, Stage, Violation

STEPS = 3


def anywhere(tasks: Sequence[str], seed: int) -> Callable[[af.Operation], str]:
    """Return a device function that puts every node on a random task."""
    chance = random.Random(f"{seed} placement")
    return lambda operation: chance.choice(tasks)


class Programs:
    """A scene: a client that runs several steps of one program at once."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage
        self.right = 0

    async def run(self) -> None:
        await self.stage.set_up(["client"])
        with af.Graph().as_default() as self.graph:
            tasks = [f"/job:{job}/task:{i}" for job, count in self.stage.jobs.items() for i in range(count)]
            seed = self.net.seed
            with af.device(anywhere(tasks, seed)):
                program: Any = (
                    random_program(seed, rows=1) if seed % 3 == 0 else random_flow_program(seed, loops=seed % 12 == 1)
                )
        self.fetches, self.feeds = list(program.fetches), dict(program.feeds)
        self.expected = bits(elsewhere(self.fetches, self.feeds))
        await self.stage.perform({"client": self.client})
        await self.stage.afterwards(self.judge)
        await self.stage.end()

    async def client(self) -> None:
        chance = self.net.random("client")
        for _ in range(STEPS):
            client = Client(self.net, "client", self.stage.cluster.target("worker0"))
            with self.graph.as_default():
                async with asyncio.TaskGroup() as steps_at_once:
                    for _ in range(chance.randint(1, 3)):
                        step = steps_at_once.create_task(self.step(client))
                        if chance.random() < 0.3:
                            steps_at_once.create_task(cancel_later(step, chance.expovariate(50.0)))
            await client.close()
            await asyncio.sleep(chance.expovariate(2.0))

    async def step(self, client: Client) -> None:
        with suppress(OpError):
            self.compare(await client.run(self.fetches, self.feeds))

    def compare(self, values: Sequence[Any]) -> None:
        if bits(values) != self.expected:
            raise Violation("a step has given other values than one device computes")
        self.right += 1

    async def judge(self, client: Client) -> None:
        with self.graph.as_default():
            self.compare(await client.run(self.fetches, self.feeds, seconds=10.0))


async def cancel_later(task: asyncio.Task[None], seconds: float) -> None:
    """Cancel a step after this time, and wait for it."""
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.wait([task])


def elsewhere(fetches: Sequence[Any], feeds: Mapping[Any, Any]) -> Sequence[Any]:
    """Return the values that one device computes, node by node, on an event loop in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(evaluate, fetches, feeds).result()


async def programs(net: SimNet) -> None:
    """Run random graphs on two to four workers, with cancelled steps and all faults."""
    stage = Stage(net, {"worker": 2 + net.seed % 3}, faults=net.random("number").randint(0, 3), within=1.5)
    await Programs(net, stage).run()
