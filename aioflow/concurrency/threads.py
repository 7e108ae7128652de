"""Calls in threads that do not lose cancellations, and that can be abandoned.

The module does not use `concurrent.futures`, because every step pays for the calls. One future and one wake-up of the
loop, instead of two futures, a condition variable and a chain of callbacks, cost a third less. And threads of that
module delay the exit of the interpreter until their last call has ended, which may be never.

A call that is asked to stop ends at its next checkpoint. A call may never reach one: it reads a pipe without any data,
or is inside a library. It is abandoned if it has no effects that others see: the caller stops waiting, and a new thread
replaces the call's own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from aioflow.concurrency.forking import generation, renew_in_child
from aioflow.concurrency.stopping import Stoppable, Stopped, Work, doing
from aioflow.errors import ResourceExhaustedError

T = TypeVar("T")

GRACE: Final = 0.05  # seconds to reach a checkpoint before a call is abandoned
_PRIORITY: Final = 10  # nice levels below other threads: a tenth of a processor's time if others want it
_QUEUED, _RUNNING, _ENDED, _WITHDRAWN, _LEFT = range(5)


class AbandonedError(Exception):
    """The call was asked to stop, but is still running in its thread, and the caller no longer waits for it.

    For a caller that was cancelled, this is the cause of the `asyncio.CancelledError`. Other callers get it directly.

    Attributes:
        call: The running call.
    """

    def __init__(self, call: ThreadCall) -> None:
        super().__init__("the call was abandoned and still runs in its thread")
        self.call = call

    @classmethod
    def within(cls, error: BaseException) -> AbandonedError | None:
        """Return the AbandonedError that an exception is or is caused by, or None."""
        found = error if isinstance(error, cls) else error.__cause__
        return found if isinstance(found, cls) else None


class ThreadCall:
    """One call in a thread. All methods but `perform` run on the caller's loop.

    Attributes:
        work: The work that the call is a part of.
        future: The result, for the caller.
        thread: Identity of the thread that runs the call; 0 before that.
    """

    __slots__ = (
        "_args", "_delivered", "_function", "_late", "_lock", "_loop", "_rejoining", "_result", "_state", "_threads",
        "_timer", "future", "thread", "work",
    )  # fmt: skip

    def __init__(self, threads: Threads, work: Work, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self._threads = threads
        self.work = work
        self._function = function
        self._args = args
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._state = _QUEUED
        self._delivered = False
        self._late: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._result: tuple[object, BaseException | None] = (None, None)  # the outcome and error of an abandoned call
        self._rejoining: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[object]]] = []
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.thread = 0

    @property
    def left(self) -> bool:
        """True if the call was abandoned, even if it has ended since."""
        return self._state == _LEFT

    # -- in the thread -------------------------------------------------------------------------------------------------

    def perform(self) -> bool:
        """Call the function and send the outcome to the loop. Return True if the thread has more to do."""
        with self._lock:
            # Under the lock, so that a call is either started here or withdrawn, never both.
            if self._state != _QUEUED:
                return True
            self._state = _RUNNING
        self.thread = threading.get_ident()
        made: list[Any] = []  # the outcome and the error
        try:
            made += (doing(self.work, self._function, *self._args), None)
        except StopIteration as raised:  # a future cannot carry StopIteration
            error = RuntimeError("a function for a thread raised StopIteration")
            error.__cause__ = raised
            made += (None, error)
            del error
        except BaseException as raised:
            made += (None, raised)
        try:
            return self._end(made)
        finally:
            del self, made  # the error's traceback holds this frame, which would keep the values of the step alive

    def _end(self, made: list[Any]) -> bool:
        with self._lock:
            stays = self._state == _RUNNING
            if stays:
                self._state = _ENDED
            else:
                self._result = (made[0], made[1])
                self._delivered = True
        # An `AbandonedError` may keep the call, which must not keep its arguments alive.
        self._args = ()
        if stays:
            # `made` is passed on as a list, which `_deliver` empties: no frame of this thread keeps the value alive.
            with suppress(RuntimeError):  # the loop was closed, so no caller waits
                self._loop.call_soon_threadsafe(self._deliver, made)
        # Complete by now: `rejoin` appends only under the lock, while `_delivered` is False.
        for loop, future in self._rejoining:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, *self._result)
        return stays

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _deliver(self, made: list[Any]) -> None:
        outcome, error = made
        made.clear()  # the thread may take long to return, and must not keep the value alive
        self._delivered = True
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            if not self._late.done():  # done already if a second cancellation arrives in the same turn of the loop
                self._late.set_result(None)
        else:  # if the future is done, the caller was cancelled in the same turn of the loop and does not wait
            _resolve(self.future, outcome, error)

    def withdraw(self) -> bool:
        """Withdraw the call. Return False if a thread has started it."""
        with self._lock:
            if self._state == _QUEUED:
                self._state = _WITHDRAWN
        return self._state == _WITHDRAWN

    def ask(self) -> None:
        """React to a request to stop: withdraw the call, or make sure that the caller does not wait forever."""
        if self.withdraw():
            _resolve(self.future, None, Stopped())
        # A second request to stop finds the timer of the first.
        elif self._timer is None and not self._delivered:
            self._timer = self._loop.call_later(GRACE, self._give_up)

    def _give_up(self) -> None:
        if self._delivered:
            return
        with self._lock:
            # Work that starts a critical section sets `effects`, then reads the request to stop, which is set by now.
            if self._state == _RUNNING and not self.work.effects:
                self._state = _LEFT
        # The call has effects, or has ended and its result is on its way to the loop. Look again later.
        if not self.left:
            self._timer = self._loop.call_later(GRACE, self._give_up)
            return
        self._threads.replace()
        if self._late is not None:
            if not self._late.done():
                self._late.set_result(None)
        else:
            _resolve(self.future, None, AbandonedError(self))

    async def end(self) -> None:
        """Wait until the call has ended or is abandoned, ignoring further cancellation."""
        if not self._delivered and not self.left:
            # The first future is of no use any more: asyncio has cancelled it together with the task that awaited it.
            self._late = self._loop.create_future()
            await although_cancelled(self._late)
            self._late = None

    async def rejoin(self) -> Any:
        """Wait for the outcome of an abandoned call, on any loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        with self._lock:
            # Under the lock: `_end` either finds the future in the list, or has set `_delivered` before.
            ended = self._delivered
            if not ended:
                self._rejoining.append((loop, future))
        if ended:
            _resolve(future, *self._result)
        return await future


