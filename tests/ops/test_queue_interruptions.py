"""Queue operations that are interrupted after any number of loop iterations, and several loops at one queue."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors

KINDS: dict[str, Callable[[], Any]] = {
    "fifo": lambda: af.FIFOQueue(3, ["int64"], shapes=[[]]),
    "padding": lambda: af.PaddingFIFOQueue(3, ["int64"], shapes=[[]]),
    "shuffle": lambda: af.RandomShuffleQueue(3, 1, ["int64"], shapes=[[]], seed=1),
    "priority": lambda: af.PriorityQueue(3, ["int64"], shapes=[[]]),
}
_GUARD = 60.0  # seconds after which an operation counts as hung; the machine may pause for a while
OPERATIONS = ("enqueue", "enqueue_many", "dequeue", "dequeue_many", "dequeue_up_to", "close", "size")


class Nodes:
    """A queue of numbers and the nodes that use it. Each number is its own priority."""

    def __init__(self, kind: str) -> None:
        self.queue = KINDS[kind]()
        self.pairs = kind == "priority"
        self.one, self.many = af.placeholder("int64", []), af.placeholder("int64", [None])
        self.nodes = {
            "enqueue": self.queue.enqueue([self.one] * (1 + self.pairs)),
            "enqueue_many": self.queue.enqueue_many([self.many] * (1 + self.pairs)),
            "dequeue": self.queue.dequeue(),
            "dequeue_many": self.queue.dequeue_many(2),
            "dequeue_up_to": self.queue.dequeue_up_to(2),
            "close": self.queue.close(),
            "cancel and close": self.queue.close(cancel_pending_enqueues=True),
            "size": self.queue.size(),
        }

    def values(self, found: Any) -> list[int]:
        return np.reshape(found[1] if self.pairs else found, -1).tolist()


class Account:
    """Counts of elements that were enqueued and dequeued, and that may have been.

    Attributes:
        put: Elements that were enqueued.
        maybe_put: Elements of interrupted enqueue operations.
        given: Elements that were dequeued.
        maybe_given: Number of elements that interrupted dequeue operations may have taken.
    """

    def __init__(self) -> None:
        self.put: Counter[int] = Counter()
        self.maybe_put: Counter[int] = Counter()
        self.given: Counter[int] = Counter()
        self.maybe_given = 0

    async def run(self, session: af.Session, nodes: Nodes, what: str, values: list[int], **more: Any) -> None:
        """Run one operation and record its outcome."""
        values = values[:1] if what == "enqueue" else values
        feeds: dict[Any, Any] = {}
        if what.startswith("enqueue"):
            feeds = {nodes.one: values[0]} if what == "enqueue" else {nodes.many: values}
        try:
            found = await session.run(nodes.nodes[what], feeds, **more)
        except (asyncio.CancelledError, errors.DeadlineExceededError):
            # The operation may have taken effect before the step was notified; this is not undone.
            self.maybe_put.update(values if what.startswith("enqueue") else ())
            self.maybe_given += {"dequeue": 1, "dequeue_many": 2, "dequeue_up_to": 2}.get(what, 0)
            raise
        except errors.CancelledError:
            self.maybe_put.update(values if what == "enqueue_many" else ())
            return
        except errors.OutOfRangeError:
            return
        if what.startswith("enqueue"):
            self.put.update(values)
        elif what.startswith("dequeue"):
            self.given.update(nodes.values(found))

    def check(self, rest: list[int]) -> None:
        out = self.given + Counter(rest)
        assert set(out.values()) <= {1}, "an element came twice"
        assert not out - self.put - self.maybe_put, "an element came that nobody put in"
        assert (self.put - out).total() <= self.maybe_given, "an element was lost"


async def drain(session: af.Session, nodes: Nodes) -> list[int]:
    """Close the queue and return its remaining elements."""
    await session.run(nodes.nodes["cancel and close"])
    found: list[int] = []
    while True:
        try:
            found += nodes.values(await session.run(nodes.nodes["dequeue_up_to"], timeout=_GUARD))
        except errors.OutOfRangeError:
            return found


async def interrupted(kind: str, what: str, how: str, turns: int, filled: int) -> None:
    with af.Graph().as_default():
        nodes, account = Nodes(kind), Account()
        async with af.Session() as session, asyncio.TaskGroup() as tg:
            for value in range(filled):
                await account.run(session, nodes, "enqueue", [value])
            helpers = [tg.create_task(account.run(session, nodes, "enqueue", [10]))] if filled == 3 else []
            task = tg.create_task(account.run(session, nodes, what, [20, 21]))
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "cancel":
                task.cancel()
            else:
                helpers.append(tg.create_task(account.run(session, nodes, how, [])))
            others = ("dequeue", "dequeue", "enqueue", "dequeue")
            # Later operations must be served, whatever happened to the first.
            for i, other in enumerate(others):
                helpers.append(tg.create_task(account.run(session, nodes, other, [30 + i], timeout=_GUARD)))
                await asyncio.sleep(0)
            rest = await drain(session, nodes)
            await asyncio.wait([task, *helpers], timeout=_GUARD)
            assert all(t.done() for t in (task, *helpers)), "somebody hangs"
            rest += await drain(session, nodes)
            assert await session.stuck_report() == []
        account.check(rest)


async def interrupted_at_any_point(kind: str, what: str) -> None:
    for how in ("cancel", "close", "cancel and close"):
        for turns in (0, 1, 2, 3, 4, 5, 6, 8, 11, 15):
            for filled in (0, 3):
                await interrupted(kind, what, how, turns, filled)


@pytest.mark.parametrize("what", OPERATIONS)
async def test_fifo_queue_survives_interruption_at_any_point(what: str) -> None:
    # The other kinds of queues are part of the sweep.
    await interrupted_at_any_point("fifo", what)


@pytest.mark.parametrize("kind", KINDS)
def test_loops_of_several_threads_share_a_queue(kind: str, graph: af.Graph) -> None:
    # Three threads, each with its own event loop and session, enqueue, dequeue and time out at random.
    nodes, accounts = Nodes(kind), [Account() for _ in range(3)]
    owner = af.Session(graph=graph)
    failures: list[BaseException] = []

    async def work(which: int) -> None:
        rng = random.Random(which)
        async with af.Session(owner.worker, graph=graph) as session:
            for i in range(60):
                what = rng.choice(("enqueue", "enqueue_many", "dequeue", "dequeue_many", "dequeue", "size"))
                values = [which * 1000 + 2 * i, which * 1000 + 2 * i + 1]
                try:
                    await accounts[which].run(session, nodes, what, values, timeout=rng.choice((0.002, 0.01)))
                except errors.DeadlineExceededError:
                    continue
            assert await session.stuck_report() == []

    def loop(which: int) -> None:
        try:
            asyncio.run(work(which))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    whole = Account()
    for account in accounts:
        whole.put += account.put
        whole.maybe_put += account.maybe_put
        whole.given += account.given
        whole.maybe_given += account.maybe_given
    whole.check(asyncio.run(drain(owner, nodes)))
    assert whole.given, "something went through"
