"""`Session.stream`: step after step as an async iterator, with steps that run ahead."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from aioflow.checks.numbers import check_seconds, check_whole
from aioflow.errors import CancelledError, DTypeError, FailedPreconditionError, OutOfRangeError
from aioflow.runtime.step import Step
from aioflow.session.prepared import names_of
from aioflow.sync.background import Background

__all__ = ["FeedSource", "Stream"]

T = TypeVar("T")
Feeds: TypeAlias = Mapping[Any, Any]
FeedSource: TypeAlias = Feeds | Iterable[Feeds] | AsyncIterable[Feeds] | None


class _NoMoreFeeds(Exception):
    """The feeds have ended."""


class _Steps:
    """Runs one step after another, each with the next feeds. Steps get their feeds in the order in which they begin."""

    def __init__(
        self, run: Callable[..., Awaitable[Any]], fetches: Any, feeds: FeedSource, timeout: float | None
    ) -> None:
        self._run = run
        self._fetches = fetches
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._constant: Feeds | None = feeds if isinstance(feeds, Mapping) else None
        self._sync: Iterator[Feeds] | None = None
        self._async: AsyncIterator[Feeds] | None = None
        if feeds is None or self._constant is not None:
            return
        if isinstance(feeds, AsyncIterable):
            self._async = aiter(feeds)
        elif isinstance(feeds, Iterable):
            self._sync = iter(feeds)
        else:
            raise DTypeError(
                "not a source of feeds",
                expected="a feed dictionary, or an iterable or async iterable of them",
                actual=type(feeds).__name__,
            )

    def __repr__(self) -> str:
        return f"a step of the stream of {names_of(self._fetches)}"

    async def step(self) -> Any:
        """Return what `run` does. Raises _NoMoreFeeds, or whatever the step raises."""
        async with self._turn:
            feeds = await self._next_feeds()
        return await self._run(self._fetches, feeds, timeout=self._timeout)

    async def _next_feeds(self) -> Feeds | None:
        if self._async is not None:
            try:
                return await anext(self._async)
            except StopAsyncIteration:
                raise _NoMoreFeeds from None
        if self._sync is not None:
            try:
                return next(self._sync)
            except StopIteration:
                raise _NoMoreFeeds from None
        return self._constant


class _Flight:
    """A step on its way: the task that runs it, and its result or error. It has neither where the task was cancelled,
    which may be before its first turn.
    """

    __slots__ = ("error", "ran", "result", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.result: Any = None
        self.ran: Step | None = None
        self.error: Exception | None = None

    async def run(self, steps: _Steps) -> None:
        """Run the step: the body of the task."""
        try:
            self.result, self.ran = await steps.step()
        except Exception as error:
            self.error = error

    def abandon(self) -> None:
        """Cancel the task; if it has ended, put back what the step has taken, without waiting."""
        self.task.cancel()
        if self.ran is not None:
            self.ran.abandon()


class Stream(Generic[T]):
    """The result of `Session.stream`: an async iterator over results, and an async context manager that ends it.

    Args:
        run: Runs a step; with a `prefetch` it returns the step, too, beside the result.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        background: Background,
        fetches: Any,
        feeds: FeedSource,
        prefetch: int,
        timeout: float | None,
    ) -> None:
        check_whole(prefetch, "the prefetch of a stream", 0)
        check_seconds(timeout, "the time limit of a step")
        self._steps = _Steps(run, fetches, feeds, timeout)
        self._background = background
        self._prefetch = prefetch
        self._flights: deque[_Flight] = deque()
        self._ending = False
        self._closed = False
        self._busy = False
        self._abandon: weakref.finalize[Any, Stream[T]] | None = None

    def __aiter__(self) -> Stream[T]:
        return self

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def __anext__(self) -> T:
        """The result of the next step. Raises StopAsyncIteration at the end."""
        if self._busy:
            raise FailedPreconditionError("the stream is already being read", expected="one reader", actual="two")
        self._busy = True
        try:
            result: T = await (self._next_ahead() if self._prefetch else self._next())
            return result
        except StopAsyncIteration:
            self._closed = True
            raise
        except Exception:
            await self.aclose()
            raise
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Cancel the steps in flight and wait for them. Nothing comes after this."""
        self._closed = True
        tasks = [flight.task for flight in self._flights]
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        flights = list(self._flights)
        self._flights.clear()
        for flight in reversed(flights):
            if flight.ran is not None:
                await flight.ran.unwind(CancelledError("the stream was closed"))

    async def _next(self) -> Any:
        if self._closed:
            raise StopAsyncIteration
        try:
            return await self._steps.step()
        except (OutOfRangeError, _NoMoreFeeds):
            raise StopAsyncIteration from None

    async def _next_ahead(self) -> Any:
        while not self._closed:
            while len(self._flights) <= self._prefetch and not self._ending:
                await self._depart()
            if not self._flights:
                break
            flight = self._flights[0]
            await asyncio.wait([flight.task])
            if self._closed:
                break  # type: ignore[unreachable]  # another task has closed the stream, and waits for the flights
            self._flights.popleft()
            if flight.task.cancelled():
                raise CancelledError(f"the session was closed while {self._steps} ran")
            if flight.error is None:
                return flight.result
            if not isinstance(flight.error, OutOfRangeError | _NoMoreFeeds):
                raise flight.error
            self._ending = True  # those in flight may have got the last elements
        raise StopAsyncIteration

    async def _depart(self) -> None:
        flight = _Flight()
        flight.task = await self._background.start(flight.run(self._steps))
        self._flights.append(flight)
        if self._abandon is None:
            self._abandon = weakref.finalize(self, _cancel, asyncio.get_running_loop(), self._flights)
            self._abandon.atexit = False


def _cancel(loop: asyncio.AbstractEventLoop, flights: deque[_Flight]) -> None:
    """The stream was dropped in the middle: stop what runs ahead. The session waits for it when it is closed."""
    for flight in reversed(flights):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(flight.abandon)
