"""`Coordinator`: tasks that end together. It owns them, tells them when to stop, and gives on the first error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from aioflow.errors import FailedPreconditionError, OutOfRangeError

__all__ = ["Coordinator"]

_GRACE: Final = 120.0  # seconds in which tasks may end by themselves


class Coordinator:
    """Owns tasks, such as those of queue runners, and stops all of them when one fails or somebody asks for it.

    Args:
        clean_stop_exception_types: Exceptions that mean the end rather than a failure; `OutOfRangeError` by default.

    Use it as `async with Coordinator() as coord:`. When the block ends, a stop is requested and the tasks are waited
    for. An exception of a clean type that the block raises ends there; where a task has failed, its error is raised.
    """

    def __init__(self, clean_stop_exception_types: Iterable[type[BaseException]] | None = None) -> None:
        self._clean = (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        self._stopping = False
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._task_group: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._attendants: set[asyncio.Task[None]] = set()
        self._joined = False

    async def __aenter__(self) -> Coordinator:
        if self._task_group is not None:
            raise FailedPreconditionError("the coordinator is in use already", expected="a new one", actual="entered")
        self._loop = asyncio.get_running_loop()
        self._task_group = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.request_stop(error if isinstance(error, Exception) else None)
        group = self._task_group
        try:
            if error is None or isinstance(error, Exception):
                await self._end(_GRACE)
        finally:
            self._joined = True
            for task in [*self._workers, *self._attendants]:
                task.cancel()
            if group is not None:
                await group.__aexit__(None, None, None)
        if self._failure is not None and self._failure is not error:
            raise self._failure
        return isinstance(error, self._clean)

    def start(self, work: Coroutine[Any, Any, None], *, attendant: bool = False) -> asyncio.Task[None]:
        """Run `work` as a task of this coordinator. If it raises, all stop.

        Args:
            attendant: The task does not count as work: `join` does not wait for it unless a stop is requested.

        Raises:
            FailedPreconditionError: outside of the coordinator's `async with` block.
        """
        group = self._task_group
        if group is None or self._joined:
            work.close()
            raise FailedPreconditionError(
                "the coordinator runs no tasks now", expected="inside its `async with` block", actual="outside"
            )
        task = group.create_task(self._guarded(work))
        tasks = self._attendants if attendant else self._workers
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        with self.stop_on_exception():
            await work

    def request_stop(self, ex: BaseException | None = None) -> None:
        """Ask all tasks to stop. What comes after the first request changes nothing. May be called from any thread.

        Args:
            ex: Why; unless it is of a clean type, `join` raises it.
        """
        if self._stopping:
            return
        if ex is not None and not isinstance(ex, self._clean):
            self._failure = ex
        self._stopping = True
        if self._loop is None or self._loop is _running_loop():
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)

    def clear_stop(self) -> None:
        """Forget the request to stop, and its error."""
        self._stopping = False
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
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def join(
        self,
        threads: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until the tasks are done, or a stop is requested and they have had time to end.

        Args:
            threads: Accepted as TensorFlow does; the coordinator's own tasks are waited for in any case.
            stop_grace_period_secs: How long tasks may take to end after the request; then they are cancelled.
            ignore_live_threads: Do not wait for tasks after a request to stop.

        Raises: the exception with which the stop was requested, unless it is of a clean type.
        """
        while self._workers and not self._stopping:
            await self._either()
        await self._end(0.0 if ignore_live_threads else stop_grace_period_secs)
        self.raise_requested_exception()

    async def _either(self) -> None:
        """Until a stop is requested or a task is done."""
        async with asyncio.TaskGroup() as watch_group:
            stop = watch_group.create_task(self._event.wait())
            await asyncio.wait([*self._workers, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()

    async def _end(self, grace: float) -> None:
        """The tasks end by themselves within the grace period, or are cancelled."""
        pending = [*self._workers, *(self._attendants if self._stopping else ())]
        if pending:
            _, late = await asyncio.wait(pending, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        self._joined = self._joined or self._stopping

    @property
    def joined(self) -> bool:
        """Whether the tasks have ended after a stop; no new ones can be started then."""
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
