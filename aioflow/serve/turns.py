"""Admission of calls that cannot share a step: a concurrency limit and a bounded priority queue.

Waiters are futures in a heap. A cancelled waiter stays in the heap and is skipped when it is popped.
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

_WEIGHT: Final = 0.2  # weight of the newest call in the moving average of durations


class Turns:
    """A concurrency limit for calls on one event loop.

    Args:
        concurrency: Maximum number of calls that compute at once.
        limit: Maximum number of calls that wait.

    Attributes:
        running, waiting: Current number of calls that compute, and that wait.
    """

    def __init__(self, concurrency: int, limit: int) -> None:
        self._concurrency = concurrency
        self._limit = limit
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._seconds = 0.0  # moving average of a call's duration
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, priority: int = 0) -> AsyncIterator[float]:
        """Wait for a slot and hold it inside the block; yield the seconds waited.

        Args:
            priority: Lower numbers go first; calls of equal priority go in order of arrival.

        Raises:
            ResourceExhaustedError: the queue is full; the error's `retry_after` estimates when there will be room.
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
            # The slot was handed over just before the cancellation: pass it on, or it is lost.
            if turn.done() and not turn.cancelled():
                self._hand_on()
            raise
        finally:
            self.waiting -= 1

    def _hand_on(self) -> None:
        """Pass the slot of a call that has ended to the first live waiter, or free it."""
        while self._heap:
            turn = heapq.heappop(self._heap)[2]
            if not turn.done():
                turn.set_result(None)
                # `running` stays as it is: the slot has changed hands.
                return
        self.running -= 1
