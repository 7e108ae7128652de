"""Calls in threads: how to hop there and back without losing a cancellation, and without being held up by a call.

Written out rather than taken from `concurrent.futures`, because a step pays for the hop every time: one future and one
wake-up of the loop instead of two futures, a condition variable and a chain of callbacks take a third off it. And the
threads of that module hold up the end of the interpreter until their last call has ended, which it need not ever do.

A call that is asked to stop ends at its next checkpoint. One that does not come to any (it waits for a file that never
says anything, or is inside of a library) is left behind, if it changes nothing that others see: nobody waits for it any
more, and another thread takes the place of its own.
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

from aioflow.work.forking import generation, renew_in_child
from aioflow.work.stopping import Stoppable, Stopped, Work, doing

__all__ = [
    "GRACE",
    "Call",
    "LeftBehind",
    "Threads",
    "although_cancelled",
    "in_thread",
    "is_loops_thread",
    "step_back",
    "to_its_end",
]

T = TypeVar("T")

GRACE: Final = 0.05  # seconds that a call has to come to a checkpoint before it is left behind
_PRIORITY: Final = 10  # levels that a quiet thread is below others: a tenth of a processor's time where they want it
_QUEUED, _RUNNING, _ENDED, _WITHDRAWN, _LEFT = range(5)


class LeftBehind(Exception):
    """What was asked to stop is still running in its thread, and nobody waits for it any more.

    It is the cause of the `asyncio.CancelledError` of a caller who was cancelled; another one gets it itself.

    Attributes:
        call: What is running.
    """

    def __init__(self, call: Call) -> None:
        super().__init__("what was called is left behind in its thread")
        self.call = call

    @classmethod
    def behind(cls, error: BaseException) -> LeftBehind | None:
        """The one that an exception is or stands for."""
        found = error if isinstance(error, cls) else error.__cause__
        return found if isinstance(found, cls) else None


class Call:
    """One call on its way through a thread. Everything but `perform` happens on the caller's loop.

    Attributes:
        work: What it is a part of.
        future: What comes of it, for a caller who waits from the beginning.
        thread: The thread that performs it; 0 before that.
    """

    __slots__ = (
        "_args", "_delivered", "_function", "_late", "_lock", "_loop", "_rejoining", "_result", "_state", "_threads",
        "_timer", "future", "thread", "work",
    )  # fmt: skip

    def __init__(self, threads: Threads, work: Work, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
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
        self._result: tuple[Any, BaseException | None] = (None, None)  # of one that was left behind
        self._rejoining: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []
        self.future: asyncio.Future[Any] = self._loop.create_future()
        self.thread = 0

    @property
    def left(self) -> bool:
        """Whether it was left behind, whether or not it has ended since."""
        return self._state == _LEFT

    # -- in the thread -------------------------------------------------------------------------------------------------

    def perform(self) -> bool:
        """Call the function and send what comes of it to the loop. Returns whether the thread has more to do."""
        with self._lock:
            if self._state != _QUEUED:
                return True
            self._state = _RUNNING
        self.thread = threading.get_ident()
        made: list[Any] = []  # the outcome and the error
        try:
            made += (doing(self.work, self._function, *self._args), None)
        except StopIteration as raised:  # a future cannot carry one
            error = RuntimeError("a function for a thread raised StopIteration")
            error.__cause__ = raised
            made += (None, error)
            del error
        except BaseException as raised:
            made += (None, raised)
        try:
            return self._end(made)
        finally:
            del self, made  # the error's traceback holds this frame, and would hold the step's values by it

    def _end(self, made: list[Any]) -> bool:
        with self._lock:
            stays = self._state == _RUNNING
            if stays:
                self._state = _ENDED
            else:
                self._result = (made[0], made[1])
                self._delivered = True
        self._args = ()
        if stays:
            with suppress(RuntimeError):  # the loop was closed: there is nobody left to tell
                self._loop.call_soon_threadsafe(self._deliver, made)
        for loop, future in self._rejoining:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, *self._result)
        return stays

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _deliver(self, made: list[Any]) -> None:
        outcome, error = made
        made.clear()  # the thread may be long in coming to its end, and must not keep the value alive meanwhile
        self._delivered = True
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            if not self._late.done():  # it is, where a second cancellation comes in this very turn of the loop
                self._late.set_result(None)
        else:  # where the future is done, the caller was cancelled in this very turn of the loop and will not wait
            _settle(self.future, outcome, error)

    def withdraw(self) -> bool:
        """Take it back; False if a thread has begun with it."""
        with self._lock:
            if self._state == _QUEUED:
                self._state = _WITHDRAWN
        return self._state == _WITHDRAWN

    def ask(self) -> None:
        """Its work has been asked to stop: take it back, or else see to it that nobody waits forever."""
        if self.withdraw():
            _settle(self.future, None, Stopped())
        elif self._timer is None and not self._delivered:
            self._timer = self._loop.call_later(GRACE, self._give_up)

    def _give_up(self) -> None:
        if self._delivered:
            return
        with self._lock:
            # Work that is about to have effects says so first and then looks whether it is to stop, which it is by now.
            if self._state == _RUNNING and not self.work.effects:
                self._state = _LEFT
        if not self.left:
            self._timer = self._loop.call_later(GRACE, self._give_up)
            return
        self._threads.replace()
        if self._late is not None:
            if not self._late.done():
                self._late.set_result(None)
        else:
            _settle(self.future, None, LeftBehind(self))

    async def end(self) -> None:
        """Wait until the thread is done with it or it is left behind, whoever else cancels meanwhile."""
        if not self._delivered and not self.left:
            self._late = self._loop.create_future()
            await although_cancelled(self._late)
            self._late = None

    async def rejoin(self) -> Any:
        """What comes of a call that was left behind, for one who waits for it after all, on whatever loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            ended = self._delivered
            if not ended:
                self._rejoining.append((loop, future))
        if ended:
            _settle(future, *self._result)
        return await future


