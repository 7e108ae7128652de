"""The calls that last as long as their clients like, of which there are so many at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from aioflow.errors import CancelledError, ResourceExhaustedError

__all__ = ["Streams"]

T = TypeVar("T")


class Streams:
    """Calls that end with their clients, or with the service.

    Args:
        limit: How many there may be at a time: each has a task, and no deadline.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._waits: set[asyncio.Timeout] = set()
        self._is_ended = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Have a block be one of them.

        Raises:
            ResourceExhaustedError: there are too many.
        """
        if self._count >= self._limit:
            error = ResourceExhaustedError("too many streams are open", expected=f"at most {self._limit} of a kind")
            error.retry_after = 1.0
            raise error
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def wait(self, work: Awaitable[T]) -> T:
        """Wait for work that the end of the service may cut off, as it may not a write: grpcio would not know whether
        the headers have gone out, and the call could not be ended.

        Raises:
            CancelledError: the service ends.
        """
        wait = asyncio.timeout(0 if self._is_ended else None)
        self._waits.add(wait)
        try:
            async with wait:
                return await work
        except TimeoutError as error:
            if not wait.expired():
                raise
            raise CancelledError("the service is about to end") from error
        finally:
            self._waits.discard(wait)

    def end(self) -> None:
        """End all waits, and those to come; once."""
        self._is_ended = True
        for wait in self._waits:
            wait.reschedule(0)
