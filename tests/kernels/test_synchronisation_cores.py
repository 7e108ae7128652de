"""Accumulators, barriers, staging areas and locks as state machines: no loss, no duplicates, no hanging waiters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioflow import errors
from aioflow.sync.accumulator import AccumulatorCore, SumRequest
from aioflow.sync.barrier import FIRST_INDEX, BarrierCore
from aioflow.sync.fair_lock import FairLock
from aioflow.sync.queue import Dequeue
from aioflow.sync.staging import Get, Peek, Put, StagingCore
from aioflow.sync.waiting import Ticket
from tests.support.random_examples import examples

SETTINGS = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


class Lines(RuleBasedStateMachine):
    """Base of all machines here: the waiting tickets in arrival order, and the served tickets."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []
        self.served: list[Any] = []

    def ask(self, submit: Callable[[Any], Iterable[Ticket]], ticket: Any) -> None:
        self.waiting.append(ticket)
        self.resolve(submit(ticket))

    def resolve(self, resolved: Iterable[Ticket]) -> None:
        resolved = list(resolved)
        assert len({id(t) for t in resolved}) == len(resolved), "a ticket was woken twice"
        for ticket in resolved:
            assert ticket.resolved
            earlier = [t for t in self.waiting[: self.waiting.index(ticket)] if self.same_line(t, ticket)]
            assert all(t in resolved for t in earlier), "somebody was overtaken"
            self.served.append(ticket)
        self.waiting = [t for t in self.waiting if t not in resolved]

    def same_line(self, one: Ticket, other: Ticket) -> bool:
        return type(one) is type(other)

    def cancel(self, data: Any, withdraw: Callable[[Any], Iterable[Ticket]]) -> Any:
        """Withdraw a waiting ticket."""
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.resolve(withdraw(ticket))
        return ticket

    def lose(self, data: Any, withdraw: Callable[[Any], Iterable[Ticket]], candidates: list[Any]) -> Any:
        """Withdraw a ticket after it was served, before its value was delivered."""
        ticket = data.draw(st.sampled_from(candidates))
        self.served.remove(ticket)
        self.resolve(withdraw(ticket))
        return ticket


# ── barrier ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_barrier_serves_complete_elements_by_index() -> None:
    core = BarrierCore("b", 2)
    core.insert(0, [b"x", b"y"], [1, 2])
    core.insert(0, [b"z"], [3])
    wide = Dequeue(2)
    assert core.submit(wide) == []
    assert core.insert(1, [b"z"], [30]) == []
    assert core.insert(1, [b"y"], [20]) == [wide]
    assert wide.value == [(FIRST_INDEX, b"y", 2, 20), (FIRST_INDEX + 1, b"z", 3, 30)]
    assert (core.ready_size, core.incomplete_size) == (0, 1)
    assert core.describe() == "barrier 'b' (0 ready, 1 incomplete, open)"


def test_rejected_insert_changes_nothing() -> None:
    core = BarrierCore("b", 2)
    core.insert(0, [b"x"], [1])
    for keys in ([b"new", b"x"], [b"new", b"new"]):
        with pytest.raises(errors.InvalidArgumentError, match="already has component 0"):
            core.insert(0, keys, [1, 2])
    assert core.incomplete_size == 1
    core.close(cancel=False)
    with pytest.raises(errors.CancelledError):
        core.insert(1, [b"x", b"new"], [1, 2])
    assert (core.ready_size, core.incomplete_size) == (0, 1)


def test_closing_barrier_ends_its_waiters() -> None:
    core = BarrierCore("b", 2)
    core.insert(0, [b"x", b"y"], [1, 2])
    core.insert(1, [b"x"], [3])
    small, much = Dequeue(3, small=True), Dequeue(1)
    core.submit(small)
    core.submit(much)
    assert core.close(cancel=False) == [], "y may still be completed"
    late = Dequeue(3)
    assert core.submit(late) == [late]
    assert isinstance(late.error, errors.OutOfRangeError)
    assert core.close(cancel=True) == [small, much]
    assert [e[1] for e in small.value] == [b"x"]
    assert isinstance(much.error, errors.OutOfRangeError)


