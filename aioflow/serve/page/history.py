"""What counters have gained over the last minutes, from what they were at times that somebody noted."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

__all__ = ["Counters", "History", "quantile"]

Counters: TypeAlias = Mapping[Hashable, tuple[int, ...]]  # each only grows, or begins again
_NOTHING: Final[Counters] = {}


class History:
    """Keeps what counters were, for a while.

    Args:
        start: When they were nothing, by the clock of all that follows.
        seconds: How long it looks back, at most.
        interval: Seconds between what it keeps.
    """

    def __init__(self, start: float, seconds: float = 300.0, interval: float = 10.0) -> None:
        self._window = seconds
        self.interval = interval
        self._kept: deque[tuple[float, Counters]] = deque([(start, _NOTHING)])

    def note(self, now: float, counters: Counters) -> None:
        """They are this now."""
        if now - self._kept[-1][0] < self.interval:
            return
        self._kept.append((now, dict(counters)))
        while len(self._kept) > 1 and self._kept[1][0] <= now - self._window:
            self._kept.popleft()

    def seconds(self, now: float) -> float:
        """How far it looks back."""
        return now - self._kept[0][0]

    def gained(self, key: Hashable, counts: tuple[int, ...]) -> tuple[int, ...]:
        """By how much these are more than they were at the beginning."""
        before = self._kept[0][1].get(key)
        if before is None or any(new < old for new, old in zip(counts, before, strict=True)):
            return counts  # they have begun since
        return tuple(new - old for new, old in zip(counts, before, strict=True))


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The quantile of what a histogram has counted, as `histogram_quantile` of Prometheus tells it: what is in a bucket
    is taken to lie evenly in it. The last bound, where it lies beyond; None where nothing was counted.

    Args:
        bounds: The upper bounds of all buckets but the last, which has none.
        counts: How many are in each bucket.
        q: More than 0, at most 1.
    """
    total = list(accumulate(counts))
    if not total or not total[-1]:
        return None
    rank = q * total[-1]
    at = bisect_left(total, rank)
    if at >= len(bounds):
        return bounds[-1]
    below, low = (total[at - 1], bounds[at - 1]) if at else (0, 0.0)
    return low + (bounds[at] - low) * (rank - below) / counts[at] if counts[at] else bounds[at]
