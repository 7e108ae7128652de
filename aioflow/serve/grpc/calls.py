"""Calls of the gRPC service: their interface for methods, and a limit on streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from aioflow.errors import CancelledError, ResourceExhaustedError

T = TypeVar("T")


class OpenStreams:
    """Calls that end with their clients or with the service.

    Args:
        limit: The maximum number at a time: each has a task, and no deadline.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._waits: set[asyncio.Timeout] = set()
        self._is_ended = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the block as one of the calls.

        Raises:
            ResourceExhaustedError: the limit is reached.
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
        """Wait for work that the end of the service may cancel.

        Do not use it for a write: grpcio then could not tell if the headers were sent, and could not end the call.

        Raises:
            CancelledError: the service ends.
        """
        # `timeout(0)` expires at the first suspension, so a wait that begins after the end is ended, too.
        wait = asyncio.timeout(0 if self._is_ended else None)
        self._waits.add(wait)
        try:
            async with wait:
                return await work
        except TimeoutError as error:
            if not wait.expired():
                raise
            raise CancelledError("the service is shutting down") from error
        finally:
            self._waits.discard(wait)

    def end(self) -> None:
        """End all current and future waits."""
        self._is_ended = True
        for wait in self._waits:
            # `reschedule` expects a time of the loop, and 0 is past.
            wait.reschedule(0)


class MethodCall(Protocol):
    """One call, as the interface that its method uses: requests, answers and the deadline."""

    async def read(self, *, is_idle: bool = False) -> bytes:
        """Return the next message of the client; if `is_idle`, without a time limit.

        Raises:
            DeadlineExceededError: the message does not arrive in time.
            ClientDisconnectedError: there is no further message.
        """

    async def write(self, data: bytes) -> None:
        """Send an answer. Return when the client accepts it."""

    def remaining(self) -> float | None:
        """Return the seconds until the call's deadline, or None if it has no deadline."""


Method = Callable[[MethodCall], Coroutine[object, object, None]]
