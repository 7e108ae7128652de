"""An event loop in a thread of its own, for a program without one that talks to other processes.

Connections must be served between two calls of the program too, or the peers would take it for dead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final

from aioflow.errors import ClosedSessionError, FailedPreconditionError

__all__ = ["LoopThread"]

_NAME: Final = "aioflow-loop"


class LoopThread:
    """Runs coroutines for callers in other threads. It starts with the first one, and does not keep a program alive."""

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

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine, which sees the caller's context variables. An interrupt cancels it.

        Raises:
            FailedPreconditionError: called from within the loop.
            ClosedSessionError: after `refuse`.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClosedSessionError.refusing()
            if self._thread is None:
                self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name=_NAME, daemon=True)
                self._thread.start()
                self._ready.wait()
            done = self._submit(coroutine, self._thread)  # with the lock: `close` would end the loop first
        return self._result(done)

    def _submit(self, coroutine: Coroutine[Any, Any, Any], thread: threading.Thread) -> Future[Any]:
        if threading.current_thread() is thread:
            coroutine.close()
            raise FailedPreconditionError("a coroutine of this loop waits for another one by blocking the loop")
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._begin, coroutine, done, copy_context())
        return done

    def _result(self, done: Future[Any]) -> Any:
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def _begin(self, coroutine: Coroutine[Any, Any, Any], done: Future[Any], context: Context) -> None:
        task = self._group.create_task(_pass_on(coroutine, done), context=context)
        task.add_done_callback(lambda _: coroutine.close())  # it has not begun where the task was cancelled at once

        def cancel(done: Future[Any]) -> None:
            if done.cancelled():
                self._loop.call_soon_threadsafe(task.cancel)

        done.add_done_callback(cancel)

    def refuse(self) -> bool:
        """Run no more coroutines; whether there is something to close."""
        self._closed = True
        return self._thread is not None or self._lock.locked()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine and end the thread; where it has not started, nothing is run."""
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


async def _pass_on(coroutine: Coroutine[Any, Any, Any], done: Future[Any]) -> None:
    """What comes of the coroutine goes to whoever waits for it, if they still do."""
    try:
        result = await coroutine
    except BaseException as error:
        with suppress(InvalidStateError):  # he has given up
            done.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        with suppress(InvalidStateError):
            done.set_result(result)
