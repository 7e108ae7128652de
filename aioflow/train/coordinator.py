"""`Coordinator`: tasks that end together. It owns them, tells them when to stop, and gives on the first error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from aioflow.checks.numbers import check_number, check_seconds
from aioflow.errors import DTypeError, FailedPreconditionError, OutOfRangeError
from aioflow.work.context_stack import ContextStack, Entry

__all__ = ["Coordinator", "current_coordinator"]

_GRACE: Final = 120.0  # seconds in which tasks may end by themselves


class Coordinator:
    """Owns tasks, such as those of queue runners, and stops all of them when one fails or somebody asks for it.

    Args:
        clean_stop_exception_types: Exceptions that mean the end rather than a failure; `OutOfRangeError` by default.

    Use it as `async with Coordinator() as coord:`. When the block ends, a stop is requested and the tasks are waited
    for. An exception of a clean type that the block raises ends there; where a task has failed, its error is raised.
    After `clear_stop` it can be used again, in the same block or in another one.
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        self._clean = (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        self._stopping = False
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._task_group: asyncio.TaskGroup | None = None
        self._block: Entry[Coordinator] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: set[asyncio.Future[Any]] = set()
        self._attendants: set[asyncio.Future[Any]] = set()
        self._joined = False

    async def __aenter__(self) -> Coordinator:
        if self._block is not None:
            raise FailedPreconditionError("the coordinator is already in use", expected="a new one", actual="entered")
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
        self._stop(error if isinstance(error, Exception) else None)
        try:
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
        if self._failure is not None and self._failure is not error:
            raise self._failure
        return isinstance(error, self._clean)

    def start(self, work: Coroutine[Any, Any, None], *, attendant: bool = False) -> asyncio.Task[None]:
        """Run `work` as a task of this coordinator. If it raises, all stop.

        Args:
            attendant: The task does not count as work: `join` does not wait for it unless a stop is requested.

        Raises:
            FailedPreconditionError: outside the coordinator's `async with` block.
        """
        group = self._task_group
        if group is None:
            work.close()
            raise FailedPreconditionError(
                "the coordinator runs no tasks now", expected="inside its `async with` block", actual="outside"
            )
        task = group.create_task(self._guarded(work))
        task.add_done_callback(lambda _: work.close())  # it has not begun where the task was cancelled at once
        self._keep(task, self._attendants if attendant else self._workers)
        self._joined = False
        return task

    def register_thread(self, thread: asyncio.Future[Any]) -> None:
        """Have `join` wait for somebody else's task as well. Raises DTypeError if it is not a task."""
        self._keep(_task(thread), self._workers)

    @staticmethod
    def _keep(task: asyncio.Future[Any], tasks: set[asyncio.Future[Any]]) -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._stop(error)

    def request_stop(self, ex: BaseException | Sequence[Any] | None = None) -> None:
        """Ask all tasks to stop. What comes after the first request changes nothing. May be called from any thread.

        Args:
            ex: Why, as an exception or as `sys.exc_info()`; unless it is of a clean type, `join` raises it.

        Raises: `ex`, unless it is of a clean type, if the tasks have been joined already: nobody would hear of it.
        """
        error = ex[1] if isinstance(ex, Sequence) else ex
        if self._joined and error is not None and not isinstance(error, self._clean):
            raise error
        self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
        if self._stopping:
            return
        if error is not None and not isinstance(error, self._clean):
            self._failure = error
        self._stopping = True
        if self._loop is None or self._loop is _running_loop():
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)

    def clear_stop(self) -> None:
        """Forget the request to stop, and its error: tasks can be started again."""
        self._stopping = self._joined = False
        self._failure = None
        self._event.clear()

    def should_stop(self) -> bool:
        """Whether a stop has been requested."""
        return self._stopping

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """An exception inside requests a stop, and goes no further. (A cancellation does go on.)"""
        try:
            yield
        except Exception as error:
            self.request_stop(error)

    async def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested, for at most `timeout` seconds; whether it has been."""
        check_seconds(timeout, "the time limit of a wait")
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def join(
        self,
        threads: Iterable[asyncio.Future[Any]] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until the tasks are done, or a stop is requested and they have had time to end.

        Args:
            threads: Tasks of others to wait for, too. The coordinator's own are waited for in any case.
            stop_grace_period_secs: How long tasks may take to end after the request; then they are cancelled.
            ignore_live_threads: Let them go on then.

        Raises: the exception with which the stop was requested, unless it is of a clean type.
        """
        check_number(stop_grace_period_secs, "stop_grace_period_secs")
        here = asyncio.current_task()
        asked = {_task(thread) for thread in threads or ()} - self._attendants

        def at_work() -> list[asyncio.Future[Any]]:
            return [task for task in self._workers | asked if task is not here and not task.done()]

        while not self._stopping and (working := at_work()):
            await self._either(working)
        await self._end([*at_work(), *(self._attendants if self._stopping else ())],
                        stop_grace_period_secs, ignore_live_threads)  # fmt: skip
        self._joined = True
        self.raise_requested_exception()

    async def _either(self, working: Iterable[asyncio.Future[Any]]) -> None:
        """Until a stop is requested or a task is done."""
        async with asyncio.TaskGroup() as watch_group:
            stop = watch_group.create_task(self._event.wait())
            await asyncio.wait([*working, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()

    async def _end(self, pending: Sequence[asyncio.Future[Any]], grace: float, ignore: bool = False) -> None:
        """The tasks end by themselves within the grace period, or are cancelled."""
        if not pending:
            return
        _, late = await asyncio.wait(pending, timeout=max(grace, 0.0))
        if late and not ignore:
            for task in late:
                task.cancel()
            await asyncio.wait(late)

    @property
    def entered(self) -> bool:
        """Whether a block is open in which tasks can be started."""
        return self._task_group is not None

    @property
    def joined(self) -> bool:
        """Whether `join` has been called, or the block has ended, since the last start of a task and `clear_stop`."""
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raise the exception with which a stop was requested, if there is one."""
        if self._failure is not None:
            raise self._failure


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _task(thread: Any) -> asyncio.Future[Any]:
    if not isinstance(thread, asyncio.Future):
        raise DTypeError("not a task", expected="a task of asyncio", actual=type(thread).__name__)
    return thread


_COORDINATORS: Final[ContextStack[Coordinator]] = ContextStack("aioflow_coordinators", weak=True)


def current_coordinator() -> Coordinator | None:
    """The coordinator of the innermost block around, or None."""
    return _COORDINATORS.innermost()
