"""An event loop in a separate thread, for programs without an event loop that use a cluster.

Connections must be served between the calls of the program, too. Otherwise peers would consider the program dead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Final, TypeVar

from aioflow.errors import ClosedSessionError, FailedPreconditionError

_NAME: Final = "aioflow-loop"
_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own, for callers in other threads.

    The thread starts with the first coroutine. It is a daemon thread, which does not keep the program alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._group: asyncio.TaskGroup
        self._closing: asyncio.Event

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with asyncio.TaskGroup() as self._group:  # no task in it ever raises
            self._ready.set()
            await self._closing.wait()

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """Run a coroutine with the caller's context variables and return its result. An interrupt cancels it.

        Raises:
            FailedPreconditionError: called from within the loop.
            ClosedSessionError: called after `refuse`.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClosedSessionError.refusing()
            if self._thread is None:
                self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name=_NAME, daemon=True)
                self._thread.start()
                # From here on `_loop`, `_group` and `_closing` exist.
                self._ready.wait()
            # Under the lock, because `close` could otherwise end the loop first.
            done = self._submit(coroutine, self._thread)
        return self._result(done)

    def _submit(self, coroutine: Coroutine[object, object, _T], thread: threading.Thread) -> Future[_T]:
        if threading.current_thread() is thread:
            coroutine.close()
            raise FailedPreconditionError("a coroutine of this loop waits for another one by blocking the loop")
        done: Future[_T] = Future()
        self._loop.call_soon_threadsafe(self._begin, coroutine, done, copy_context())
        return done

    def _result(self, done: Future[_T]) -> _T:
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def _begin(self, coroutine: Coroutine[object, object, _T], done: Future[_T], context: Context) -> None:
        task = self._group.create_task(_pass_on(coroutine, done), context=context)
        task.add_done_callback(lambda _: coroutine.close())  # for a task that was cancelled before it started

        def cancel(done: Future[_T]) -> None:
            if done.cancelled():
                self._loop.call_soon_threadsafe(task.cancel)

        done.add_done_callback(cancel)

    def refuse(self) -> bool:
        """Reject further coroutines. Return True if there may be a thread to close."""
        self._closed = True
        # A locked lock means that another thread may be starting the thread.
        return self._thread is not None or self._lock.locked()

    def close(self, last: Coroutine[object, object, None]) -> None:
        """Run a last coroutine and end the thread. If the thread was never started, nothing runs."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            last.close()
            return
        try:
            self._result(self._submit(last, thread))
        finally:
            self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()


async def _pass_on(coroutine: Coroutine[object, object, _T], done: Future[_T]) -> None:
    """Pass the result or error of the coroutine to the waiting caller, if there still is one."""
    try:
        result = await coroutine
    except BaseException as error:
        with suppress(InvalidStateError):  # the caller has given up
            done.set_exception(error)
        # Other errors are the caller's. Raised here, they would cancel the whole task group.
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        with suppress(InvalidStateError):
            done.set_result(result)
