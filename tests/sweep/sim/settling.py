"""Clients that leave the placement of variables to the engine.

A variable exists on one task only, no matter which client places or initializes it, and which task restarts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.sim_faults import Fault
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.scenes import Client, Stage, Violation

_NAMES: Final = ("a", "b", "c", "d")
_WORKERS: Final = 3
_HANDS: Final = 2  # concurrent sequences of steps per client
_ACTS: Final = 12  # steps of each sequence
_OFTEN: Final = 0.02  # seconds between two inspections


class Free:
    """The graph of a client: variables without a device."""

    def __init__(self) -> None:
        self.value = af.placeholder("float32", [2])
        self.variables = {name: af.Variable(self.value, name=name) for name in _NAMES}


class Settling:
    """A scene: clients of different workers, each of which would place the variables on its own worker."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage

    async def run(self) -> None:
        names = [f"client{number}" for number in range(_WORKERS)]
        await self.stage.set_up(names)
        self.crash_coordinator()
        async with asyncio.TaskGroup() as watch_group:
            watching = watch_group.create_task(self.watch())
            await self.stage.perform({name: self.program(number) for number, name in enumerate(names)})
            watching.cancel()
        self.look()
        await self.stage.end()

    def crash_coordinator(self) -> None:
        chance = self.net.random("coordinator")
        for _ in range(chance.randint(0, 3)):
            fault = Fault(
                chance.uniform(0.0, 2.0), chance.uniform(0.0, 1.0), "crash", ("chief0",), chance.random() < 0.3
            )
            self.stage.schedule.faults.append(fault)

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_OFTEN)

    def look(self) -> None:
        for name in _NAMES:
            found = [
                device
                for _, server in sorted(self.stage.cluster.servers.items())
                for device, owner in server.worker.devices.items()
                if owner.resources.find("", name) is not None
            ]
            if len(found) > 1:
                raise Violation(f"the variable {name} is in more than one place: {found}")

    def program(self, number: int) -> Any:
        async def place_and_make() -> None:
            with af.Graph().as_default():
                graph = Free()
                name = f"client{number}"
                client = Client(self.net, name, self.stage.cluster.target(f"worker{number}"), reopens=False)
                async with asyncio.TaskGroup() as acts:
                    for hand in range(_HANDS):
                        acts.create_task(self.act(client, graph, f"{name} {hand}"))
                await self.stage.comes_back(client, graph.variables["a"].value())
                await client.close()

        return place_and_make

    async def act(self, client: Client, graph: Free, name: str) -> None:
        chance = self.net.random(name)
        for _ in range(_ACTS):
            variable = graph.variables[chance.choice(_NAMES)]
            # A malformed feed is rejected only after the step has been planned, and then nothing runs.
            feed: Any = "no number" if chance.random() < 0.6 else [1.0, 2.0]
            with suppress(OpError):
                await client.run(variable.initializer, {graph.value: feed})
            await asyncio.sleep(chance.expovariate(6.0))


async def settling(net: SimNet) -> None:
    """Run restarts of the task that coordinates the owners of variables, of the other tasks, and network faults."""
    kinds = ("crash", "crash", "partition", "drop")
    faults = net.random("number").randint(0, 4)
    await Settling(net, Stage(net, {"chief": 1, "worker": _WORKERS}, faults=faults, kinds=kinds)).run()
