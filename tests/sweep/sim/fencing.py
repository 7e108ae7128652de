"""Abandoned steps: a second client (the friend), which is told of them, checks that they are not applied later.

Each unit of work adds 1 to its own element, by steps of which many run at once. Some steps have feeds that take long to
send, and end before these arrive. The connection between the client and the parameter server is cut for seconds, and
that of the friend is not.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.sim_faults import Fault, FaultSchedule
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.counting import Ledger
from tests.sweep.sim.scenes import Client, Stage

_UNITS: Final = 40
_BALLAST: Final = 30_000  # numbers in a long feed
_BANDWIDTH: Final = 1e6  # bytes per second: sending a long feed takes longer than some steps may


class Adding:
    """The graph of a client: a variable on the parameter server, and a step that adds to one element."""

    def __init__(self) -> None:
        with af.device("/job:ps/task:0"):
            self.counts = af.Variable(np.zeros(_UNITS, np.int64), name="counts")
            self.unit = af.placeholder("int64", [])
            self.ballast = af.placeholder("int64", [None])
            delta = af.one_hot(self.unit, _UNITS, dtype=af.int64) + af.reduce_sum(self.ballast)
            self.add = af.reduce_sum(af.assign_add(self.counts, delta))


class Fencing:
    """A scene: a client that adds, and a second one that checks its failed steps."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage
        self.ledger = Ledger()
        self.told: asyncio.Queue[int | None] = asyncio.Queue()
        self.begun = asyncio.Event()

    async def run(self) -> None:
        await self.stage.set_up(["client", "friend"])
        self.net.link("client", "ps0").bandwidth = _BANDWIDTH
        self.stage.schedule = self.faults()
        await self.stage.perform({"client": self.client, "friend": self.friend})
        self.ledger.hold(await self.stage.afterwards(self.judge))
        await self.stage.end()

    def faults(self) -> FaultSchedule:
        chance = self.net.random("cuts")
        kinds = [("partition", ("client", "ps0")), ("partition", ("ps0", "client")), ("pause", ("ps0",))]
        faults = []
        for _ in range(chance.randint(0, 3)):
            kind, hosts = chance.choice(kinds)
            hard = kind == "partition" and chance.random() < 0.3
            faults.append(Fault(chance.uniform(0.2, 3.0), chance.uniform(0.5, 4.0), kind, hosts, hard))
        return FaultSchedule(faults)

    async def client(self) -> None:
        with af.Graph().as_default():
            graph = Adding()
            client = Client(self.net, "client", self.stage.cluster.target("ps0"), reopens=False)
            chance = self.net.random("client")
            await self.begun.wait()
            async with asyncio.TaskGroup() as adding_group:
                for unit in range(_UNITS):
                    ballast = _BALLAST if chance.random() < 0.25 else 1
                    seconds = chance.choice((0.1, 2.0))
                    adding_group.create_task(self.add(client, graph, unit, ballast, seconds))
                    await asyncio.sleep(chance.expovariate(12.0))
            await self.stage.comes_back(client, graph.counts)
            await client.close()
        self.told.put_nowait(None)

    async def add(self, client: Client, graph: Adding, unit: int, ballast: int, seconds: float) -> None:
        feeds = {graph.unit: unit, graph.ballast: np.zeros(ballast, np.int64)}
        try:
            await client.run(graph.add, feeds, seconds=seconds)
        except OpError as error:
            if error.may_have_been_applied:
                self.ledger.unknown.add(unit)
            self.told.put_nowait(unit)
        else:
            self.ledger.done.add(unit)

    async def friend(self) -> None:
        with af.Graph().as_default():
            graph = Adding()
            client = Client(self.net, "friend", self.stage.cluster.target("ps0"))
            while not self.begun.is_set():
                with suppress(OpError):
                    await client.run(graph.counts.initializer)
                    self.begun.set()
            while (unit := await self.told.get()) is not None:
                with suppress(OpError):
                    self.ledger.settled[unit] = int((await client.run(graph.counts))[unit])
                    self.net.note("friend", f"unit {unit} was applied {self.ledger.settled[unit]} times")
            await client.close()

    async def judge(self, client: Client) -> Any:
        with af.Graph().as_default():
            return await client.run(Adding().counts)


async def fencing(net: SimNet) -> None:
    """Run many steps at once while one connection to the parameter server is cut and another is not."""
    await Fencing(net, Stage(net, {"ps": 1}, faults=0)).run()
