"""The blocking interface of a session: coroutines are run one after another, on an event loop kept between calls."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from aioflow.arguments import check_kind
from aioflow.concurrency.forking import renew_in_child
from aioflow.concurrency.loops import new_runner, run_on_new_loop
from aioflow.concurrency.threads import is_loops_thread
from aioflow.errors import ClosedSessionError, FailedPreconditionError

# ── the event loop of a session, which is kept between calls ──────────────────────────────────────────────────────────


T = TypeVar("T")

# Loops of the parent process, which a child holds for ever so that they are never collected.
_INHERITED: Final[list[asyncio.AbstractEventLoop]] = []


class SyncRunner:
    """A runner of coroutines for one thread at a time, each with the context variables of its caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Closes the loop at the end of the process, or when this object is collected unclosed. `BaseEventLoop.__del__`
        # would close it too, but in a garbage cycle its sockets may be finalized first, and then it raises.
        self._unclosed: weakref.finalize[[threading.Lock, asyncio.AbstractEventLoop], SyncRunner] | None = None
        self._closed = False
        self._ends_with_this_run = False
        renew_in_child(self)

    def after_fork(self) -> None:
        """Disable closing of the inherited loop in a child process.

        The loop and its selector are the parent's. Collecting the loop in the child would close it, and remove the
        parent's sockets from the selector.
        """
        if self._unclosed is not None:
            self._unclosed.detach()
        if self._loop is not None and not self._loop.is_closed():
            # For this process the loop is closed already, so that its `__del__` does nothing.
            self._loop.is_closed = lambda: True  # type: ignore[method-assign]
            _INHERITED.append(self._loop)

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine and return its result.

        If this thread is already running an event loop (as in a notebook), the coroutine runs on a new loop in another
        thread.

        Raises:
            ClosedSessionError: `refuse` was called before.
        """
        if is_loops_thread():
            return _in_thread(partial(run_on_new_loop, coroutine))
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClosedSessionError.refusing()
            if self._runner is None:
                runner = new_runner()
                # First, so that a child that is forked here finds the loop that it must not close.
                self._loop = runner.get_loop()
                self._runner = runner
                self._unclosed = weakref.finalize(self, _close_idle, self._lock, self._loop)
            try:
                return _run(self._runner, coroutine)
            finally:
                if self._ends_with_this_run and self._unclosed is not None and self._unclosed.detach():
                    self._runner.close()
                    self._runner = None

    def refuse(self) -> bool:
        """Refuse further runs, and return whether there is something to close.

        If a coroutine that runs here calls it, the loop is closed when that coroutine ends.
        """
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            self._ends_with_this_run = True
            return False
        if not self._lock.acquire(blocking=False):
            return True  # another thread runs something, or is about to
        try:
            return self._runner is not None
        finally:
            self._lock.release()

    def close(self, last: Coroutine[object, object, None]) -> None:
        """Run a last coroutine and close the loop. If nothing has been run, the coroutine is not run either."""
        if is_loops_thread():
            _in_thread(partial(self.close, last))
            return
        with self._lock:
            self._closed = True
            runner, self._runner = self._runner, None
            if runner is None or self._unclosed is None or not self._unclosed.detach():
                last.close()  # nothing has been run, or the loop was closed at the end of the process
                return
            with runner:
                _run(runner, last)


def _close_idle(lock: threading.Lock, loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop unless a thread is using it, as a daemon thread may at the end of the process."""
    if lock.acquire(blocking=False):
        try:
            loop.close()
        finally:
            lock.release()


def _run(runner: asyncio.Runner, coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine and return its result, with the context variables of the caller."""
    outcome: list[T] = []
    # The runner's task must not have the result. In each run the module `signal` makes the text of an error that is
    # never shown, with the task and its result in it, which takes milliseconds for an array.
    putting = _put(coroutine, outcome)
    try:
        runner.run(putting, context=copy_context())
    except BaseException:
        _end(runner.get_loop(), putting)
        raise
    finally:
        coroutine.close()  # it has not begun if the task was cancelled before its first turn
    return outcome.pop()


def _end(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, None]) -> None:
    """Cancel the task of a coroutine that the loop has left.

    An exception from a signal handler ends the loop but not its tasks.
    """
    left = [task for task in asyncio.all_tasks(loop) if task.get_coro() is coroutine]
    for task in left:
        task.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()  # consumes a pending stop request of an ended task, which would end the next run
    for task in left:
        with suppress(asyncio.CancelledError, Exception):  # the caller gets the interruption instead
            loop.run_until_complete(task)
    if not left:
        coroutine.close()  # the coroutine has no task yet


async def _put(coroutine: Coroutine[object, object, T], outcome: list[T]) -> None:
    outcome.append(await coroutine)


def _in_thread(call: Callable[[], T]) -> T:
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
    result: T = outcome[1]
    return result


# ── an event loop in a separate thread, for programs without an event loop that use a cluster ─────────────────────────
#
# Connections must be served between the calls of the program, too. Otherwise peers would consider the program dead.


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
                self._thread = threading.Thread(target=run_on_new_loop, args=(self._serve(),), name=_NAME, daemon=True)
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


# ── the methods ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Blocking(ABC):
    """Mixin that waits for coroutines which run steps of a session."""

    _sync_runner: Any

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedSessionError if the session is closed."""

    def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Run a coroutine that uses this session, block until it ends, and return its result.

            session.wait_for(model.initialize(session))
            session.wait_for(saver.save(session, path))

        If an event loop already runs in this thread (a notebook), the coroutine runs in another thread.

        Raises:
            ClosedSessionError: the session is closed. The coroutine is then closed, too.
            FailedPreconditionError: the coroutine has been awaited before.
        """
        check_kind(awaitable, Awaitable, "the awaitable", "a coroutine")
        if not inspect.iscoroutine(awaitable):
            return self._finished(awaitable)
        if (state := inspect.getcoroutinestate(awaitable)) != inspect.CORO_CREATED:
            raise FailedPreconditionError(
                f"{awaitable.__qualname__}() has already been awaited", expected="a new coroutine", actual=state
            )
        try:
            result: T = self._finished(awaitable)
        finally:
            awaitable.close()  # avoids "never awaited" warnings if it was not started
        return result

    def _finished(self, awaitable: Awaitable[T]) -> T:
        # The runner takes only coroutines.
        async def finished() -> T:
            return await awaitable

        self._check_open()
        result: T = self._sync_runner.run(finished())
        return result
