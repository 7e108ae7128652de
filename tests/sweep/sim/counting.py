"""Clients that count: compares what became of each update with what its client was told.

Each unit of work adds 1 to its own element of a variable on a parameter server, through a worker.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import aioflow as af
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.testing.sim_faults import FAULTS, Fault
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.scenes import Client, Stage, Violation

UNITS = 15  # per client


@dataclass
class Ledger:
    """Reports to the clients, by unit of work.

    Attributes:
        done: Units whose step returned a result.
        unknown: Units that may have been applied, and that their client gave up.
        saved: Units that were done when the last checkpoint that was reported as written began.
        settled: Count that a client read for a unit after the unit's step was reported as failed.
        crashes: Whether the parameter server may lose its variable.
    """

    done: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    settled: dict[int, int] = field(default_factory=dict)
    crashes: bool = False

    def hold(self, final: Any) -> None:
        """Compare with the final values of the variable. Raise Violation if they contradict the reports."""
        for unit, count in enumerate(final.tolist()):
            if self.settled.get(unit, count) != count and not self.crashes:
                raise Violation(f"unit {unit} was applied after its client had been told that its step had failed")
            if count > 1:
                raise Violation(f"unit {unit} was applied {count} times")
            if count and unit not in self.done and unit not in self.unknown:
                raise Violation(f"unit {unit} was applied, although its client was told that it was not")
            if not count and unit in self.saved:
                raise Violation(f"unit {unit} was lost after a checkpoint that has it")
            if not count and unit in self.done and not self.crashes:
                raise Violation(f"unit {unit} was done, and is lost")


class Counters:
    """The graph of a client: a variable on the parameter server, steps that count in it, and its checkpoints."""

    def __init__(self, size: int, worker: int) -> None:
        with af.device("/job:ps/task:0"):
            self.counts = af.Variable(np.zeros(size, np.int64), name="counts")
            self.path = af.placeholder("string", [])
            self.save = af.raw_ops.SaveV2(
                prefix=self.path, tensor_names=["counts"], shape_and_slices=[""], tensors=[self.counts]
            )
            (value,) = af.raw_ops.RestoreV2(
                prefix=self.path, tensor_names=["counts"], shape_and_slices=[""], dtypes=[af.int64]
            )
            self.saved = value
            self.restore = af.assign(self.counts, value)
        with af.device(f"/job:worker/task:{worker}"):
            self.unit = af.placeholder("int64", [])
            delta = af.one_hot(self.unit, size, dtype=af.int64)
        with af.device("/job:ps/task:0"):
            added = af.assign_add(self.counts, delta)
        with af.device(f"/job:worker/task:{worker}"):
            self.add = af.reduce_sum(added)
            self.total = af.reduce_sum(self.counts)


class Counting:
    """A scene: clients that count, on one parameter server and two workers.

    Args:
        stage: Simulated cluster and its faults.
        clients: Number of clients.
        saves: Whether the first client writes checkpoints, and restores the variable after a crash of the server.
    """

    def __init__(self, stage: Stage, clients: int, saves: bool) -> None:
        self.stage = stage
        self.net = stage.net
        self.clients = [f"client{number}" for number in range(clients)]
        self.saves = saves
        self.size = clients * UNITS
        self.ledger = Ledger(crashes=saves)
        self.latest: str | None = None
        self.latest_done: set[int] = set()
        self.begun = asyncio.Event()

    async def run(self) -> None:
        await self.stage.set_up(self.clients)
        if self.saves:
            self.spoil_disk()
        programs = {name: self.program(number) for number, name in enumerate(self.clients)}
        await self.stage.perform(programs)
        self.ledger.hold(await self.stage.afterwards(self.judge))
        if self.latest is not None:
            self.hold_saved(await self.stage.afterwards(self.read_saved))
        await self.stage.end()

    def spoil_disk(self) -> None:
        """Add a fault of the disk of the parameter server, the only one that checkpoints use."""
        chance = self.net.random("disk")
        faults = self.stage.schedule.faults
        faults.append(
            Fault(chance.uniform(0.0, 3.0), chance.uniform(0.2, 2.0), "disk", ("ps0",), chance.random() < 0.5)
        )

    def client(self, number: int) -> Client:
        return Client(self.net, self.clients[number], self.stage.cluster.target(f"worker{number % 2}"))

    def program(self, number: int) -> Any:
        async def count() -> None:
            with af.Graph().as_default():
                graph = Counters(self.size, number % 2)
                client = self.client(number)
                client.calm = self.stage.calm
                chance = self.net.random(f"client {number}")
                if number:
                    await self.begun.wait()
                for index in range(UNITS):
                    await self.unit(client, graph, number * UNITS + index, number == 0)
                    # One step that does not run again until the end of the scene.
                    if index == 0:
                        with suppress(OpError):
                            await client.run(graph.total)
                    await asyncio.sleep(chance.expovariate(10.0))
                    if number == 0 and self.saves and chance.random() < 0.4:
                        await self.checkpoint(client, graph)
                await self.stage.comes_back(client, graph.total)
                await client.close()

        return count

    async def unit(self, client: Client, graph: Counters, unit: int, chief: bool) -> None:
        """Run the step of a unit until it succeeds, or may have been applied."""
        for _ in range(40):
            try:
                if chief and not self.begun.is_set():
                    await self.initialize(client, graph)
                await client.run(graph.add, {graph.unit: unit})
            except FailedPreconditionError as error:
                if not _never(error):
                    self.ledger.unknown.add(unit)
                if chief:
                    await self.recover(client, graph)
            except OpError as error:
                if self.begun.is_set() and not _never(error):
                    self.ledger.unknown.add(unit)
                    await self.settle(client, graph, unit)
                    return
            else:
                self.net.note(client.host, f"unit {unit} is done")
                self.ledger.done.add(unit)
                return
            await asyncio.sleep(0.2)

    async def settle(self, client: Client, graph: Counters, unit: int) -> None:
        """Read the count of a unit after its step has failed."""
        with suppress(OpError):
            self.ledger.settled[unit] = int((await client.run(graph.counts))[unit])
            self.net.note(client.host, f"unit {unit} was applied {self.ledger.settled[unit]} times")

    async def initialize(self, client: Client, graph: Counters) -> None:
        await client.run(graph.counts.initializer)
        self.begun.set()

    async def recover(self, client: Client, graph: Counters) -> None:
        """Restore the variable after a restart of the parameter server.

        The values come from the last checkpoint, or else from the initializer.
        """
        # Units that were done since the last checkpoint are lost.
        self.ledger.unknown |= self.ledger.done - self.ledger.saved
        self.ledger.done &= self.ledger.saved
        try:
            self.net.note(client.host, f"recovers from {'nothing' if self.latest is None else self.latest[-9:]}")
            if self.latest is None:
                await client.run(graph.counts.initializer)
            else:
                await client.run(graph.restore.op, {graph.path: self.latest})
        except OpError:
            pass

    async def checkpoint(self, client: Client, graph: Counters) -> None:
        done = set(self.ledger.done)
        number = self.net.loop.time()
        path = f"{self.net.hosts['ps0'].disk}/at-{number:09.4f}"
        try:
            await client.run(graph.save, {graph.path: path})
        except OpError:
            return
        self.net.note(client.host, f"saved {sorted(done)} at {path[-9:]}")
        self.latest = path
        self.latest_done = self.ledger.saved = done

    async def judge(self, client: Client) -> Any:
        with af.Graph().as_default():
            graph = Counters(self.size, 0)
            try:
                return await client.run(graph.counts)
            except FailedPreconditionError:
                if not self.saves:
                    raise
                await self.recover(client, graph)
                return await client.run(graph.counts)

    async def read_saved(self, client: Client) -> Any:
        """Return the values in the last checkpoint that was reported as written."""
        with af.Graph().as_default():
            graph = Counters(self.size, 0)
            return await client.run(graph.saved, {graph.path: self.latest})

    def hold_saved(self, counts: Any) -> None:
        """Raise Violation unless the checkpoint holds every unit that was done when its writing began."""
        if lost := [unit for unit in sorted(self.latest_done) if not counts[unit]]:
            raise Violation(f"units {lost} were done, and are not in the checkpoint that was written then")


def _never(error: OpError) -> bool:
    return not error.may_have_been_applied


async def counting(net: SimNet) -> None:
    """Run asynchronous updates by two clients.

    The variable is not saved, so the parameter server must not crash. With even seeds it is neither paused nor crashed;
    with odd seeds no process crashes.
    """
    stage = Stage(net, {"ps": 1, "worker": 2}, faults=net.random("number").randint(0, 6), spare=["ps0"])
    if net.seed % 2:
        stage.kinds, stage.spare = ("partition", "drop", "slow", "pause"), ()
    await Counting(stage, 2, saves=False).run()


async def saving(net: SimNet) -> None:
    """Run the same updates with checkpoints, and with crashes and disk errors of the parameter server, too."""
    stage = Stage(net, {"ps": 1, "worker": 2}, faults=net.random("number").randint(1, 4), kinds=tuple(FAULTS))
    await Counting(stage, 2, saves=True).run()
