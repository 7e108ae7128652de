"""A parameter server that restarts repeatedly: a reader learns of each restart before it reads a newer value."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import aioflow as af
from aioflow.errors import AbortedError, OpError
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.scenes import RECOVERY, Client, Stage, Violation

_LIVES: Final = 3


class SessionInstance:
    """The graph of a client: a variable on the parameter server that counts restarts, read through a worker."""

    def __init__(self) -> None:
        with af.device("/job:ps/task:0"):
            self.number = af.placeholder("int64", [])
            life = af.Variable(af.constant(0, af.int64), name="life")
            self.begin = af.assign(life, self.number).op
        with af.device("/job:worker/task:0"):
            self.which = life * 1


class Restarting:
    """A scene: one client reads the variable, and another sets it after each restart."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage
        self.done = False

    async def run(self) -> None:
        await self.stage.set_up(["reader", "coordinator"])
        await self.stage.perform({"reader": self.reader, "coordinator": self.coordinator})
        await self.stage.end()

    async def coordinator(self) -> None:
        with af.Graph().as_default():
            graph = SessionInstance()
            chance = self.net.random("coordinator")
            client = Client(self.net, "coordinator", self.stage.cluster.target("ps0"))
            for number in range(_LIVES):
                if number:
                    self.net.crash("ps0", silent=chance.random() < 0.4)
                    await asyncio.sleep(chance.expovariate(5.0))
                    await self.net.restart("ps0")
                await self.set(client, graph, number)
                await asyncio.sleep(chance.uniform(0.2, 3.0))
            await client.close()
        self.done = True

    async def set(self, client: Client, graph: SessionInstance, number: int) -> None:
        until = self.net.loop.time() + RECOVERY
        while self.net.loop.time() < until:
            with suppress(OpError):
                await client.run(graph.begin, {graph.number: number})
                return
            await asyncio.sleep(0.05)
        raise Violation(f"a session is dead {RECOVERY:g} s after a restart")

    async def reader(self) -> None:
        with af.Graph().as_default():
            graph = SessionInstance()
            chance = self.net.random("reader")
            client = Client(self.net, "reader", self.stage.cluster.target("worker0"), reopens=False)
            latest, told = -1, True
            while not self.done:
                try:
                    found = int(await client.run(graph.which))
                except AbortedError:
                    told = True
                except OpError:
                    pass
                else:
                    if found != latest and not told:
                        raise Violation(f"a session was not told of a restart: {latest} has become {found}")
                    latest, told = found, False
                await asyncio.sleep(chance.expovariate(10.0))
            await client.close()


async def restarting(net: SimNet) -> None:
    """Run restarts of the parameter server, with other faults of the network."""
    kinds = ("partition", "drop", "slow")
    await Restarting(
        net, Stage(net, {"ps": 1, "worker": 1}, faults=net.random("number").randint(0, 2), kinds=kinds)
    ).run()