class BarrierMachine(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.core = BarrierCore("b", 2)
        self.begun: dict[bytes, set[int]] = {}
        self.whole: Counter[bytes] = Counter()
        self.keys = 0

    @rule(count=st.integers(1, 3), component=st.integers(0, 1))
    def begin(self, count: int, component: int) -> None:
        keys = [b"%d" % i for i in range(self.keys, self.keys + count)]
        self.keys += count
        try:
            self.resolve(self.core.insert(component, keys, keys))
        except errors.CancelledError:
            assert self.core.closed
        else:
            assert not self.core.closed
            self.begun |= {key: {component} for key in keys}

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), component=st.integers(0, 1))
    def go_on(self, data: Any, component: int) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.begun)), min_size=1, max_size=4, unique=True))
        try:
            resolved = self.core.insert(component, keys, keys)
        except errors.InvalidArgumentError:
            assert any(component in self.begun[key] for key in keys)
            return
        for key in keys:
            self.begun[key].add(component)
            if len(self.begun[key]) == 2:
                self.whole[key] += 1
                del self.begun[key]
        self.resolve(resolved)

    @rule(count=st.integers(0, 4), small=st.booleans())
    def take(self, count: int, small: bool) -> None:
        self.ask(self.core.submit, Dequeue(count, small))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_one(self, data: Any) -> None:
        self.cancel(data, self.core.withdraw)

    @precondition(lambda self: any(t.error is None for t in self.served))
    @rule(data=st.data())
    def lose_one(self, data: Any) -> None:
        self.lose(data, self.core.withdraw, [t for t in self.served if t.error is None])

    @precondition(lambda self: self.keys > 4)
    @rule(cancel=st.booleans())
    def close(self, cancel: bool) -> None:
        try:
            resolved = self.core.close(cancel)
        except errors.CancelledError:
            assert self.core.closed
            return
        if cancel:
            self.begun.clear()
        self.resolve(resolved)

    def same_line(self, one: Ticket, other: Ticket) -> bool:
        return other.error is None  # requests that cannot be served are refused at once

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        given = [e[1] for t in self.served if t.error is None for e in t.value]
        held = [e[2][1] for t in self.waiting for e in t.taken]
        inside = [entry[2][1] for entry in self.core._ready._store._heap]  # type: ignore[attr-defined]
        assert Counter(given + held + inside) == self.whole
        assert self.core.incomplete_size == len(self.begun)

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        if self.waiting:
            assert self.core.ready_size < max(self.waiting[0].count, 1)
            assert not self.core.closed or self.begun, "what is closed and whole keeps nobody waiting"


# ── staging area ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bytes_limit_what_enters_a_staging_area() -> None:
    core = StagingCore("s", 0, 10)
    first, second, third = Put("a", 6), Put("b", 5), Put("c", 1)
    assert core.submit(first) == [first]
    assert core.submit(second) == core.submit(third) == [], "in line, though the third would fit"
    with pytest.raises(errors.ResourceExhaustedError):
        core.submit(Put("d", 11))
    get = Get()
    assert core.submit(get) == [get, second, third]
    assert (get.value.element, len(core)) == ("a", 2)
    assert core.describe() == "staging area 's' (size 2, 6 bytes; waiting: 0 putting, 0 getting, 0 peeking)"


def test_peeks_are_served_before_gets() -> None:
    core = StagingCore("s", 0, 0)
    get, peek, far = Get(), Peek(0), Peek(1)
    for ticket in (get, peek, far):
        assert core.submit(ticket) == []
    put = Put("a", 1)
    assert set(core.submit(put)) == {put, peek, get}
    assert peek.value.element == get.value.element == "a"
    assert not far.resolved


