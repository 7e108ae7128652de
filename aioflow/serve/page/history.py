"""The increase of counters over the last minutes, computed from periodic samples."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

Counters: TypeAlias = Mapping[Hashable, tuple[int, ...]]  # each counter only grows, or restarts at zero
_NOTHING: Final[Counters] = {}


class History:
    """Samples of counters over a time window.

    Args:
        start: The time when all counters were zero. All times are on the same clock.
        seconds: Length of the window.
        interval: Seconds between two samples.
    """

    def __init__(self, start: float, seconds: float = 300.0, interval: float = 10.0) -> None:
        self._window = seconds
        self.interval = interval
        self._kept: deque[tuple[float, Counters]] = deque([(start, _NOTHING)])

    def note(self, now: float, counters: Counters) -> None:
        """Store a sample of the counters if the last one is at least `interval` old."""
        if now - self._kept[-1][0] < self.interval:
            return
        self._kept.append((now, dict(counters)))
        # One sample from before the window stays, so that increases cover all of the window.
        while len(self._kept) > 1 and self._kept[1][0] <= now - self._window:
            self._kept.popleft()

    def seconds(self, now: float) -> float:
        """Return the age of the oldest sample, in seconds."""
        return now - self._kept[0][0]

    def gained(self, key: Hashable, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the increase of `counts` since the oldest sample."""
        before = self._kept[0][1].get(key)
        if before is None or any(new < old for new, old in zip(counts, before, strict=True)):
            return counts  # they restarted since
        return tuple(new - old for new, old in zip(counts, before, strict=True))


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """Estimate a quantile of a histogram, like `histogram_quantile` of Prometheus.

    Values are assumed to be spread evenly within a bucket. The result is the last bound if the quantile lies beyond it,
    and None if the histogram is empty.

    Args:
        bounds: The upper bounds of all buckets but the last, which has none.
        counts: The number of values in each bucket.
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
