"""Coroutines for callers who block, one after another, on an event loop that is kept between them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from aioflow.errors import ClosedSessionError
from aioflow.work.forking import renew_in_child

__all__ = ["SyncRunner", "loop_runs_here"]

_INHERITED: Final[list[asyncio.AbstractEventLoop]] = []


def loop_runs_here() -> bool:
    """Whether this thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class SyncRunner:
    """Runs coroutines for one thread at a time, each with the context variables of its caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Closes the loop when this object is collected without having been closed, and when the process ends. A loop
        # does so itself in `__del__`, but in a cycle of garbage its sockets may be finalized first, and it then raises.
        self._unclosed: weakref.finalize[[threading.Lock, asyncio.AbstractEventLoop], SyncRunner] | None = None
        self._closed = False
        self._ends_with_this_run = False
        renew_in_child(self)

    def after_fork(self) -> None:
        """In a child the loop is the parent's, as is what it waits with. It would close itself when it is collected,
        and take the parent's sockets out of that.
        """
        if self._unclosed is not None:
            self._unclosed.detach()
        if self._runner is not None:
            with suppress(RuntimeError):  # it has been closed
                loop = self._runner.get_loop()
                loop.is_closed = lambda: True  # type: ignore[method-assign]  # as far as this process is concerned
                _INHERITED.append(loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine.

        Where an event loop runs in this thread already (a notebook), it runs on a loop of its own in another thread.

        Raises:
            ClosedSessionError: after `refuse`.
        """
        if loop_runs_here():
            return _in_thread(partial(asyncio.run, coroutine))
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClosedSessionError.refusing()
            if self._runner is None:
                self._runner = asyncio.Runner()
                self._loop = self._runner.get_loop()
                self._unclosed = weakref.finalize(self, _close_idle, self._lock, self._loop)
            try:
                return _run(self._runner, coroutine)
            finally:
                if self._ends_with_this_run and self._unclosed is not None and self._unclosed.detach():
                    self._runner.close()
                    self._runner = None

    def refuse(self) -> bool:
        """Run no more; return whether there is something to close. Called by what runs here, this closes the loop when
        that ends.
        """
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            self._ends_with_this_run = True
            return False
        if not self._lock.acquire(blocking=False):
            return True  # somebody runs something, or is about to
        try:
            return self._runner is not None
        finally:
            self._lock.release()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine and close the loop; where nothing has been run, nothing is."""
        if loop_runs_here():
            _in_thread(partial(self.close, last))
            return
        with self._lock:
            self._closed = True
            runner, self._runner = self._runner, None
            if runner is None or self._unclosed is None or not self._unclosed.detach():
                last.close()  # nothing has been run, or the loop was closed because the process ends
                return
            with runner:
                _run(runner, last)


def _close_idle(lock: threading.Lock, loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop unless a thread runs something on it, as a daemon thread may at the end of the process."""
    if lock.acquire(blocking=False):
        try:
            loop.close()
        finally:
            lock.release()


def _run(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, with the context variables of the caller.

    The runner's task has no result of its own: for each run the module `signal` makes the text of an error that nobody
    sees, with the task and the result in it, and of an array that takes milliseconds.
    """
    outcome: list[Any] = []
    putting = _put(coroutine, outcome)
    try:
        runner.run(putting, context=copy_context())
    except BaseException:
        _end(runner.get_loop(), putting)
        raise
    finally:
        coroutine.close()  # it has not begun if the task was cancelled before its first turn
    return outcome.pop()


def _end(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Cancel the task of a coroutine that the loop has left: what a signal handler raises ends the loop alone."""
    left = [task for task in asyncio.all_tasks(loop) if task.get_coro() is coroutine]
    for task in left:
        task.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()  # it may have been told to stop, by a task that had ended, and would do so in the next run
    for task in left:
        with suppress(asyncio.CancelledError, Exception):  # its caller hears of the interruption
            loop.run_until_complete(task)
    if not left:
        coroutine.close()  # there was no task yet


async def _put(coroutine: Coroutine[Any, Any, Any], outcome: list[Any]) -> None:
    outcome.append(await coroutine)


def _in_thread(call: Callable[[], Any]) -> Any:
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend((True, call()))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=copy_context().run, args=(work,), name="aioflow-run-sync")
    thread.start()
    thread.join()
    if not outcome[0]:
        raise outcome[1]
    return outcome[1]
