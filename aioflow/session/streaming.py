"""`Session.stream`: consecutive steps as an async iterator, with optional prefetch."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from aioflow.arguments import check_seconds, check_whole
from aioflow.errors import CancelledError, DTypeError, FailedPreconditionError, OutOfRangeError
from aioflow.runtime.step import Step
from aioflow.session.fetches import Feeds
from aioflow.session.prepared import names_of
from aioflow.sync.background import Background

T = TypeVar("T")
FeedSource: TypeAlias = Feeds | Iterable[Feeds] | AsyncIterable[Feeds] | None


# Not StopIteration, which Python turns into a RuntimeError when it leaves a coroutine.
class _NoMoreFeeds(Exception):
    """The signal that the feeds have ended."""


class _Steps:
    """Runs one step after another, each with the next feeds. Steps receive feeds in the order in which they start."""

    def __init__(
        self, run: Callable[..., Awaitable[Any]], fetches: object, feeds: FeedSource, timeout: float | None
    ) -> None:
        self._run = run
        self._fetches = fetches
        self._timeout = timeout
        # An async generator raises RuntimeError if it is advanced while another task is in it.
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
        """Run a step with the next feeds and return its result. Raises _NoMoreFeeds, or the error of the step."""
        # Only the feeds are fetched under the lock; the steps themselves run concurrently.
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
    """A step in flight: its task, and its result or error.

    It has neither if the task was cancelled, which can happen before the task first runs.
    """

    __slots__ = ("error", "ran", "result", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.result: Any = None
        self.ran: Step | None = None
        self.error: Exception | None = None

    async def run(self, steps: _Steps) -> None:
        """Run the step. This is the body of the task."""
        try:
            self.result, self.ran = await steps.step()
        except Exception as error:
            self.error = error

    def abandon(self) -> None:
        """Cancel the task. If it has ended, put back the elements that the step has dequeued, without waiting."""
        self.task.cancel()
        if self.ran is not None:
            self.ran.abandon()


class Stream(Generic[T]):
    """An async iterator over the results of steps, and an async context manager that stops them.

    Args:
        run: Runs a step. With a `prefetch` it returns a pair of the result and the step.
        background: Owner of the tasks that run ahead.
        fetches: Fetches of each step.
        feeds: Source of feeds; see `Session.stream`.
        prefetch: Number of steps that run ahead.
        timeout: Time limit of each step, in seconds.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        background: Background,
        fetches: object,
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
        self._abandon: weakref.finalize[..., Stream[T]] | None = None

    def __aiter__(self) -> Stream[T]:
        return self

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def __anext__(self) -> T:
        """Return the result of the next step. Raises StopAsyncIteration at the end.

        Raises:
            FailedPreconditionError: another task is waiting for a result.
            OpError: the step failed. The stream is then closed.
        """
        if self._busy:
            raise FailedPreconditionError("the stream is already being read", expected="one reader", actual="two")
        self._busy = True
        try:
            result: T = await (self._next_ahead() if self._prefetch else self._next())
            return result
        # An Exception, too, but no failure: either no step is in flight, or `aclose` is waiting for those that are.
        except StopAsyncIteration:
            self._closed = True
            raise
        except Exception:
            await self.aclose()
            raise
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Cancel the steps in flight and wait for them. The iterator then ends."""
        self._closed = True
        tasks = [flight.task for flight in self._flights]
        for task in tasks:
            # A second cancellation would interrupt the clean-up that the first one has started.
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        flights = list(self._flights)
        self._flights.clear()
        # The last step first, so that putting back elements restores the order of the queue.
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
            # One more than `prefetch`, for the step that the reader waits for.
            while len(self._flights) <= self._prefetch and not self._ending:
                await self._depart()
            if not self._flights:
                break
            flight = self._flights[0]
            # `wait` neither raises the task's error nor cancels the task if the reader is cancelled.
            await asyncio.wait([flight.task])
            if self._closed:
                break  # type: ignore[unreachable]  # another task has closed the stream and waits for the steps in flight
            self._flights.popleft()
            if flight.task.cancelled():
                raise CancelledError(f"the session was closed while {self._steps} ran")
            if flight.error is None:
                return flight.result
            if not isinstance(flight.error, OutOfRangeError | _NoMoreFeeds):
                raise flight.error
            self._ending = True  # steps in flight may hold the last elements, so read their results first
        raise StopAsyncIteration

    async def _depart(self) -> None:
        flight = _Flight()
        flight.task = await self._background.start(flight.run(self._steps))
        self._flights.append(flight)
        if self._abandon is None:
            # The callback must not refer to the stream, which would then never be collected.
            self._abandon = weakref.finalize(self, _cancel, asyncio.get_running_loop(), self._flights)
            # There is nothing to cancel at exit: the event loop no longer runs.
            self._abandon.atexit = False


def _cancel(loop: asyncio.AbstractEventLoop, flights: deque[_Flight]) -> None:
    """Cancel the steps that run ahead of a stream that was garbage collected. Closing the session waits for them."""
    for flight in reversed(flights):
        # A finalizer may run in any thread. The last step is first, as in `Stream.aclose`.
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(flight.abandon)
