"""How late the event loop is: what it does at a time beyond the time that it was asked for."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from time import perf_counter
from typing import Final, NoReturn

__all__ = ["LAG_BOUNDS", "LoopLag"]

LAG_BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # seconds


class LoopLag:
    """Looks again and again how late the loop is.

    Args:
        interval: Seconds between two looks.

    Attributes:
        histogram: How many looks were at most so late as each of `LAG_BOUNDS`; the last, later.
        seconds: Of all together.
        worst: The most of all.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self.histogram = [0] * (len(LAG_BOUNDS) + 1)
        self.seconds = 0.0
        self.worst = 0.0

    async def watch(self) -> NoReturn:
        """The body of the task that looks."""
        while True:
            due = perf_counter() + self._interval
            await asyncio.sleep(self._interval)
            late = max(perf_counter() - due, 0.0)
            self.histogram[bisect_left(LAG_BOUNDS, late)] += 1
            self.seconds += late
            self.worst = max(self.worst, late)
