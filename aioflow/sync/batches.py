"""Requests that gather into batches, as a plain state machine: no event loop, no arrays, and time comes from outside.

A request has rows. Requests of one kind (the same sizes but for the rows) go into a batch together, the most urgent
first and among equals in the order in which they came. One with more rows than a batch has is cut; any other stays
whole, so that it is answered by one batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aioflow.errors import InvalidArgumentError, ResourceExhaustedError

__all__ = ["BatchCore", "BatchPolicy", "Piece", "Request"]

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a batch begins, and how large it is.

    Attributes:
        max_batch_size: Rows of a batch.
        batch_timeout: Seconds that a request waits for others while nothing is running; 0 begins at once, and what
            comes meanwhile is the next batch.
        max_enqueued_batches: Full batches that may wait.
        allowed_batch_sizes: Rows that a batch may have, rising to `max_batch_size`; one between is filled up. Empty
            for any.
    """

    max_batch_size: int
    batch_timeout: float = 0.0
    max_enqueued_batches: int = 16
    allowed_batch_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_enqueued_batches < 1 or not 0 <= self.batch_timeout < _NEVER:
            raise InvalidArgumentError(
                "the settings of batches are out of range",
                expected="max_batch_size >= 1, max_enqueued_batches >= 1, batch_timeout >= 0 seconds",
                actual=self,
            )
        sizes = self.allowed_batch_sizes
        if sizes and (sizes[0] < 1 or sorted(set(sizes)) != list(sizes) or sizes[-1] != self.max_batch_size):
            raise InvalidArgumentError(
                "allowed_batch_sizes must rise, and end with max_batch_size",
                expected=f"sizes up to {self.max_batch_size}",
                actual=list(sizes),
            )

    def padded(self, rows: int) -> int:
        """How many rows a batch of so many is filled up to."""
        sizes = self.allowed_batch_sizes
        return sizes[bisect_left(sizes, rows)] if sizes else rows


class Request:
    """What one caller asks for.

    Attributes:
        rows: How many. Their `payload` is the driver's.
        kind: Only requests of the same kind go into a batch together.
        priority: 0 is the most urgent.
        pieces: How many pieces of it have been taken and not been answered.
        taken: How many of its rows are in batches, or have been.
        is_gone: Nobody waits for it any more.
    """

    __slots__ = ("arrived", "is_gone", "kind", "number", "payload", "pieces", "priority", "rows", "taken")

    def __init__(self, rows: int, payload: Any, kind: Hashable = None, priority: int = 0) -> None:
        self.rows = rows
        self.payload = payload
        self.kind = kind
        self.priority = priority
        self.pieces = 0
        self.taken = 0
        self.is_gone = False
        self.arrived = 0.0
        self.number = 0

    @property
    def is_complete(self) -> bool:
        """Whether every row has been taken, and every piece answered."""
        return self.taken == self.rows and not self.pieces


class Piece(NamedTuple):
    """The rows `begin` to `end` of a request, in a batch."""

    request: Request
    begin: int
    end: int


class _Line:
    """Requests of one kind and priority, in the order in which they came; those that are gone are passed over."""

    __slots__ = ("requests", "rows")

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.rows = 0  # of those that are not gone

    def front(self) -> Request | None:
        """The first request."""
        requests = self.requests
        while requests and requests[0].is_gone:
            requests.popleft()
        return requests[0] if requests else None


class BatchCore:
    """Gathers requests."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._lines: dict[tuple[int, Hashable], _Line] = {}  # none of them without rows
        self._count = 0
        self.rows = 0  # that wait
        self.requests = 0  # of which rows wait

    def add(self, request: Request, now: float) -> None:
        """A request has come.

        Raises:
            ResourceExhaustedError: as many rows wait as may.
        """
        limit = self.policy.max_enqueued_batches * self.policy.max_batch_size
        if self.rows and self.rows + request.rows > limit:
            raise ResourceExhaustedError(
                "too many requests are waiting to be batched", expected=f"at most {limit} rows", actual=self.rows
            )
        self._count += 1
        request.number = self._count
        request.arrived = now
        key = (request.priority, request.kind)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        line.requests.append(request)
        line.rows += request.rows
        self.rows += request.rows
        self.requests += 1

    def discard(self, request: Request) -> None:
        """Nobody waits for this request any more: what has not been taken of it never is."""
        if request.is_gone:
            return
        request.is_gone = True
        left = request.rows - request.taken
        if left:
            self._take_from((request.priority, request.kind), left)
            self.requests -= 1

    def due_at(self) -> float:
        """When the next batch is to begin, by the clock of `add`; infinity where nothing waits."""
        due = _NEVER
        for _, kind, first in self._fronts():
            if self._rows_of(kind) >= self.policy.max_batch_size:
                return first.arrived
            due = min(due, first.arrived + self.policy.batch_timeout)
        return due

    def take(self, now: float) -> list[Piece]:
        """The next batch, if it is due."""
        if not self.rows:
            return []
        due = [
            (priority, first.number, kind)
            for priority, kind, first in self._fronts()
            if first.arrived + self.policy.batch_timeout <= now or self._rows_of(kind) >= self.policy.max_batch_size
        ]
        return self._gather(min(due, key=lambda each: each[:2])[2]) if due else []

    def _gather(self, kind: Hashable) -> list[Piece]:
        """A batch of that kind; the less urgent fill what the urgent leave."""
        pieces: list[Piece] = []
        left = self.policy.max_batch_size
        for key in sorted(key for key in self._lines if key[1] == kind):
            before = left
            left = self._fill(self._lines[key], left, pieces)
            self._take_from(key, before - left)
            if self._lines.get(key):
                break  # the next of these does not fit, and those behind it do not overtake it
        return pieces

    def _fill(self, line: _Line, left: int, pieces: list[Piece]) -> int:
        """Take requests from a line into a batch with room for so many rows; how many it has room for then."""
        largest = self.policy.max_batch_size
        requests = line.requests
        while left and requests:
            request = requests[0]
            begin, rows = request.taken, request.rows
            if request.is_gone:
                requests.popleft()
                continue
            if rows - begin > left:
                if rows <= largest:
                    break  # it stays whole
                rows = begin + left
            else:
                requests.popleft()
                self.requests -= 1
            request.taken = rows
            request.pieces += 1
            pieces.append(Piece(request, begin, rows))
            left -= rows - begin
        return left

    def _take_from(self, key: tuple[int, Hashable], rows: int) -> None:
        self.rows -= rows
        line = self._lines[key]
        line.rows -= rows
        if not line.rows:
            del self._lines[key]

    def _fronts(self) -> Iterator[tuple[int, Hashable, Request]]:
        for (priority, kind), line in self._lines.items():
            first = line.front()
            if first is not None:
                yield priority, kind, first

    def _rows_of(self, kind: Hashable) -> int:
        return sum(line.rows for (_, other), line in self._lines.items() if other == kind)
