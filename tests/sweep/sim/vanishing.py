"""Clients that disappear in the middle of their steps: the workers detect it, and keep nothing for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.queueing import Elements
from tests.sweep.sim.scenes import Client, Stage


class Vanishing:
    """A scene: clients whose steps wait for a queue; each client is killed, or its host switched off, for good."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage

    async def run(self) -> None:
        names = ["client0", "client1"]
        await self.stage.set_up(names)
        for number, name in enumerate(names):
            self.net.host(name).start(self.client(name, number))
        chance = self.net.random("ends")
        await self.stage.perform({})
        for name in names:
            await asyncio.sleep(chance.expovariate(3.0))
            self.net.crash(name, silent=chance.random() < 0.7)
        await self.stage.end()

    def client(self, name: str, number: int) -> Any:
        async def wait() -> None:
            with af.Graph().as_default():
                graph = Elements(number)
                client = Client(self.net, name, self.stage.cluster.target("worker0"))
                chance = self.net.random(name)
                while True:
                    with suppress(OpError):
                        await client.run(graph.take, seconds=chance.choice((0.5, 500.0)))
                    await asyncio.sleep(0.05)

        return wait


async def vanishing(net: SimNet) -> None:
    """Run clients that are killed, or disappear without closing their connections."""
    stage = Stage(net, {"ps": 1, "worker": 2}, faults=net.random("number").randint(0, 2), within=1.0)
    await Vanishing(net, stage).run()
