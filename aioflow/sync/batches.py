"""Merging of requests into batches, as a plain state machine: no event loop, no arrays; the caller passes the time.

A request has rows. Requests of one kind (equal sizes except for the rows) are merged into a batch: the most urgent
first, and equally urgent ones in order of arrival. A request with more rows than a batch holds is split. All others
stay whole, so that one batch answers them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, NamedTuple

from aioflow.arguments import wrong_kind
from aioflow.errors import InvalidArgumentError, ResourceExhaustedError

_NEVER: Final = float("inf")


def check_batch_sizes(sizes: Sequence[Any], most: int) -> None:
    """Check `allowed_batch_sizes`, given the maximum size of a batch. Empty stands for any size.

    Raises:
        DTypeError: one of them is not an int.
        InvalidArgumentError: they are not positive, do not rise, or do not end with the maximum.
    """
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise wrong_kind(list(sizes), "allowed_batch_sizes", "ints")
    if sizes and (sizes[0] < 1 or sorted(set(sizes)) != list(sizes) or sizes[-1] != most):
        raise InvalidArgumentError(
            "allowed_batch_sizes must rise, and end with max_batch_size",
            expected=f"sizes up to {most}",
            actual=list(sizes),
        )


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The start condition of batches and their size.

    Attributes:
        max_batch_size: Maximum rows of a batch.
        batch_timeout: Maximum seconds that a request waits for others while capacity is free. With 0 a batch starts at
            once, and requests that arrive while it runs form the next batch.
        max_enqueued_batches: Maximum length of the queue, in full batches.
        allowed_batch_sizes: Allowed numbers of rows, ascending to `max_batch_size`; batches are padded to the next one.
            Empty for any.
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
        check_batch_sizes(self.allowed_batch_sizes, self.max_batch_size)

    def padded(self, rows: int) -> int:
        """Return the number of rows that a batch of `rows` rows is padded to."""
        sizes = self.allowed_batch_sizes
        return sizes[bisect_left(sizes, rows)] if sizes else rows


class BatchRequest:
    """The request of one caller.

    Attributes:
        rows: Number of rows.
        payload: The contents, for the driver.
        kind: Only requests of the same kind are merged into a batch.
        priority: 0 is the most urgent.
        pieces: Number of pieces that have been taken and not answered.
        taken: Number of rows that have been put into batches.
        is_gone: Whether the caller has abandoned the request.
        arrived: Time of arrival.
        number: Ordinal of arrival.
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
        """True if every row has been taken, and every piece answered."""
        return self.taken == self.rows and not self.pieces


class Piece(NamedTuple):
    """The rows `begin` to `end` of a request, in a batch."""

    request: BatchRequest
    begin: int
    end: int


class _Line:
    """A queue of requests of one kind and priority, in order of arrival. Abandoned requests are skipped."""

    __slots__ = ("requests", "rows")

    def __init__(self) -> None:
        self.requests: deque[BatchRequest] = deque()
        self.rows = 0  # not counting abandoned requests

    def front(self) -> BatchRequest | None:
        """Return the first request that is not abandoned."""
        requests = self.requests
        while requests and requests[0].is_gone:
            requests.popleft()
        return requests[0] if requests else None


class BatchCore:
    """Queues of requests, from which batches are taken.

    Attributes:
        rows: Number of waiting rows.
        requests: Number of requests with waiting rows.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._lines: dict[tuple[int, Hashable], _Line] = {}  # only queues with rows
        self._count = 0
        self.rows = 0
        self.requests = 0

    def add(self, request: BatchRequest, now: float) -> None:
        """Queue a request.

        Args:
            request: The request.
            now: The current time.

        Raises:
            ResourceExhaustedError: the queue is full.
        """
        limit = self.policy.max_enqueued_batches * self.policy.max_batch_size
        # An empty queue accepts a request of any size: one that exceeds the limit alone could never run otherwise.
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

    def discard(self, request: BatchRequest) -> None:
        """Discard a request that its caller has abandoned: its remaining rows are not taken."""
        if request.is_gone:
            return
        request.is_gone = True
        # Rows that are in a batch already are not counted as waiting any more.
        left = request.rows - request.taken
        if left:
            self._take_from((request.priority, request.kind), left)
            self.requests -= 1

    def due_at(self) -> float:
        """Return the time at which the next batch is to begin, by the clock of `add`; infinity if no rows wait."""
        due = _NEVER
        for _, kind, first in self._fronts():
            # A full batch gains nothing by waiting, so it is due since its first request arrived.
            if self._rows_of(kind) >= self.policy.max_batch_size:
                return first.arrived
            due = min(due, first.arrived + self.policy.batch_timeout)
        return due

    def take(self, now: float) -> list[Piece]:
        """Return the next batch, or an empty list if none is due."""
        if not self.rows:
            return []
        due = [
            (priority, first.number, kind)
            for priority, kind, first in self._fronts()
            if first.arrived + self.policy.batch_timeout <= now or self._rows_of(kind) >= self.policy.max_batch_size
        ]
        # The most urgent kind that is due is served; among equals, the one that has waited longest.
        return self._gather(min(due, key=lambda each: each[:2])[2]) if due else []

    def _gather(self, kind: Hashable) -> list[Piece]:
        """Return a batch of this kind. Less urgent requests fill the room left by urgent ones."""
        pieces: list[Piece] = []
        left = self.policy.max_batch_size
        # All keys of a kind differ in priority, so kinds are never compared, which need not have an order.
        for key in sorted(key for key in self._lines if key[1] == kind):
            before = left
            left = self._fill(self._lines[key], left, pieces)
            self._take_from(key, before - left)
            if self._lines.get(key):
                break  # its next request does not fit, and the following ones must not overtake it
        return pieces

    def _fill(self, line: _Line, left: int, pieces: list[Piece]) -> int:
        """Move requests from a queue into a batch with room for `left` rows. Return the remaining room."""
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
                    break  # not larger than a batch, so it stays whole
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

    def _fronts(self) -> Iterator[tuple[int, Hashable, BatchRequest]]:
        for (priority, kind), line in self._lines.items():
            first = line.front()
            if first is not None:
                yield priority, kind, first

    def _rows_of(self, kind: Hashable) -> int:
        return sum(line.rows for (_, other), line in self._lines.items() if other == kind)
