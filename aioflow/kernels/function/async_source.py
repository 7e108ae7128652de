"""Async iterators as sources: a task reads ahead, steps take what it has read.

`SourceCore` decides who gets what and has no clock, task or loop; `AsyncSource` drives it. Whoever waits may do so on
another loop than that of the reader.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from aioflow.errors import CancelledError, DTypeError, FailedPreconditionError, OutOfRangeError
from aioflow.graph.python_functions import PythonFunction, find_function
from aioflow.kernels.function.py_func import ResultCheck, call_error, is_cancelled
from aioflow.kernels.registry import Binding, binder
from aioflow.sync.background import Background, background_of
from aioflow.sync.waiting import StepAccount

__all__ = ["SourceCore"]

Waiter = TypeVar("Waiter")
Item = TypeVar("Item")


class SourceCore(Generic[Waiter, Item]):
    """Items that were read ahead, and waiters, of which there are never both. Waiters are served in order."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[Item] = deque()
        self.waiters: deque[Waiter] = deque()

    @property
    def wants_more(self) -> bool:
        """Whether another item should be read."""
        return bool(self.waiters) or len(self.items) < self.depth

    def ask(self, waiter: Waiter) -> Item | None:
        """An item, or None: the waiter is in the queue then."""
        if self.items:
            return self.items.popleft()
        self.waiters.append(waiter)
        return None

    def put(self, item: Item) -> Waiter | None:
        """An item was read: who gets it, or None where it is kept."""
        if self.waiters:
            return self.waiters.popleft()
        self.items.append(item)
        return None

    def put_back(self, item: Item) -> Waiter | None:
        """As `put`, for an item whose taker went away: it is the next one still."""
        if self.waiters:
            return self.waiters.popleft()
        self.items.appendleft(item)
        return None

    def withdraw(self, waiter: Waiter) -> None:
        """A waiter went away before it got anything."""
        with suppress(ValueError):
            self.waiters.remove(waiter)

    def end(self) -> list[Waiter]:
        """Nothing more will be read: everybody who waits in vain."""
        left = list(self.waiters)
        self.waiters.clear()
        return left


