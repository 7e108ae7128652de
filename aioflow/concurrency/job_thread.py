"""A background thread for jobs that prepare later steps, such as compiling code or models of another engine."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from aioflow.concurrency.forking import renew_in_child

_LOGGER: Final = logging.getLogger("aioflow.concurrency")


class JobThread:
    """A queue of jobs, run by one thread in order. The thread exists only while there are jobs.

    A forked child starts without jobs.

    Args:
        name: Name of the thread.
        prepare: Called first in the thread.
        daemon: Whether the interpreter exits without waiting for the running job. A daemon thread that is stopped
            inside native code aborts the process. Queued jobs are not started in either case.
    """

    def __init__(self, name: str, prepare: Callable[[], None], daemon: bool) -> None:
        self._name, self._prepare, self._daemon = name, prepare, daemon
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Reset the state in a child, which does not have the parent's thread."""
        self._changing = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._waiters: list[Callable[[], None]] = []

    def begin(self, job: Callable[[], None]) -> bool:
        """Queue a job. If no thread can be started now, do not queue it and return False.

        May be called from any thread, and never waits for a job.
        """
        with self._changing:
            self._jobs.append(job)
            if self._thread is not None:
                return True
            self._thread = thread = threading.Thread(target=self._serve, name=self._name, daemon=self._daemon)
        try:
            thread.start()
        except RuntimeError:  # no more threads are available, or the interpreter is exiting
            with self._changing:
                self._jobs.remove(job)  # other jobs stay queued for the next thread
                waiters = self._stopped()
            _wake(waiters)
            return False
        return True

    def drop(self) -> None:
        """Drop the jobs that have not started."""
        with self._changing:
            self._jobs.clear()

    def wait(self, seconds: float) -> bool:
        """Wait until all jobs are done, with a timeout. Return True if they are."""
        over = threading.Event()
        if self._tell(over.set):
            over.wait(seconds)
        return self._thread is None

    async def ended(self) -> None:
        """Wait until all jobs are done."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(over.set)

        if self._tell(wake):
            await over.wait()

    def _tell(self, waiter: Callable[[], None]) -> bool:
        """Call `waiter()` when all jobs are done. Return False if they are done already."""
        with self._changing:
            if self._thread is not None:
                self._waiters.append(waiter)
            return self._thread is not None

    def _serve(self) -> None:
        self._prepare()
        while (job := self._next()) is not None:
            try:
                job()
            # A job that fails must not end the thread, because other jobs are queued behind it.
            except Exception:
                _LOGGER.exception("a job of the thread %r has failed", self._name)
            del job  # release the objects that the job holds

    def _next(self) -> Callable[[], None] | None:
        with self._changing:
            # Once the main thread has ended, the interpreter is exiting, and queued jobs are not started.
            if self._jobs and threading.main_thread().is_alive():
                return self._jobs.popleft()
            waiters = self._stopped()  # under the same lock, so that a job queued from now on starts a new thread
        _wake(waiters)
        return None

    def _stopped(self) -> list[Callable[[], None]]:
        """Note that no thread runs, and return the waiters. Call with the lock held."""
        self._thread = None
        waiters, self._waiters = self._waiters, []
        return waiters


def _wake(waiters: Iterable[Callable[[], None]]) -> None:
    for wake in waiters:
        wake()
