"""The queue as a state machine: order, backpressure, closing and withdrawal, one event at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioflow import errors
from aioflow.sync.queue import Close, Dequeue, ElementStore, Enqueue, FIFOStore, PriorityStore, QueueCore, ShuffleStore
from aioflow.sync.waiting import Ticket
from tests.support.random_examples import examples


def fifo(capacity: int = 2) -> QueueCore:
    return QueueCore("q", capacity, FIFOStore())


def fill(core: QueueCore, *elements: Any) -> None:
    (ticket,) = core.submit(Enqueue(elements))
    assert ticket.error is None


def take(core: QueueCore, count: int = 1, small: bool = False) -> Any:
    ticket = Dequeue(count, small)
    core.submit(ticket)
    assert ticket.resolved
    if ticket.error is not None:
        raise ticket.error
    return ticket.value


def test_full_queue_makes_enqueues_wait_in_order() -> None:
    core = fifo(1)
    fill(core, 1)
    second, third = Enqueue([2]), Enqueue([3])
    assert core.submit(second) == core.submit(third) == []
    assert core.try_put(4) is None
    first = Dequeue(1)
    assert core.submit(first) == [first, second]
    assert first.value == [1]
    assert len(core) == 1
    assert not third.resolved


def test_enqueue_of_many_enters_as_space_permits() -> None:
    core = fifo(2)
    many = Enqueue([1, 2, 3, 4, 5])
    assert core.submit(many) == []
    assert len(core) == 2
    assert take(core, 2) == [1, 2]
    assert not many.resolved
    assert take(core, 3) == [3, 4, 5]
    assert many.resolved


def test_dequeues_are_served_in_order() -> None:
    core = fifo(8)
    big, small = Dequeue(3), Dequeue(1)
    assert core.submit(big) == core.submit(small) == []
    fill_ticket = Enqueue([1, 2])
    assert core.submit(fill_ticket) == [fill_ticket]
    assert core.try_take() is None, "those who wait come first"
    assert core.try_put(3) == [big]
    assert core.try_put(4) == [small]
    assert (big.value, small.value) == ([1, 2, 3], [4])


def test_dequeue_may_exceed_the_capacity() -> None:
    core = fifo(2)
    wide = Dequeue(5)
    assert core.submit(wide) == []
    many = Enqueue(range(5))
    assert set(core.submit(many)) == {wide, many}
    assert wide.value == [0, 1, 2, 3, 4]


def test_close_waits_for_earlier_enqueues() -> None:
    core = fifo(1)
    fill(core, 1)
    waiting, closing, late = Enqueue([2]), Close(), Enqueue([3])
    assert core.submit(waiting) == core.submit(closing) == core.submit(late) == []
    assert not core.closed
    assert take(core) == [1]
    assert core.describe().count("closed")
    assert (waiting.error, closing.error) == (None, None)
    assert isinstance(late.error, errors.CancelledError)
    assert take(core) == [2]
    with pytest.raises(errors.OutOfRangeError, match=r"insufficient elements \(requested 1, current size 0\)"):
        take(core)


def test_cancel_and_close_cancels_waiting_enqueues() -> None:
    core = fifo(1)
    fill(core, 1)
    waiting, closing = Enqueue([2]), Close()
    core.submit(waiting)
    core.submit(closing)
    assert core.cancel_and_close() == [waiting, closing]
    assert isinstance(waiting.error, errors.CancelledError)
    assert closing.error is None
    again = Close()
    assert core.submit(again) == [again]
    assert isinstance(again.error, errors.CancelledError)
    assert core.cancel_and_close() == []
    assert take(core) == [1]


def test_closed_queue_serves_its_remaining_elements() -> None:
    core = fifo(9)
    fill(core, 1, 2, 3)
    short, rest, none = Dequeue(5), Dequeue(5, small=True), Dequeue(5, small=True)
    core.submit(short)
    core.submit(rest)
    core.submit(none)
    assert len(core) == 0, "the first in line holds them"
    closing = Close()
    assert core.submit(closing) == [closing, short, rest, none]
    assert isinstance(short.error, errors.OutOfRangeError)
    assert "requested 5, current size 3" in str(short.error)
    assert rest.value == [1, 2, 3]
    assert isinstance(none.error, errors.OutOfRangeError)


def test_withdrawn_dequeue_returns_its_elements() -> None:
    core = fifo(9)
    first, second = Dequeue(3), Dequeue(1)
    core.submit(first)
    core.submit(second)
    fill(core, 1, 2)
    assert core.withdraw(first) == [second]
    assert second.value == [1]
    assert take(core) == [2]
    fill(core, 7, 8)
    done = Dequeue(1)
    core.submit(done)
    assert core.withdraw(done) == [], "settled, but nobody took it"
    assert take(core, 2) == [7, 8]


def test_withdrawn_enqueue_admits_the_next() -> None:
    core = fifo(1)
    fill(core, 1)
    wide, next_one = Enqueue([2, 3]), Enqueue([4])
    core.submit(wide)
    core.submit(next_one)
    core.withdraw(wide)
    assert take(core, 2) == [1, 4]
    assert next_one.resolved


def test_priority_store_serves_by_key_and_all_or_nothing() -> None:
    core = QueueCore("p", 4, PriorityStore(lambda e: e[0]))
    fill(core, (2, "b"), (1, "a"), (2, "c"))
    wide = Dequeue(4)
    assert core.submit(wide) == []
    assert len(core) == 3, "all or nothing: what comes later may be first"
    assert core.try_put((0, "z")) == [wide]
    assert [e[1] for e in wide.value] == ["z", "a", "b", "c"]
    fill(core, (5, "x"))
    found = core.try_take()
    assert found is not None
    assert found[0].value == [(5, "x")]


def taken(core: QueueCore) -> Any:
    """Take the one available element."""
    found = core.try_take()
    assert found is not None
    [element] = found[0].value
    return element


def test_shuffle_store_keeps_a_minimum_until_closed() -> None:
    core = QueueCore("s", 9, ShuffleStore(2, lambda count: 0))
    fill(core, 1, 2, 3)
    assert taken(core) == 1
    assert core.try_take() is None
    waiting = Dequeue(1)
    assert core.submit(waiting) == []
    closing = Close()
    assert core.submit(closing) == [closing, waiting]
    assert len(core) == 1


def test_describe_reports_size_capacity_state_and_waiters() -> None:
    core = fifo(2)
    core.submit(Dequeue(1))
    assert core.describe() == "queue 'q' (size 0, capacity 2, open; waiting: 0 enqueuing, 1 dequeuing)"
    core.cancel_and_close()
    assert "closed" in core.describe()
    assert "unbounded" in fifo(-1).describe()


class QueueMachine(RuleBasedStateMachine):
    """A state machine of events in any order.

    Its invariants: no element is lost or duplicated, no request waits that could proceed, and the order is fair.
    """

    def make_store(self) -> ElementStore:
        return FIFOStore()

    def __init__(self) -> None:
        super().__init__()
        self.core = QueueCore("q", 3, self.make_store())
        self.next = 0
        self.writers: list[Enqueue | Close] = []
        self.readers: list[Dequeue] = []
        self.put: list[int] = []  # elements known to be, or to have been, in the queue
        self.given: list[int] = []
        self.returned = False

    def _after(self, resolved: Iterable[Ticket], *mine: Ticket) -> None:
        resolved = list(resolved)
        assert len({id(t) for t in resolved}) == len(resolved), "a ticket was woken twice"
        for ticket in resolved:
            assert ticket.resolved
            if isinstance(ticket, Dequeue):
                if ticket.error is None:
                    self.given += ticket.value
                self.readers.remove(ticket)
            else:
                self.writers.remove(ticket)  # type: ignore[arg-type]
                if isinstance(ticket, Enqueue):
                    self.put += ticket.elements[: ticket.position]

    def _elements(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    @rule(count=st.integers(0, 5))
    def enqueue(self, count: int) -> None:
        ticket = Enqueue(self._elements(count))
        self.writers.append(ticket)
        self._after(self.core.submit(ticket))

    @rule()
    def try_enqueue(self) -> None:
        (element,) = self._elements(1)
        resolved = self.core.try_put(element)
        if resolved is not None:
            self.put.append(element)
            self._after(resolved)

    @rule()
    def try_dequeue(self) -> None:
        found = self.core.try_take()
        if found is not None:
            self.given += found[0].value
            self._after(found[1])

    @rule(count=st.integers(0, 5))
    def try_many(self, count: int) -> None:
        ticket = Dequeue(count)
        self.readers.append(ticket)
        resolved = self.core.try_submit(ticket)
        if resolved is None:
            self.readers.remove(ticket)
        else:
            assert ticket.resolved
            self._after(resolved)

    @rule(count=st.integers(0, 3))
    def try_enqueue_many(self, count: int) -> None:
        ticket = Enqueue(self._elements(count))
        self.writers.append(ticket)
        resolved = self.core.try_submit(ticket)
        if resolved is None:
            self.writers.remove(ticket)
        else:
            assert ticket.resolved
            self._after(resolved)

    @rule(count=st.integers(0, 5), small=st.booleans())
    def dequeue(self, count: int, small: bool) -> None:
        ticket = Dequeue(count, small)
        self.readers.append(ticket)
        self._after(self.core.submit(ticket))

    @rule(count=st.integers(1, 3), small=st.booleans())
    def dequeue_and_lose_it(self, count: int, small: bool) -> None:
        """Withdraw a dequeue after it was resolved, before its value was delivered."""
        ticket = Dequeue(count, small)
        self.readers.append(ticket)
        resolved = self.core.submit(ticket)
        if ticket.resolved:
            self.readers.remove(ticket)
            self._after([t for t in resolved if t is not ticket])
            # Returned elements re-enter at the front, after later ones may have been delivered.
            self.returned = self.returned or bool(ticket.taken)
            self._after(self.core.withdraw(ticket))
        else:
            self._after(resolved)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def withdraw_writer(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from(self.writers))
        self.writers.remove(ticket)
        if isinstance(ticket, Enqueue):
            self.put += ticket.elements[: ticket.position]
        self._after(self.core.withdraw(ticket))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def withdraw_reader(self, data: Any) -> None:
        ticket = data.draw(st.sampled_from(self.readers))
        self.readers.remove(ticket)
        self._after(self.core.withdraw(ticket))

    @precondition(lambda self: self.next > 6)
    @rule()
    def close(self) -> None:
        ticket = Close()
        self.writers.append(ticket)
        self._after(self.core.submit(ticket))

    @precondition(lambda self: self.next > 12)
    @rule()
    def cancel_and_close(self) -> None:
        self._after(self.core.cancel_and_close())

    def _inside(self) -> list[int]:
        return [e for t in self.readers for e in t.taken] + self._stored()

    def _stored(self) -> list[int]:
        return list(self.core._store._elements)  # type: ignore[attr-defined]

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        inside = self._inside()
        partly = [e for t in self.writers if isinstance(t, Enqueue) for e in t.elements[: t.position]]
        assert sorted(self.given + inside) == sorted(self.put + partly)
        assert len(set(self.given + inside)) == len(self.given + inside)

    @invariant()
    def order_is_kept(self) -> None:
        assert self._inside() == sorted(self._inside())
        if not self.returned:
            assert self.given == sorted(self.given)

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        if self.core.closed:
            assert not self.writers
            assert not self.readers
        if self.writers:
            assert len(self.core) >= self.core.capacity
        if self.readers:
            first = self.readers[0]
            assert self.core._store.available(first.count - len(first.taken), 3, self.core.closed) == 0
            assert all(not t.taken for t in self.readers[1:]), "only the first in line collects"
        assert list(self.core._writers) == self.writers
        assert list(self.core._readers) == self.readers


class ShuffleMachine(QueueMachine):
    """The same machine with a shuffling store: no order, and one element stays inside."""

    def make_store(self) -> ElementStore:
        return ShuffleStore(1, random.Random(0).randrange)

    def order_is_kept(self) -> None:
        """Check nothing: a shuffle has no order."""


class PriorityMachine(QueueMachine):
    """The same machine with a priority store."""

    def make_store(self) -> ElementStore:
        return PriorityStore(lambda element: element % 5)

    def _inside(self) -> list[int]:
        held = [e[2] for t in self.readers for e in t.taken]
        return held + [entry[2] for entry in self.core._store._heap]  # type: ignore[attr-defined]

    def order_is_kept(self) -> None:
        """Check nothing: order holds only within one dequeue, and a unit test checks that."""


for _machine in (QueueMachine, ShuffleMachine, PriorityMachine):
    _machine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase
TestShuffleMachine = ShuffleMachine.TestCase
TestPriorityMachine = PriorityMachine.TestCase
