"""`Coordinator`: a group of tasks that stop together and propagate the first error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, TypeAlias

from aioflow.arguments import check_number, check_seconds
from aioflow.concurrency.context_stack import ContextStack, EnteredBlock
from aioflow.errors import DTypeError, FailedPreconditionError, OutOfRangeError

_GRACE: Final = 120.0  # seconds that tasks have to end on their own

_Future: TypeAlias = "asyncio.Future[Any]"  # a task, whatever it returns


class Coordinator:
    """An owner of tasks, such as those of queue runners, that stops all of them when one fails or a stop is requested.

    Args:
        clean_stop_exception_types: Exceptions that mean a normal end rather than a failure; default `OutOfRangeError`.

    Use it as `async with Coordinator() as coord:`. The end of the block requests a stop, waits for the tasks for up to
    120 seconds, and cancels late ones. It suppresses an exception of a clean type that the body raises, and raises the
    error of a failed task. After `clear_stop` the coordinator can be used again, in the same block or in another one.
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        self._clean = (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        self._stopping = False
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._task_group: asyncio.TaskGroup | None = None
        self._block: EnteredBlock[Coordinator] | None = None
        # Set on entry: `request_stop` may be called from other threads.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: set[_Future] = set()
        # Tasks that serve the workers and would run forever without a stop request.
        self._attendants: set[_Future] = set()
        self._joined = False

    async def __aenter__(self) -> Coordinator:
        if self._block is not None:
            raise FailedPreconditionError("the coordinator is already in use", expected="a new one", actual="entered")
        # Stopped but not joined means that a stop was requested before the first entry, which is allowed.
        if self._joined and self._stopping:
            raise FailedPreconditionError(
                "the coordinator has been stopped", expected="`clear_stop` before it is used again", actual="stopped"
            )
        self._loop = asyncio.get_running_loop()
        self._task_group = await asyncio.TaskGroup().__aenter__()
        self._block = _COORDINATORS.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        group, self._task_group = self._task_group, None
        # First: the tasks end only once they see the request.
        self._stop(error if isinstance(error, Exception) else None)
        try:
            # After a cancellation the tasks get no grace period.
            if error is None or isinstance(error, Exception):
                await self._end([*self._workers, *self._attendants], _GRACE)
        finally:
            self._joined = True
            if self._block is not None:
                _COORDINATORS.leave(self._block)
            for task in [*self._workers, *self._attendants]:
                task.cancel()
            if group is not None:
                await group.__aexit__(None, None, None)
            self._block = None
        # The error of the body propagates by itself.
        if self._failure is not None and self._failure is not error:
            raise self._failure
        return isinstance(error, self._clean)

    def start(self, work: Coroutine[object, object, None], *, attendant: bool = False) -> asyncio.Task[None]:
        """Run `work` as a task of this coordinator. An error in it stops all tasks.

        Args:
            work: The coroutine to run.
            attendant: Whether the task is auxiliary: `join` then waits for it only once a stop has been requested.

        Raises:
            FailedPreconditionError: outside the coordinator's `async with` block.
        """
        group = self._task_group
        if group is None:
            work.close()
            raise FailedPreconditionError(
                "the coordinator runs no tasks now", expected="inside its `async with` block", actual="outside"
            )
        # Guarded, because an error must stop the other tasks gracefully: a task group would cancel them.
        task = group.create_task(self._guarded(work))
        # A task that is cancelled before its first step never starts `work`; closing it avoids a "never awaited"
        # warning.
        task.add_done_callback(lambda _: work.close())
        self._keep(task, self._attendants if attendant else self._workers)
        self._joined = False
        return task

    def register_thread(self, thread: _Future) -> None:
        """Make `join` also wait for a task started elsewhere. Raise DTypeError if it is not a task."""
        self._keep(_task(thread), self._workers)

    @staticmethod
    def _keep(task: _Future, tasks: set[_Future]) -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:
            # A cancellation is no failure.
            self._stop(error)

    def request_stop(self, ex: BaseException | Sequence[Any] | None = None) -> None:
        """Request all tasks to stop. Requests after the first have no effect. May be called from any thread.

        Args:
            ex: The reason, as an exception or as `sys.exc_info()`; unless it is of a clean type, `join` raises it.

        Raises:
            BaseException: `ex`, if it is not of a clean type and the tasks have already been joined, so that no later
                `join` would report it.
        """
        error = ex[1] if isinstance(ex, Sequence) else ex
        # After `join` no later call would report the error.
        if self._joined and error is not None and not isinstance(error, self._clean):
            raise error
        self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
        if self._stopping:
            return
        if error is not None and not isinstance(error, self._clean):
            # Only the first request counts; later errors usually follow from it.
            self._failure = error
        self._stopping = True
        # An asyncio event may be set only in its own loop's thread.
        if self._loop is None or self._loop is _running_loop():
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)

    def clear_stop(self) -> None:
        """Clear the stop request and its error, so that tasks can be started again."""
        self._stopping = self._joined = False
        self._failure = None
        # The event too, or waiting tasks would see the old request.
        self._event.clear()

    def should_stop(self) -> bool:
        """Return whether a stop has been requested."""
        return self._stopping

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Request a stop if the block raises, and suppress the exception. A cancellation propagates."""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    async def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested, for at most `timeout` seconds. Return whether it was requested."""
        check_seconds(timeout, "the time limit of a wait")
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def join(
        self,
        threads: Iterable[_Future] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until the tasks are done, or until a stop is requested and the grace period is over.

        Args:
            threads: Other tasks to wait for. The coordinator's own tasks are always waited for.
            stop_grace_period_secs: Seconds that tasks may take to end after the request; late tasks are then cancelled.
            ignore_live_threads: Leave late tasks running instead of cancelling them.

        Raises:
            BaseException: the exception with which the stop was requested, unless it is of a clean type.
        """
        check_number(stop_grace_period_secs, "stop_grace_period_secs")
        # The calling task may be one of the workers: it must not wait for itself.
        here = asyncio.current_task()
        asked = {_task(thread) for thread in threads or ()} - self._attendants

        def at_work() -> list[_Future]:
            return [task for task in self._workers | asked if task is not here and not task.done()]

        # Tasks may start other tasks while this waits, so the set is computed again.
        while not self._stopping and (working := at_work()):
            await self._either(working)
        await self._end([*at_work(), *(self._attendants if self._stopping else ())],
                        stop_grace_period_secs, ignore_live_threads)  # fmt: skip
        # Before the error is raised: also a failed join has waited for all tasks.
        self._joined = True
        self.raise_requested_exception()

    async def _either(self, working: Iterable[_Future]) -> None:
        """Wait until a stop is requested or a task is done."""
        async with asyncio.TaskGroup() as watch_group:
            stop = watch_group.create_task(self._event.wait())
            await asyncio.wait([*working, stop], return_when=asyncio.FIRST_COMPLETED)
            # Otherwise the group would wait for it until a stop is requested.
            stop.cancel()

    async def _end(self, pending: Sequence[_Future], grace: float, ignore: bool = False) -> None:
        """Wait for the tasks to end within the grace period, then cancel late tasks unless `ignore`."""
        if not pending:
            return
        _, late = await asyncio.wait(pending, timeout=max(grace, 0.0))
        if late and not ignore:
            for task in late:
                task.cancel()
            # A cancelled task may still run `finally` blocks, for which this waits.
            await asyncio.wait(late)

    @property
    def entered(self) -> bool:
        """True if the coordinator's block is open, so that tasks can be started."""
        return self._task_group is not None

    @property
    def joined(self) -> bool:
        """True if the tasks were joined, or the block ended, since the last `start` or `clear_stop`."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise the exception with which a stop was requested, if any."""
        if self._failure is not None:
            raise self._failure


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _task(thread: object) -> _Future:
    if not isinstance(thread, asyncio.Future):
        raise DTypeError("not a task", expected="a task of asyncio", actual=type(thread).__name__)
    return thread


_COORDINATORS: Final[ContextStack[Coordinator]] = ContextStack("aioflow_coordinators", weak=True)


def current_coordinator() -> Coordinator | None:
    """Return the coordinator of the innermost enclosing block, or None."""
    return _COORDINATORS.innermost()
