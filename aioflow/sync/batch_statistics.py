"""What a gatherer of batches has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

__all__ = ["BatchStatistics", "Tally"]


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What a batched callable has done so far, and what it has to do.

    Attributes:
        waiting_requests, waiting_rows: What is waiting for a batch.
        running_batches: How many are being computed.
        answered: Calls that got a result.
        failed: Calls whose own rows made a step fail.
        rejected: Calls that found the queue full.
        expired: Calls whose time limit passed.
        cancelled: Calls whose callers went away.
        batches: Steps that have ended, those of a batch that was taken apart to find a bad row among them.
        rows: Of these steps, without what filled them up.
        sizes: How many batches had so many rows.
        queue_seconds: What the rows of all batches have waited, summed over requests.
        compute_seconds: What all batches have taken.
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
        """Return what both have done together."""
        own = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in _NUMBERS}
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
        """A step of so many rows has ended."""
        self.batches += 1
        self.rows += rows
        self.sizes[rows] = self.sizes.get(rows, 0) + 1
        self.compute_seconds += seconds

    def statistics(self, waiting_requests: int, waiting_rows: int) -> BatchStatistics:
        """What it comes to now."""
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
