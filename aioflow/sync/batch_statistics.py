"""The statistics of a batched callable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The past and pending work of a batched callable.

    Attributes:
        waiting_requests, waiting_rows: Number of requests and rows waiting for a batch.
        running_batches: Number of batches being computed.
        answered: Number of calls that returned a result.
        failed: Number of calls that ended with an error of their step, or because the session was closed.
        rejected: Number of calls that found the queue full.
        expired: Number of calls whose time limit passed.
        cancelled: Number of calls abandoned by their callers.
        batches: Number of completed steps, including those on halves of a batch to find a bad row.
        rows: Number of rows in these steps, without padding.
        sizes: Number of batches by their number of rows.
        queue_seconds: Total time that the rows of all batches have waited, summed over requests.
        compute_seconds: Total time of computing the batches.
    """

    waiting_requests: int
    waiting_rows: int
    running_batches: int
    answered: int
    failed: int
    rejected: int
    expired: int
    cancelled: int
    batches: int
    rows: int
    sizes: Mapping[int, int]
    queue_seconds: float
    compute_seconds: float

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        """Return the sum of both statistics."""
        own = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in _NUMBERS}
        # `Counter.update` adds counts, where `dict.update` would replace them.
        sizes = Counter(self.sizes)
        sizes.update(other.sizes)
        return BatchStatistics(**own, sizes=dict(sorted(sizes.items())))


_NUMBERS: Final = [each for each in fields(BatchStatistics) if each.name != "sizes"]


@dataclass(slots=True)
class Tally:
    """The counters behind `BatchStatistics`."""

    running: int = 0
    answered: int = 0
    failed: int = 0
    rejected: int = 0
    expired: int = 0
    cancelled: int = 0
    batches: int = 0
    rows: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    def computed(self, rows: int, seconds: float) -> None:
        """Count a completed step with this number of rows."""
        self.batches += 1
        self.rows += rows
        self.sizes[rows] = self.sizes.get(rows, 0) + 1
        self.compute_seconds += seconds

    def statistics(self, waiting_requests: int, waiting_rows: int) -> BatchStatistics:
        """Return the current statistics."""
        return BatchStatistics(
            waiting_requests=waiting_requests,
            waiting_rows=waiting_rows,
            running_batches=self.running,
            answered=self.answered,
            failed=self.failed,
            rejected=self.rejected,
            expired=self.expired,
            cancelled=self.cancelled,
            batches=self.batches,
            rows=self.rows,
            sizes=dict(sorted(self.sizes.items())),
            queue_seconds=self.queue_seconds,
            compute_seconds=self.compute_seconds,
        )