async def although_cancelled(future: asyncio.Future[Any]) -> None:
    """Wait for `future`, ignoring further cancellation; the caller re-raises its own error afterwards."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            # If `wait` is cancelled, it leaves the future as it is; a plain `await` would cancel it.
            await asyncio.wait([future])


async def to_its_end(work: Coroutine[object, object, T]) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                await although_cancelled(task)
                raise
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None  # the group has one task
    return task.result()


def _resolve(future: asyncio.Future[object], outcome: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome)


class Threads:
    """Threads that are started on demand, up to a limit.

    Args:
        name: Prefix of their names.
        limit: Maximum number of threads.
        begin: Called first in each thread.
    """

    def __init__(self, name: str, limit: int, begin: Callable[[], None] | None = None) -> None:
        self._name = name
        self._limit = limit
        self._first = begin
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[ThreadCall] = SimpleQueue()
        self._started = 0
        self._number = 0
        self._busy = 0

    def after_fork(self) -> None:
        """Reset the state in a child, which has none of the threads."""
        self._begin()

    async def call(self, work: Work, function: Callable[..., T], *args: object, critical: bool = False) -> T:
        """Call `function(*args)` in a thread, as a part of `work`.

        If the awaiting task is cancelled, the work is asked to stop. The cancellation is raised once the function has
        returned, or at once if it has not started. A call without effects that does not return is abandoned.

        Args:
            work: The work that the call is a part of.
            function: The function.
            *args: Its arguments.
            critical: Whether to run the call even if the caller is cancelled before a thread is free.

        Raises:
            AbandonedError: the work was asked to stop, other than by a cancellation of the caller, and the call is
                abandoned.
            ResourceExhaustedError: no thread can be started.
            Stopped: the work was asked to stop, other than by a cancellation of the caller. If it was asked before, the
                function is not started.
        """
        if work.requested:
            raise Stopped
        call = ThreadCall(self, work, function, args)
        process = generation()
        work.watchers.append(call.ask)
        try:
            self._submit(call)
            result: T = await call.future
            del call.future  # the thread may hold the call for a while, and must not hold its result
        except asyncio.CancelledError:
            work.stop()
            # A call that is still queued is withdrawn and had no effect. A critical one must run in any case.
            if critical or not call.withdraw():
                await call.end()
            if call.left:
                raise asyncio.CancelledError from AbandonedError(call)
            raise
        finally:
            work.watchers.remove(call.ask)
            # `replace` has accounted for an abandoned call.
            if not call.left and process == generation():  # in a forked child, the counters are new
                with self._lock:
                    self._busy -= 1
            del call  # as in `perform`
        return result

    def _submit(self, call: ThreadCall) -> None:
        with self._lock:
            self._busy += 1
            # One thread for each call that waits or runs, up to the limit; beyond it, calls queue.
            if self._busy > self._started:
                self._grow()
        self._queue.put(call)

    def _grow(self) -> None:
        if self._started < self._limit:
            self._number += 1
            thread = threading.Thread(target=self._serve, name=f"aioflow{self._name}_{self._number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the limit of the system or of a container
                raise ResourceExhaustedError(
                    "no thread can be started", expected="a thread for a call that blocks", actual=str(error)
                ) from error
            self._started += 1

    def replace(self) -> None:
        """Account for a thread that was abandoned with its call."""
        with self._lock:
            self._started -= 1
            self._busy -= 1
            if self._busy > self._started:
                with suppress(ResourceExhaustedError):  # the next call tries again
                    self._grow()

    def _serve(self) -> None:
        if self._first is not None:
            self._first()
        while self._queue.get().perform():
            pass


async def in_thread(
    function: Callable[..., T],
    *args: object,
    effects: bool = True,
    work: Work | None = None,
    quiet: bool = False,
    critical: bool = False,
) -> T:
    """Call `function(*args)` in a thread for blocking calls, in the context of the caller.

    Args:
        function: The function.
        *args: Its arguments.
        effects: Whether it changes state that others see. If it does, a cancelled caller waits until the call has
            ended. A call without effects may be abandoned.
        work: The work that the call is a part of; by default its own.
        quiet: Whether to use a thread of low priority, where the system supports that: for long calls that must not
            slow down other threads.
        critical: Whether to run it to its end although the caller is cancelled. The cancellation is raised afterwards,
            and the result or error of the function is lost. For clean-up, and for effects that belong together.

    Raises:
        AbandonedError, ResourceExhaustedError, Stopped: as for `Threads.call`.
    """
    if work is None:
        # A critical call is never asked to stop, so plain work suffices.
        work = Work() if critical else Stoppable(effects=effects)
    at_once: Callable[..., T] | None = getattr(asyncio.get_running_loop(), "call_in_thread", None)
    if at_once is not None:  # a loop that never receives events from other threads, such as `testing.virtual_clock`'s
        return at_once(doing, work, function, *args)
    threads = _quiet_threads() if quiet else _waiting_threads()
    return await threads.call(work, copy_context().run, function, *args, critical=critical)


@cache
def _waiting_threads() -> Threads:
    """Return the threads for blocking calls, as many as in the default executor of an asyncio loop."""
    return Threads("-calls", min(32, (os.cpu_count() or 1) + 4))


@cache
def _quiet_threads() -> Threads:
    return Threads("-quiet", 4, step_back)


def is_loops_thread() -> bool:
    """Return True if an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def step_back() -> None:
    """Lower the priority of this thread, and of the threads and processes that it starts, permanently.

    Only Linux has priorities of threads that need no privilege. Raising a priority again needs one.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            # Linux applies PRIO_PROCESS to the single thread of that number, although POSIX defines it for processes.
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _PRIORITY)
