"""Async iterators as sources: a task prefetches items, and steps consume them.

`SourceCore` assigns items to waiters and has no clock, task or loop; `AsyncSource` drives it. Waiters may run on
another event loop than the reader.
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
from aioflow.kernels.function.py_func import ResultCheck, call_error, is_cancelled
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Value
from aioflow.ops.function.python_functions import PythonFunction, find_function
from aioflow.sync.background import Background, background_of
from aioflow.sync.waiting import StepAccount

AnyWaiter = TypeVar("AnyWaiter")
AnyItem = TypeVar("AnyItem")


class SourceCore(Generic[AnyWaiter, AnyItem]):
    """Prefetched items and waiters, of which at most one queue is not empty. Waiters are served in order.

    Attributes:
        depth: The most items to prefetch.
        items: Prefetched items.
        waiters: Waiters for an item.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[AnyItem] = deque()
        self.waiters: deque[AnyWaiter] = deque()

    @property
    def wants_more(self) -> bool:
        """True if another item should be read."""
        return bool(self.waiters) or len(self.items) < self.depth

    def ask(self, waiter: AnyWaiter) -> AnyItem | None:
        """Return an item, or queue the waiter and return None."""
        if self.items:
            return self.items.popleft()
        self.waiters.append(waiter)
        return None

    def put(self, item: AnyItem) -> AnyWaiter | None:
        """Return the waiter that gets a new item, or keep the item and return None."""
        if self.waiters:
            return self.waiters.popleft()
        self.items.append(item)
        return None

    def put_back(self, item: AnyItem) -> AnyWaiter | None:
        """Like `put`, for an item whose consumer was cancelled: it remains the next item."""
        if self.waiters:
            return self.waiters.popleft()
        self.items.appendleft(item)
        return None

    def withdraw(self, waiter: AnyWaiter) -> None:
        """Remove a waiter that was cancelled before it got an item."""
        with suppress(ValueError):
            self.waiters.remove(waiter)

    def end(self) -> list[AnyWaiter]:
        """Remove and return all waiters, because no more items will be read."""
        left = list(self.waiters)
        self.waiters.clear()
        return left


class _Item:
    """The result of one `anext`: a value or an error."""

    __slots__ = ("error", "value")

    def __init__(self, value: Value = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


class _Waiter:
    """A step that waits on its own event loop; `item` is set under the lock of the source."""

    __slots__ = ("future", "item", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.item: _Item | None = None

    def wake(self) -> None:
        if self.loop is asyncio.get_running_loop():
            self._resume()
            return
        with suppress(RuntimeError):  # its loop is closed, so the step no longer waits
            self.loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def _ended() -> BaseException:
    return OutOfRangeError("the async iterator has ended")


def _reader_gone() -> BaseException:
    return FailedPreconditionError(
        "the async iterator is no longer read", expected="the event loop of its first step", actual="ended"
    )


class AsyncSource:
    """The prefetched items of one async iterable, for one session."""

    def __init__(self, function: PythonFunction, depth: int, background: Background) -> None:
        self._function = function
        self._background = background
        self._core: SourceCore[_Waiter, _Item] = SourceCore(depth)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Event()
        self._last: Callable[[], BaseException] | None = None  # creates the error of every step after the end

    async def next(self) -> _Item:
        """Return the next element.

        Raises:
            OutOfRangeError: the iterator has ended.
            FailedPreconditionError: another session reads the iterator, or the event loop of its reader has ended.
            OpError: the iterator raised an exception; see `call_error`.
        """
        await self._ensure_reader()
        waiter = _Waiter()
        with self._lock:
            # Items that were read before the end are still delivered.
            if self._last is not None and not self._core.items:
                raise self._last()
            item = self._core.ask(waiter)
        # A taken item, or a new waiter, may have made `wants_more` true.
        self._call_reader()
        if item is None:
            item = await self._wait(waiter)
        if item.error is not None:
            raise item.error
        return item

    def give_back(self, item: _Item) -> None:
        """Put an element back, so that the next step gets it."""
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
            # After the withdrawal no item can arrive. One that has arrived goes to the next step.
            with self._lock:
                self._core.withdraw(waiter)
            if waiter.item is not None:
                self.give_back(waiter.item)
            raise
        with self._lock:
            # Under the lock, because the reader's loop may run in another thread.
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
            # An iterator can be read only once, while a factory or an iterable serves every session.
            if isinstance(self._function.call, AsyncIterator):
                self._function.reader = self
            self._loop = asyncio.get_running_loop()
        # `_loop` was set under the lock, so one step starts the reader. No await may happen under a thread lock.
        await self._background.start(self._read())

    def _call_reader(self) -> None:
        """Wake the reader. If its loop was closed without cancelling it, end the source with an error."""
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            self._room.set()
            return
        try:
            loop.call_soon_threadsafe(self._room.set)
        except RuntimeError:
            self._end(_reader_gone)

    def _end(self, last: Callable[[], BaseException]) -> None:
        """End the source, unless it has ended before. Waiters and later steps raise the error that `last` creates."""
        with self._lock:
            self._last = self._last or last
            left = self._core.end()
        for waiter in left:
            waiter.wake()

    async def _read(self) -> None:
        """Read until the iterator ends. The task is cancelled when the session or the loop is closed."""
        # The error if this task is cancelled; the other ends replace it.
        last: Callable[[], BaseException] = _reader_gone
        iterator: Any = None
        try:
            iterator = self._begin()
            while True:
                # `_room` is set only on this loop, so no call comes between the test and `clear`.
                while not self._core.wants_more:
                    self._room.clear()
                    await self._room.wait()
                self._deliver(await _next_item(iterator))
        except StopAsyncIteration:
            last = _ended
        except Exception as error:
            last = _again(error)
        finally:
            # Before `aclose`, which may wait, so that the waiters learn of the end at once.
            self._end(last)
            if hasattr(iterator, "aclose"):
                with suppress(Exception):  # no waiter is left to receive the error
                    await iterator.aclose()

    def _begin(self) -> AsyncIterator[Value]:
        try:
            return self._open()
        except StopAsyncIteration as error:  # an error of the factory, not the end of the iterator
            raise call_error(error) from error

    def _open(self) -> AsyncIterator[Value]:
        source = self._function.call
        if not isinstance(source, AsyncIterable):
            source = source()
        if not isinstance(source, AsyncIterable):
            # Closed, so that Python does not warn about a coroutine that was never awaited.
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


async def _next_item(iterator: AsyncIterator[Value]) -> _Item:
    """Return the next element or its error. Raise StopAsyncIteration; CancelledError if the reader is cancelled."""
    try:
        return _Item(await anext(iterator))
    except StopAsyncIteration:
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        failed = CancelledError("an operation that the async iterator awaited was cancelled")
        failed.__cause__ = error
        return _Item(error=failed)
    except Exception as error:
        return _Item(error=call_error(error))


@binder("AioflowAsyncIteratorNext", device="CPU", is_async=True, fresh=True, takes_step=True)
def async_iterator_next(binding: Binding) -> Callable[..., Awaitable[tuple[Array, ...]]]:
    function = find_function(binding.attrs["token"])
    check = ResultCheck(binding.output_dtypes, binding.output_dims)
    source = binding.shared(lambda: AsyncSource(function, binding.attrs["prefetch"], background_of(binding.state)))

    gives_back = binding.gives_back

    async def take(*, step: StepAccount) -> tuple[Array, ...]:
        item = await source.next()
        if gives_back:
            step.took(partial(source.give_back, item))
        else:
            step.changed = True
        return await check.wherever(item.value)

    return take