class StagingMachine(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.core = StagingCore("s", 3, 8)
        self.next = 0
        self.dropped: list[int] = []

    @rule(size=st.integers(0, 8))
    def put(self, size: int) -> None:
        self.ask(self.core.submit, Put(self.next, size))
        self.next += 1

    @rule()
    def get(self) -> None:
        self.ask(self.core.submit, Get())

    @rule(index=st.integers(0, 4))
    def peek(self, index: int) -> None:
        ticket = Peek(index)
        self.ask(self.core.submit, ticket)
        if ticket.resolved:
            assert ticket.value is self.core._inside[index] or not self.core._inside

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_one(self, data: Any) -> None:
        self.cancel(data, self.core.withdraw)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def lose_one(self, data: Any) -> None:
        """Withdraw a served ticket; a served put stays in the area."""
        ticket = data.draw(st.sampled_from(self.served))
        if not isinstance(ticket, Put):
            self.served.remove(ticket)
        self.resolve(self.core.withdraw(ticket))

    @rule()
    def clear(self) -> None:
        self.dropped += [p.element for p in self.core._inside]
        self.resolve(self.core.clear())

    def same_line(self, one: Ticket, other: Ticket) -> bool:
        return type(one) is type(other) and not isinstance(one, Peek)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        put = [t.element for t in self.served if isinstance(t, Put)]
        given = [t.value.element for t in self.served if isinstance(t, Get)]
        inside = [p.element for p in self.core._inside]
        assert sorted(given + inside + self.dropped) == sorted(put)
        assert self.core._bytes == sum(p.size for p in self.core._inside)

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        inside = self.core._inside
        kinds = {type(t) for t in self.waiting}
        if Put in kinds:
            first = next(t for t in self.waiting if isinstance(t, Put))
            assert len(inside) >= 3 or self.core._bytes + first.size > 8
        if Get in kinds:
            assert not inside
        assert all(t.index >= len(inside) for t in self.waiting if isinstance(t, Peek))


# ── accumulators ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _add(total: frozenset[int], more: frozenset[int]) -> frozenset[int]:
    assert not total & more, "a gradient was added twice"
    return total | more


def test_withdrawn_take_merges_its_sum_with_later_gradients() -> None:
    core = AccumulatorCore("a", _add)
    core.apply(0, frozenset({1}))
    first = SumRequest(1)
    core.submit(first)
    core.apply(1, frozenset({2}))
    assert core.withdraw(first) == []
    again = SumRequest(2)
    assert core.submit(again) == [again]
    assert again.value == ({1, 2}, 2)


def test_withdrawn_take_restores_the_step() -> None:
    core = AccumulatorCore("a", _add)
    core.apply(0, frozenset({1}))
    taken = SumRequest(1)
    core.submit(taken)
    assert core.step == 1
    core.withdraw(taken)
    assert (core.step, core.count) == (0, 1)
    core.set_step(5)
    late = SumRequest(1)
    core.submit(late)
    core.set_step(9)
    core.withdraw(late)
    assert core.step == 9, "it never goes back behind what was set"


def test_gradients_of_undone_steps_are_dropped_until_their_step() -> None:
    core = AccumulatorCore("a", _add)
    core.set_step(5)
    core.apply(5, frozenset({1}))
    core.restart(3)
    assert (core.step, core.count) == (3, 0)
    for step in (2, 4, 5):
        core.apply(step, frozenset({2}))
    assert core.count == 0
    core.apply(3, frozenset({3}))
    core.submit(SumRequest(1))
    core.apply(4, frozenset({4}))
    assert (core.step, core.count) == (4, 1)
    core.restart(4)
    assert core.count == 1, "nothing is undone where it is the same step"
    core.restart(9)
    core.apply(10, frozenset({5}))
    assert core.count == 2, "a step that has never been may come early"


def test_only_first_counts_one_gradient_per_step() -> None:
    core = AccumulatorCore("a", _add, only_first=True)
    for number in (1, 2):
        core.apply(0, frozenset({number}))
    first, second = SumRequest(1), SumRequest(1)
    assert core.submit(first) == [first]
    assert core.submit(second) == []
    core.apply(0, frozenset({3}))
    assert core.apply(1, frozenset({4})) == [second]
    assert (first.value, second.value) == (({1}, 1), ({4}, 1))
    core.apply(2, frozenset({5}))
    core.withdraw(second)
    third = SumRequest(1)
    core.submit(third)
    assert third.value == ({5}, 1), "what has come since stays alone"


def test_closed_accumulator_cancels_its_waiters() -> None:
    core = AccumulatorCore("a", _add)
    early, late = SumRequest(1), SumRequest(1)
    assert core.submit(early) == []
    assert core.close() == [early]
    assert core.submit(late) == [late]
    for ticket in (early, late):
        assert isinstance(ticket.error, errors.CancelledError)
        assert core.withdraw(ticket) == []
    core.apply(0, frozenset({1}))
    core.restart(0)
    again = SumRequest(1)
    assert core.submit(again) == [again]
    assert again.value == ({1}, 1)


def test_limit_lowers_the_required_gradients() -> None:
    core = AccumulatorCore("a", _add)
    early, late, after = SumRequest(3), SumRequest(3), SumRequest(3)
    core.apply(0, frozenset({1}))
    assert core.submit(early) == []
    assert core.set_limit(2) == []
    assert core.describe() == "accumulator 'a' (1 of 2 gradients, step 0)"
    assert core.apply(0, frozenset({2})) == [early]
    assert core.apply(1, frozenset({3})) == []
    assert core.submit(late) == []
    assert core.set_limit(1) == [late]
    assert (early.value, late.value) == (({1, 2}, 2), ({3}, 1))
    core.restart(2)
    core.apply(2, frozenset({4}))
    assert core.submit(after) == [], "a restart forgets the limit"


def test_step_without_effect_is_taken_again() -> None:
    core = AccumulatorCore("a", _add)
    first, second, third = SumRequest(1), SumRequest(1), SumRequest(1)
    core.apply(0, frozenset({1}))
    assert core.submit(first) == [first]
    core.apply(0, frozenset({2}))
    assert core.count == 0, "it is stale"
    core.go_back(0)
    core.apply(0, frozenset({3}))
    assert core.submit(second) == [second]
    core.go_back(1)
    assert core.step == 1, "which the step has come to"
    core.apply(1, frozenset({4}))
    assert core.submit(third) == [third]
    assert [ticket.value for ticket in (second, third)] == [({3}, 1), ({4}, 1)]


class AccumulatorMachine(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.least = 4  # the lowest limit so far
        self.core = AccumulatorCore("a", _add)
        self.next = 0
        self.fresh: set[int] = set()

    @rule(behind=st.integers(-1, 2))
    def apply(self, behind: int) -> None:
        step = self.core.step - behind
        if step >= self.core.step:
            self.fresh.add(self.next)
        self.resolve(self.core.apply(step, frozenset({self.next})))
        self.next += 1

    @rule(required=st.integers(1, 4))
    def take(self, required: int) -> None:
        self.ask(self.core.submit, SumRequest(required))

    @rule(limit=st.integers(1, 4))
    def set_limit(self, limit: int) -> None:
        self.least = min(self.least, limit)
        self.resolve(self.core.set_limit(limit))

    @rule(ahead=st.integers(-2, 2))
    def set_step(self, ahead: int) -> None:
        before = self.core.step
        self.core.set_step(before + ahead)
        assert self.core.step == max(before, before + ahead)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_one(self, data: Any) -> None:
        self.cancel(data, self.core.withdraw)

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def lose_one(self, data: Any) -> None:
        served, taken = list(self.served), self.core._taken
        self.lose(data, self.core.withdraw, self.served)
        for ticket in served:
            if ticket not in self.served and ticket.number != taken:  # after a later take, the lost gradients are stale
                self.fresh -= ticket.value[0]

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        given = [g for t in self.served for g in t.value[0]]
        inside = list(self.core._sum or ())
        assert sorted(given + inside) == sorted(self.fresh)
        assert self.core.count == len(inside)
        assert all(len(t.value[0]) == t.value[1] >= min(t.required, self.least) for t in self.served)

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        if self.waiting:
            limit = self.core.limit or self.waiting[0].required
            assert self.core.count < min(self.waiting[0].required, limit)


# ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TurnsMachine(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.core = FairLock("lock")

    @rule()
    def ask_for_it(self) -> None:
        self.ask(self.core.ask, Ticket())

    @rule()
    def try_it(self) -> None:
        if self.core.try_enter():
            self.served.append(Ticket())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_one(self, data: Any) -> None:
        self.cancel(data, self.core.withdraw)

    @precondition(lambda self: any(t.resolved for t in self.served))
    @rule(data=st.data())
    def lose_it(self, data: Any) -> None:
        self.lose(data, self.core.withdraw, [t for t in self.served if t.resolved])

    @precondition(lambda self: self.served)
    @rule()
    def leave(self) -> None:
        self.served.pop()
        self.resolve(self.core.leave())

    @invariant()
    def one_holder_and_nobody_waits_for_nobody(self) -> None:
        assert len(self.served) <= 1
        if self.waiting:
            assert self.served


TestBarrierMachine = BarrierMachine.TestCase
TestStagingMachine = StagingMachine.TestCase
TestAccumulatorMachine = AccumulatorMachine.TestCase
TestTurnsMachine = TurnsMachine.TestCase
for _case in (TestBarrierMachine, TestStagingMachine, TestAccumulatorMachine, TestTurnsMachine):
    _case.settings = SETTINGS
