"""`BatchCore`, event by event: without event loop, clock or arrays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioflow.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError
from aioflow.sync.batches import BatchCore, BatchPolicy, BatchRequest, Piece

INFINITY = float("inf")


def added(core: BatchCore, *sizes: int, at: float = 0.0, kind: object = None, priority: int = 0) -> list[BatchRequest]:
    requests = [BatchRequest(rows, None, kind, priority) for rows in sizes]
    for request in requests:
        core.add(request, at)
    return requests


def spans(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.begin, piece.end) for piece in pieces]


def test_take_merges_requests_in_arrival_order() -> None:
    core = BatchCore(BatchPolicy(8))
    first, second, third = added(core, 2, 3, 1)
    assert core.take(0.0) == [Piece(first, 0, 2), Piece(second, 0, 3), Piece(third, 0, 1)]
    assert (core.rows, core.requests, core.take(0.0)) == (0, 0, [])


def test_request_that_does_not_fit_waits_whole_and_is_not_overtaken() -> None:
    core = BatchCore(BatchPolicy(4))
    first, second, third = added(core, 3, 2, 1)
    assert [piece.request for piece in core.take(0.0)] == [first]
    assert [piece.request for piece in core.take(0.0)] == [second, third]


def test_oversized_request_is_split_and_shares_its_last_batch() -> None:
    core = BatchCore(BatchPolicy(4))
    large, small = added(core, 10, 2)
    assert spans(core.take(0.0)) == [(0, 4)]
    assert spans(core.take(0.0)) == [(4, 8)]
    assert core.take(0.0) == [Piece(large, 8, 10), Piece(small, 0, 2)]


def test_oversized_request_starts_in_a_partly_filled_batch() -> None:
    core = BatchCore(BatchPolicy(4))
    added(core, 3, 6)
    assert spans(core.take(0.0)) == [(0, 3), (0, 1)]
    assert spans(core.take(0.0)) == [(1, 5)]
    assert spans(core.take(0.0)) == [(5, 6)]


def test_take_serves_higher_priority_first() -> None:
    core = BatchCore(BatchPolicy(4))
    (idle,) = added(core, 2, priority=5)
    urgent, soon = added(core, 1, 2, priority=1)
    assert [piece.request for piece in core.take(0.0)] == [urgent, soon]
    assert [piece.request for piece in core.take(0.0)] == [idle]


def test_batch_holds_requests_of_one_kind() -> None:
    core = BatchCore(BatchPolicy(8))
    short = added(core, 1, 1, kind=(3,))
    long = added(core, 1, kind=(4,))
    short += added(core, 1, kind=(3,))
    assert [piece.request for piece in core.take(0.0)] == short
    assert [piece.request for piece in core.take(0.0)] == long


def test_batch_is_due_when_full_or_after_the_timeout() -> None:
    core = BatchCore(BatchPolicy(4, batch_timeout=0.5))
    assert core.due_at() == INFINITY
    added(core, 2, at=1.0)
    assert (core.due_at(), core.take(1.4)) == (1.5, [])
    added(core, 2, at=1.2)
    assert core.due_at() <= 1.2
    assert spans(core.take(1.2)) == [(0, 2), (0, 2)]
    added(core, 1, at=2.0)
    assert spans(core.take(2.5)) == [(0, 1)]


def test_discarded_request_is_never_taken() -> None:
    core = BatchCore(BatchPolicy(4))
    first, second, third = added(core, 1, 9, 1)
    core.discard(first)
    core.discard(first)
    assert core.take(0.0) == [Piece(second, 0, 4)]
    core.discard(second)
    assert (core.rows, core.requests) == (1, 1)
    assert [piece.request for piece in core.take(0.0)] == [third]


def test_full_queue_refuses_until_rows_are_taken() -> None:
    core = BatchCore(BatchPolicy(4, max_enqueued_batches=2))
    added(core, 4, 3)
    with pytest.raises(ResourceExhaustedError, match="too many requests") as refused:
        added(core, 2)
    assert (refused.value.expected, refused.value.actual) == ("at most 8 rows", 7)
    core.take(0.0)
    added(core, 2)


def test_empty_queue_accepts_an_oversized_request() -> None:
    core = BatchCore(BatchPolicy(4, max_enqueued_batches=1))
    added(core, 9)
    assert spans(core.take(0.0)) == [(0, 4)]


def test_batch_is_padded_to_an_allowed_size() -> None:
    policy = BatchPolicy(8, allowed_batch_sizes=(1, 4, 8))
    assert [policy.padded(rows) for rows in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    assert BatchPolicy(8).padded(5) == 5


@pytest.mark.parametrize("sizes", [(4, 2, 8), (2, 4), (2, 2, 8), (0, 8)], ids=str)
def test_allowed_batch_sizes_must_rise_to_the_largest(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="must rise"):
        BatchPolicy(8, allowed_batch_sizes=sizes)


@pytest.mark.parametrize("sizes", [(1.5, 8), (2, 8.0), (True, 8), ("2", 8)], ids=str)
def test_allowed_batch_sizes_must_be_whole(sizes: Any) -> None:
    with pytest.raises(DTypeError, match="allowed_batch_sizes"):
        BatchPolicy(8, allowed_batch_sizes=sizes)


@pytest.mark.parametrize("wrong", [{"batch_timeout": -1.0}, {"batch_timeout": INFINITY}, {"max_enqueued_batches": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="out of range"):
        BatchPolicy(8, **wrong)  # type: ignore[arg-type]  # ints and floats


class Requests(RuleBasedStateMachine):
    """A state machine of requests that arrive, are taken and are discarded.

    Each row leaves exactly once, unless its request is discarded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = BatchCore(BatchPolicy(5, batch_timeout=2.0, max_enqueued_batches=4))
        self.now = 0.0
        self.waiting: list[BatchRequest] = []
        self.taken: dict[BatchRequest, int] = {}

    @rule(rows=st.integers(1, 13), kind=st.sampled_from("ab"), priority=st.integers(0, 2))
    def add(self, rows: int, kind: str, priority: int) -> None:
        request = BatchRequest(rows, None, kind, priority)
        fits = not self.left() or self.left() + rows <= 20
        try:
            self.core.add(request, self.now)
        except ResourceExhaustedError:
            assert not fits
        else:
            assert fits
            self.waiting.append(request)
            self.taken[request] = 0

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.waiting))
        self.core.discard(gone)
        self.waiting.remove(gone)

    @rule()
    def take(self) -> None:
        due = self.core.due_at() <= self.now
        pieces = self.core.take(self.now)
        assert bool(pieces) == due
        if not pieces:
            return
        assert sum(piece.end - piece.begin for piece in pieces) <= 5
        assert len({piece.request.kind for piece in pieces}) == 1
        order = [(piece.request.priority, piece.request.number) for piece in pieces]
        assert order == sorted(order)
        for request, begin, end in pieces:
            assert not request.is_gone
            assert begin == self.taken[request]
            assert begin < end <= request.rows
            assert request.rows > 5 or (begin, end) == (0, request.rows)
            self.taken[request] = end
            if end == request.rows:
                self.waiting.remove(request)

    def left(self) -> int:
        return sum(request.rows - self.taken[request] for request in self.waiting)

    @invariant()
    def counts(self) -> None:
        assert self.core.rows == self.left()
        assert self.core.requests == len(self.waiting)
        assert (self.core.due_at() == INFINITY) == (not self.waiting)


TestRequests = Requests.TestCase


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_every_request_is_eventually_taken(sizes: list[int]) -> None:
    core = BatchCore(BatchPolicy(4, max_enqueued_batches=1000))
    requests = added(core, *sizes)
    for _ in range(sum(sizes)):
        core.take(0.0)
    assert all(request.taken == request.rows for request in requests)
