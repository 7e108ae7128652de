"""A thread that prepares things for later steps, such as code or the models of another engine."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from aioflow.work.forking import renew_in_child

__all__ = ["JobThread"]

_LOGGER: Final = logging.getLogger("aioflow.work")


class JobThread:
    """A queue of jobs that one thread does, one after another. The thread is there only while there is work. A forked
    child begins without jobs.

    Args:
        name: Of the thread.
        settle_in: Called first in the thread.
        daemon: Whether the interpreter ends without waiting for the job that is running. A daemon that it stops inside
            of native code aborts the process. Jobs that are queued are not begun in either case.
    """

    def __init__(self, name: str, settle_in: Callable[[], None], daemon: bool) -> None:
        self._name, self._settle_in, self._daemon = name, settle_in, daemon
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin anew in the child, which does not have the parent's thread."""
        self._changing = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._waiters: list[Callable[[], None]] = []

    def begin(self, job: Callable[[], None]) -> bool:
        """Have a job done; return False where no thread can be started now. May be called from any thread, and never
        waits for a job.
        """
        with self._changing:
            self._jobs.append(job)
            if self._thread is not None:
                return True
            self._thread = thread = threading.Thread(target=self._serve, name=self._name, daemon=self._daemon)
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads, or the interpreter is ending
            with self._changing:
                self._jobs.remove(job)  # others stay queued for the next thread
                waiters = self._stopped()
            _wake(waiters)
            return False
        return True

    def drop(self) -> None:
        """Forget the jobs that are not begun."""
        with self._changing:
            self._jobs.clear()

    def wait(self, seconds: float) -> bool:
        """Wait until all jobs are done; return whether they are."""
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
        """Call `waiter()` when all jobs are done; return False where they are."""
        with self._changing:
            if self._thread is not None:
                self._waiters.append(waiter)
            return self._thread is not None

    def _serve(self) -> None:
        self._settle_in()
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                _LOGGER.exception("a job of the thread %r has failed", self._name)
            del job  # with what it holds

    def _next(self) -> Callable[[], None] | None:
        with self._changing:
            if self._jobs and threading.main_thread().is_alive():
                return self._jobs.popleft()
            waiters = self._stopped()  # under the same lock: what is queued from now on starts a new thread
        _wake(waiters)
        return None

    def _stopped(self) -> list[Callable[[], None]]:
        """Note that no thread runs; return the waiters. Call with the lock."""
        self._thread = None
        waiters, self._waiters = self._waiters, []
        return waiters


def _wake(waiters: Iterable[Callable[[], None]]) -> None:
    for wake in waiters:
        wake()
