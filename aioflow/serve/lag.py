"""Event loop lag: the delay of a timer beyond its due time."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from time import perf_counter
from typing import Final, NoReturn

LAG_BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # seconds


class LoopLag:
    """A periodic measurement of the event loop's lag.

    Args:
        interval: Seconds between two measurements.

    Attributes:
        histogram: Number of measurements up to each of `LAG_BOUNDS`; the last entry counts longer ones.
        seconds: The sum of all lags.
        worst: The longest lag.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self.histogram = [0] * (len(LAG_BOUNDS) + 1)
        self.seconds = 0.0
        self.worst = 0.0

    async def watch(self) -> NoReturn:
        """Measure until cancelled."""
        while True:
            due = perf_counter() + self._interval
            await asyncio.sleep(self._interval)
            # The loop's clock may be coarser than `perf_counter`, so a timer can fire slightly early.
            late = max(perf_counter() - due, 0.0)
            self.histogram[bisect_left(LAG_BOUNDS, late)] += 1
            self.seconds += late
            self.worst = max(self.worst, late)