class _Item:
    """What one `anext` came to."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class _Waiter:
    """A step that waits on its loop; `item` is set under the lock of the source."""

    __slots__ = ("future", "item", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.item: _Item | None = None

    def wake(self) -> None:
        if self.loop is asyncio.get_running_loop():
            self._resume()
            return
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def _ended() -> BaseException:
    return OutOfRangeError("the async iterator has ended")


def _reader_gone() -> BaseException:
    return FailedPreconditionError(
        "the async iterator is not read any more", expected="the event loop of its first step", actual="ended"
    )


class AsyncSource:
    """One session's reading of one async iterable."""

    def __init__(self, function: PythonFunction, depth: int, background: Background) -> None:
        self._function = function
        self._background = background
        self._core: SourceCore[_Waiter, _Item] = SourceCore(depth)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Event()
        self._last: Callable[[], BaseException] | None = None  # what every further step gets

    async def next(self) -> _Item:
        """Return the next element.

        Raises:
            OutOfRangeError: there is none.
            BaseException: what the iterator raised.
        """
        await self._ensure_reader()
        waiter = _Waiter()
        with self._lock:
            if self._last is not None and not self._core.items:
                raise self._last()
            item = self._core.ask(waiter)
        self._call_reader()
        if item is None:
            item = await self._wait(waiter)
        if item.error is not None:
            raise item.error
        return item

    def give_back(self, item: _Item) -> None:
        """Put an element back: the next step gets it."""
        with self._lock:
            heir = self._core.put_back(item)
            if heir is not None:
                heir.item = item
        if heir is not None:
            heir.wake()

    async def _wait(self, waiter: _Waiter) -> _Item:
        try:
            await waiter.future
        except asyncio.CancelledError:
            with self._lock:
                self._core.withdraw(waiter)
            if waiter.item is not None:
                self.give_back(waiter.item)
            raise
        with self._lock:
            item, last = waiter.item, self._last
        if item is not None:
            return item
        raise _reader_gone() if last is None else last()

    # -- the reader ---------------------------------------------------------------------------------------------------

    async def _ensure_reader(self) -> None:
        with self._lock:
            if self._loop is not None:
                return
            if self._function.reader is not None:
                raise FailedPreconditionError(
                    "another session reads this async iterator",
                    expected="a function that returns an async iterator, to read it more than once",
                    actual="an iterator that is being read",
                )
            if isinstance(self._function.call, AsyncIterator):
                self._function.reader = self
            self._loop = asyncio.get_running_loop()
        await self._background.start(self._read())

    def _call_reader(self) -> None:
        """Let it read on. Where its loop was closed without cancelling it, the waiters are told that it is gone."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            self._room.set()
            return
        try:
            loop.call_soon_threadsafe(self._room.set)
        except RuntimeError:
            self._end(_reader_gone)

    def _end(self, last: Callable[[], BaseException]) -> None:
        """Nothing more is read: let the waiters raise what `last` makes, and every later one, unless it has ended."""
        with self._lock:
            self._last = self._last or last
            left = self._core.end()
        for waiter in left:
            waiter.wake()

    async def _read(self) -> None:
        """Read until the end. Ends by a cancellation where the session, or the loop, is closed."""
        last: Callable[[], BaseException] = _reader_gone
        iterator: Any = None
        try:
            iterator = self._begin()
            while True:
                while not self._core.wants_more:
                    self._room.clear()
                    await self._room.wait()
                self._deliver(await _next_item(iterator))
        except StopAsyncIteration:
            last = _ended
        except Exception as error:
            last = _again(error)
        finally:
            self._end(last)
            if hasattr(iterator, "aclose"):
                with suppress(Exception):  # nobody is left to tell
                    await iterator.aclose()

    def _begin(self) -> AsyncIterator[Any]:
        try:
            return self._open()
        except StopAsyncIteration as error:  # there is nothing yet that could have ended
            raise call_error(error) from error

    def _open(self) -> AsyncIterator[Any]:
        source = self._function.call
        if not isinstance(source, AsyncIterable):
            source = source()
        if not isinstance(source, AsyncIterable):
            if inspect.iscoroutine(source):
                source.close()
            raise DTypeError(
                "the factory did not return an async iterable",
                expected="an async iterable",
                actual=type(source).__name__,
            )
        return aiter(source)

    def _deliver(self, item: _Item) -> None:
        with self._lock:
            waiter = self._core.put(item)
            if waiter is not None:
                waiter.item = item
        if waiter is not None:
            waiter.wake()


def _again(error: Exception) -> Callable[[], BaseException]:
    failure = call_error(error)
    return lambda: failure


async def _next_item(iterator: AsyncIterator[Any]) -> _Item:
    """The next element or its error. Raises StopAsyncIteration, or CancelledError where the reader is to stop."""
    try:
        return _Item(await anext(iterator))
    except StopAsyncIteration:
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        failed = CancelledError("what the async iterator awaited was cancelled")
        failed.__cause__ = error
        return _Item(error=failed)
    except Exception as error:
        return _Item(error=call_error(error))


@binder("AioflowAsyncIteratorNext", device="CPU", is_async=True, fresh=True, takes_step=True)
def async_iterator_next(binding: Binding) -> Callable[..., Awaitable[tuple[Any, ...]]]:
    function = find_function(binding.attrs["token"])
    check = ResultCheck(binding)
    source = binding.shared(lambda: AsyncSource(function, binding.attrs["prefetch"], background_of(binding.state)))

    gives_back = binding.gives_back

    async def take(*, step: StepAccount) -> tuple[Any, ...]:
        item = await source.next()
        if gives_back:
            step.took(partial(source.give_back, item))
        else:
            step.changed = True
        return await check.wherever(item.value)

    return take
