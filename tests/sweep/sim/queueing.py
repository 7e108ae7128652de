"""Producers and consumers of one queue: no element is dequeued twice, and none is lost without an error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aioflow as af
from aioflow.errors import OpError
from aioflow.testing.sim_net import SimNet
from tests.sweep.sim.scenes import PATIENCE, Client, Stage, Violation

ELEMENTS = 8  # per producer
LAST = 999
_LONG: Final = 500.0


class Elements:
    """The graph of a client: a queue on the parameter server, used through a worker."""

    def __init__(self, worker: int) -> None:
        with af.device("/job:ps/task:0"):
            queue = af.FIFOQueue(4, [af.int64], shapes=[()], shared_name="elements")
        with af.device(f"/job:worker/task:{worker}"):
            self.element = af.placeholder("int64", [])
            doubled = self.element * 2
        with af.device("/job:ps/task:0"):
            self.put = queue.enqueue(doubled)
            taken = self.raw = queue.dequeue()
            self.size = queue.size()
        with af.device(f"/job:worker/task:{worker}"):
            self.take = af.floordiv(taken, 2)
            failing = af.gather(af.constant([1, 2]), self.element)
        self.fail = af.group(self.take, failing)  # fails on one task while another waits for an element


class Queueing:
    """A scene: two clients enqueue, two dequeue."""

    def __init__(self, net: SimNet, stage: Stage) -> None:
        self.net = net
        self.stage = stage
        self.put: set[int] = set()
        self.maybe_put: set[int] = set()
        self.taken: list[int] = []
        self.maybe_taken = 0
        self.producing = 2

    async def run(self) -> None:
        names = ["producer0", "producer1", "consumer0", "consumer1"]
        await self.stage.set_up(names)
        programs = {n: (self.producer if n.startswith("p") else self.consumer)(n, int(n[-1])) for n in names}
        await self.stage.perform(programs)
        await self.stage.afterwards(self.judge)
        self.hold()
        await self.stage.end()

    def hold(self) -> None:
        """Compare the dequeued elements with the enqueued ones. Raise Violation if one is duplicated or lost."""
        self.taken = [element for element in self.taken if element != LAST]
        if len(set(self.taken)) < len(self.taken):
            raise Violation(f"an element came out twice: {sorted(self.taken)}")
        if unknown := set(self.taken) - self.put - self.maybe_put:
            raise Violation(f"elements came out whose producers were told that they were not put in: {unknown}")
        lost = self.put - set(self.taken)
        if len(lost) > self.maybe_taken:
            raise Violation(f"{sorted(lost)} are lost, and {self.maybe_taken} steps may have taken one")

    def producer(self, name: str, number: int) -> Any:
        async def produce() -> None:
            with af.Graph().as_default():
                graph = Elements(number)
                client = Client(self.net, name, self.stage.cluster.target("ps0"))
                client.calm = self.stage.calm
                for index in range(ELEMENTS):
                    element = 100 * number + index
                    try:
                        await client.run(graph.put, {graph.element: element}, seconds=1.5)
                        self.put.add(element)
                    except OpError as error:
                        if error.may_have_been_applied:
                            self.maybe_put.add(element)
                        await asyncio.sleep(0.1)
                await self.stage.comes_back(client, graph.size)
                await client.close()
            self.producing -= 1

        return produce

    def consumer(self, name: str, number: int) -> Any:
        async def consume() -> None:
            with af.Graph().as_default():
                graph = Elements(number)
                client = Client(self.net, name, self.stage.cluster.target("worker0"))
                while self.producing:
                    await self.take(client, graph)
                await client.close()

        return consume

    async def take(self, client: Client, graph: Elements) -> bool:
        try:
            self.taken.append(int(await client.run(graph.take, seconds=1.0)))
        except OpError as error:
            self.maybe_taken += bool(error.may_have_been_applied)
            await asyncio.sleep(0.1)
            return False
        return True

    async def judge(self, client: Client) -> None:
        """Dequeue the remaining elements, then check that steps waiting on the empty queue end."""
        with af.Graph().as_default():
            graph = Elements(0)
            while int(await client.run(graph.size)):
                await self.take(client, graph)
            if await self.take(client, graph):
                raise Violation("an element came out of an empty queue")
            await self.stage.idle(3.0)
            await self.end_waits(client, graph)
            await client.run(graph.put, {graph.element: LAST})
            if int(await client.run(graph.take)) != LAST:
                raise Violation("another element came out than the only one that was put in")

    async def end_waits(self, client: Client, graph: Elements) -> None:
        """Check that an event that ends a waiting step ends it on every task, long before its time limit."""
        for end in (self.cancel, self.fail, self.lose, self.shut):
            await end(client, graph)
            await self.stage.idle(3.0)

    async def cancel(self, client: Client, graph: Elements) -> None:
        async with asyncio.TaskGroup() as waiting:
            stuck = waiting.create_task(client.run(graph.take, seconds=_LONG))
            await asyncio.sleep(0.5)
            stuck.cancel()

    async def fail(self, client: Client, graph: Elements) -> None:
        """Fail one part of a step while another part waits."""
        await self.must_end(client, graph.fail, {graph.element: 7})

    async def lose(self, client: Client, graph: Elements) -> None:
        """Drop the connection while a step waits."""
        async with asyncio.TaskGroup() as waiting:
            waiting.create_task(self.must_end(client, graph.raw, {}))
            await asyncio.sleep(0.5)
            self.net.drop(client.host, "ps0")

    async def shut(self, client: Client, graph: Elements) -> None:
        """Close the session while a step waits."""
        async with asyncio.TaskGroup() as waiting:
            waiting.create_task(self.must_end(client, graph.raw, {}))
            await asyncio.sleep(0.5)
            await client.close()

    async def must_end(self, client: Client, fetch: Any, feeds: Mapping[Any, Any]) -> None:
        """Run a step. Raise Violation unless it fails within `PATIENCE` seconds."""
        began = self.net.loop.time()
        with suppress(OpError):
            await client.run(fetch, feeds, seconds=_LONG)
            raise Violation("a step that waits for an element has a result, and there is none")
        if self.net.loop.time() > began + PATIENCE:
            raise Violation("a step went on waiting after something had ended it")


async def queueing(net: SimNet) -> None:
    """Run the queue scene. Even seeds never pause or crash the queue's server; odd seeds crash no process at all."""
    stage = Stage(net, {"ps": 1, "worker": 2}, faults=net.random("number").randint(0, 4), spare=["ps0"])
    if net.seed % 2:
        stage.kinds, stage.spare = ("partition", "drop", "slow", "pause"), ()
    await Queueing(net, stage).run()
