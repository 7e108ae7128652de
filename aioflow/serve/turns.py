"""Who may compute now, of calls that cannot share a step: so many at once, the most urgent first, in a short queue.

What waits is a future in a heap; what goes away is passed over when its turn comes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from aioflow.errors import ResourceExhaustedError

__all__ = ["Turns"]

_WEIGHT: Final = 0.2  # of the newest call in the mean of their times


class Turns:
    """Turns of calls, on one event loop.

    Args:
        concurrency: How many may compute at once.
        limit: How many may wait.

    Attributes:
        running, waiting: How many do.
    """

    def __init__(self, concurrency: int, limit: int) -> None:
        self._concurrency = concurrency
        self._limit = limit
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._seconds = 0.0  # that a call takes
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, priority: int = 0) -> AsyncIterator[float]:
        """Wait, and compute inside the block, which gets the seconds that were waited.

        Raises:
            ResourceExhaustedError: as many wait as may; its `retry_after` says when to come again.
        """
        arrived = perf_counter()
        if self.running < self._concurrency:
            self.running += 1
        else:
            await self._wait(priority)
        begun = perf_counter()
        try:
            yield begun - arrived
        finally:
            taken = perf_counter() - begun
            self._seconds += (taken - self._seconds) * (_WEIGHT if self._seconds else 1.0)
            self._hand_on()

    async def _wait(self, priority: int) -> None:
        if self.waiting >= self._limit:
            error = ResourceExhaustedError(
                "too many requests are waiting", expected=f"at most {self._limit}", actual=self.waiting
            )
            error.retry_after = self._seconds * self.waiting / self._concurrency
            raise error
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (priority, next(self._numbers), turn))
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had just been given the turn
                self._hand_on()
            raise
        finally:
            self.waiting -= 1

    def _hand_on(self) -> None:
        """The turn of one who has ended goes to the next who waits."""
        while self._heap:
            turn = heapq.heappop(self._heap)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
