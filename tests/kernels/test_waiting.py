"""Waiters on a real event loop, cancelled and closed at any point: nothing is lost, duplicated or left waiting.

An attempt here is what a kernel awaits. A cancelled attempt either received its value or left no trace.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioflow import errors
from aioflow.sync.accumulator import AccumulatorCore, SumRequest
from aioflow.sync.barrier import BarrierCore
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.queue import Close, Dequeue, Enqueue, FIFOStore, PriorityStore, QueueCore, ShuffleStore
from aioflow.sync.staging import Get, Put, StagingCore
from aioflow.sync.waiting import Ticket, Waiting, wake_all
from tests.support.random_examples import examples

SETTINGS = settings(max_examples=examples(200), deadline=None)

# One event each: a new attempt (kind, count), ticks of the event loop, or the cancellation of an attempt.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["in", "out", "some"]), st.integers(1, 4)),
        st.tuples(st.just("tick"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["close", "cancel and close"]), st.just(0)),
    ),
    max_size=40,
)
# An attempt that is cancelled after it was served and before its task runs again.
SERVED_TOO_LATE = example(events=[("out", 1), ("tick", 2), ("in", 3)])
STORES: dict[str, Callable[[], Any]] = {
    "fifo": FIFOStore,
    "shuffle": lambda: ShuffleStore(1, random.Random(0).randrange),
    "priority": lambda: PriorityStore(lambda element: element % 7),
}


class World:
    """The tasks that wait for a core, and the count of each element that they received."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.next = 0
        self.given: Counter[int] = Counter()

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    async def play(self, events: list[tuple[str, int]], start: Callable[[str, int], Any]) -> None:
        async with asyncio.TaskGroup() as tg:
            for what, number in events:
                if what == "tick":
                    for _ in range(number):
                        await asyncio.sleep(0)
                elif what == "cancel":
                    if self.tasks:
                        self.tasks[number % len(self.tasks)].cancel()
                elif (attempt := start(what, number)) is not None:
                    self.tasks.append(tg.create_task(self.follow(attempt)))
            for task in self.tasks:
                task.cancel()  # cancel what still waits, so that the group ends

    async def follow(self, attempt: Any) -> None:
        try:
            found = await (attempt() if callable(attempt) else attempt)
        except (errors.OutOfRangeError, errors.CancelledError):
            return
        self.given.update(found or ())


@pytest.mark.parametrize("kind", STORES)
@given(events=EVENTS)
@SERVED_TOO_LATE
@SETTINGS
def test_queue_waiters_survive_any_events(kind: str, events: list[tuple[str, int]]) -> None:
    core, world, puts = QueueCore("q", 3, STORES[kind]()), World(), []

    def start(what: str, number: int) -> Any:
        if what == "in":
            ticket = Enqueue(world.fresh(number))
            puts.append(ticket)
            return waiting(core, lambda wake: woken(ticket, wake))
        if what in ("out", "some"):
            return waiting(core, partial(Dequeue, number, what == "some"))
        if what == "close":
            return waiting(core, Close)
        return wake_all(core.cancel_and_close())

    asyncio.run(world.play(events, start))
    assert not core._writers
    assert not core._readers
    put = Counter(e for ticket in puts for e in ticket.elements[: ticket.position])
    rest = Dequeue(len(core))
    core.capacity = max(core.capacity, len(core))
    wake_all(core.cancel_and_close())
    core.submit(rest)
    assert world.given + Counter(rest.value) == put


def waiting(core: Any, make: Any, finish: Any = None) -> Waiting:
    return Waiting(core.submit, core.withdraw, make, core.describe, finish)


def woken(ticket: Any, wake: Callable[[], None]) -> Any:
    ticket.wake = wake
    return ticket


@given(events=EVENTS)
@SERVED_TOO_LATE
@SETTINGS
def test_barrier_waiters_survive_any_events(events: list[tuple[str, int]]) -> None:
    core, world, put = BarrierCore("b", 1), World(), Counter[int]()

    def start(what: str, number: int) -> Any:
        if what == "in":
            values = world.fresh(number)
            try:
                resolved = core.insert(0, [b"%d" % v for v in values], values)
            except errors.CancelledError:
                return None
            put.update(values)
            return wake_all(resolved)
        if what in ("out", "some"):
            make = partial(Dequeue, number, what == "some")
            return waiting(core, make, lambda elements: [e[2] for e in elements])
        try:
            return wake_all(core.close(what != "close"))
        except errors.CancelledError:
            return None

    asyncio.run(world.play(events, start))
    assert not core._ready._readers
    rest = Dequeue(core.ready_size)
    core._ready.submit(rest)
    assert world.given + Counter(e[2] for e in rest.value or ()) == put


@given(events=EVENTS)
@SERVED_TOO_LATE
@SETTINGS
def test_staging_area_waiters_survive_any_events(events: list[tuple[str, int]]) -> None:
    core, world, puts = StagingCore("s", 2, 9), World(), []

    def start(what: str, number: int) -> Any:
        if what == "in":
            ticket = Put(world.fresh(1)[0], number)
            puts.append(ticket)
            return waiting(core, lambda wake: woken(ticket, wake), lambda _: None)
        if what in ("out", "some"):
            return waiting(core, Get, lambda put: [put.element])
        return None

    asyncio.run(world.play(events, start))
    assert not core._puts
    assert not core._gets
    inside = Counter(p.element for p in core._inside)
    assert world.given + inside == Counter(t.element for t in puts if t.resolved)


@given(events=EVENTS)
@SERVED_TOO_LATE
@SETTINGS
def test_accumulator_waiters_survive_any_events(events: list[tuple[str, int]]) -> None:
    core, world = AccumulatorCore("a", lambda total, more: total + more), World()

    def start(what: str, number: int) -> Any:
        if what == "in":
            return wake_all(core.apply(10**6, world.fresh(1)))
        if what in ("out", "some"):
            return waiting(core, partial(SumRequest, number), lambda value: value[0])
        return None

    asyncio.run(world.play(events, start))
    assert not core._takers
    assert world.given + Counter(core._sum or ()) == Counter(range(world.next))


@given(events=EVENTS)
@SERVED_TOO_LATE
@SETTINGS
def test_lock_waiters_survive_any_events(events: list[tuple[str, int]]) -> None:
    lock, world, inside, order = FairLock("lock"), World(), 0, list[int]()

    async def hold(which: int, ticks: int) -> None:
        nonlocal inside
        async with lock.taking():
            order.append(which)
            inside += 1
            assert inside == 1
            try:
                for _ in range(ticks):
                    await asyncio.sleep(0)
            finally:
                inside -= 1

    asyncio.run(
        world.play(events, lambda what, number: partial(hold, world.fresh(1)[0], number) if what == "in" else None)
    )
    assert order == sorted(order), "they are served as they came"
    assert lock.try_enter(), "nobody holds it at the end"
    assert not lock._line


def test_waiters_are_woken_in_arrival_order() -> None:
    order: list[int] = []

    async def run() -> None:
        core = QueueCore("q", 9, FIFOStore())

        async def take(which: int) -> None:
            (found,) = await waiting(core, partial(Dequeue, 1, False))
            order.append(which)
            assert found == which

        async with asyncio.TaskGroup() as tg:
            for which in range(5):
                tg.create_task(take(which))
                await asyncio.sleep(0)
            wake_all(core.submit(Enqueue(range(5))))

    asyncio.run(run())
    assert order == list(range(5))


def test_ticket_without_a_waiter_is_woken_silently() -> None:
    wake_all([Ticket()])