async def although_cancelled(future: asyncio.Future[Any]) -> None:
    """Wait until it is done, for one who was cancelled, or has failed, and raises that afterwards: whoever cancels him
    meanwhile asks again for what is on its way already.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
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


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome)


class Threads:
    """Threads that are started when there is work for them, up to a number.

    Args:
        name: The beginning of their names.
        limit: How many there may be.
        begin: Called in each first of all.
    """

    def __init__(self, name: str, limit: int, begin: Callable[[], None] | None = None) -> None:
        self._name = name
        self._limit = limit
        self._first = begin
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Call] = SimpleQueue()
        self._started = 0
        self._number = 0
        self._busy = 0

    def after_fork(self) -> None:
        """None of the threads is in a child. What they were at is the parent's business."""
        self._begin()

    async def call(self, work: Work, function: Callable[..., T], *args: Any, critical: bool = False) -> T:
        """`function(*args)` in a thread, as a part of `work`.

        When the awaiting task is cancelled the work is asked to stop, and this returns (by raising) only when the
        function has, or if it has not begun, or if it is left behind.

        Args:
            critical: Begin it in any case, also where the caller is cancelled before a thread is free.

        Raises:
            LeftBehind, Stopped: it is, or the work was asked to stop, and not by a cancellation of the caller. What was
                asked to stop before is not begun.
        """
        if work.requested:
            raise Stopped
        call = Call(self, work, function, args)
        process = generation()
        work.watchers.append(call.ask)
        self._submit(call)
        try:
            result: T = await call.future
            del call.future  # the thread may hold the call for a while yet, and must not hold its result
        except asyncio.CancelledError:
            work.stop()
            if critical or not call.withdraw():
                await call.end()
            if call.left:
                raise asyncio.CancelledError from LeftBehind(call)
            raise
        finally:
            work.watchers.remove(call.ask)
            if not call.left and process == generation():  # a child drops what its parent awaits
                with self._lock:
                    self._busy -= 1
            del call  # as in `perform`
        return result

    def _submit(self, call: Call) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._started:
                self._grow()
        self._queue.put(call)

    def _grow(self) -> None:
        if self._started < self._limit:
            self._started += 1
            self._number += 1
            threading.Thread(target=self._serve, name=f"aioflow{self._name}_{self._number}", daemon=True).start()

    def replace(self) -> None:
        """One of the threads has been left behind with its call."""
        with self._lock:
            self._started -= 1
            self._busy -= 1
            if self._busy > self._started:
                self._grow()

    def _serve(self) -> None:
        if self._first is not None:
            self._first()
        while self._queue.get().perform():
            pass


async def in_thread(
    function: Callable[..., T],
    *args: Any,
    effects: bool = True,
    work: Work | None = None,
    quiet: bool = False,
    critical: bool = False,
) -> T:
    """`function(*args)` in a thread for calls that wait, in the context of the caller.

    Args:
        critical: Run it to its end although the caller is cancelled, which is raised afterwards; the result, or the
            error, of the function is lost then. For clean-up, and for effects that belong together.
        quiet: In one that leaves the processors to all others, where the system lets a thread do so: for what may take
            long beside something that is not to notice it.
        effects: Whether it changes anything that others see. If it does, and the caller is cancelled, this waits until
            the call has ended; one without effects may be left behind.
        work: What it is a part of, if it is not something of its own.

    Raises:
        LeftBehind, Stopped: as `Threads.call`.
    """
    if work is None:
        work = Work() if critical else Stoppable(effects=effects)
    at_once: Callable[..., T] | None = getattr(asyncio.get_running_loop(), "call_in_thread", None)
    if at_once is not None:  # a loop on which nothing comes from other threads
        return at_once(doing, work, function, *args)
    threads = _quiet_threads() if quiet else _waiting_threads()
    return await threads.call(work, copy_context().run, function, *args, critical=critical)


@cache
def _waiting_threads() -> Threads:
    """As many as asyncio has in a loop's pool."""
    return Threads("-calls", min(32, (os.cpu_count() or 1) + 4))


@cache
def _quiet_threads() -> Threads:
    return Threads("-quiet", 4, step_back)


def is_loops_thread() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def step_back() -> None:
    """Leave the processors to all other threads from now on, and so does what this one starts.

    Linux alone has priorities of threads that need no privilege; there is no way back from a lower one.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _PRIORITY)
