"""The thread in which chains are compiled, one at a time, with the lowest priority that the system gives.

It is the process's, so that no session waits for it, and is there only while there is work. A child that was forked has
none of it: who wants something there asks again. When the process ends, the compiler is ended, and the thread gets a
moment to take its files away.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from aioflow.work.forking import renew_in_child
from aioflow.work.threads import step_back
from aioflow_numpy.compiled.process import end

__all__ = ["BACKGROUND", "Background"]

_log = logging.getLogger("aioflow.compiled")
_MOMENT: Final = 1.0  # seconds; more than one that was ended is waited for


class Background:
    """Does jobs in a thread."""

    def __init__(self) -> None:
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """As `Forks`."""
        self._begin()

    def ask(self, job: Callable[[], None]) -> None:
        """Have a job done. May be called from any thread, and never waits."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._serve, name="aioflow-compiling", daemon=True)
            try:
                thread.start()  # which waits until it runs, and not for the lock
            except RuntimeError:  # there may be no more threads, or the process is ending: it goes without
                self._jobs.clear()
            else:
                self._thread = thread

    def wait(self, seconds: float) -> bool:
        """Wait until all is done; returns whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return self._thread is None

    def drop(self) -> None:
        """Forget the jobs that are not begun."""
        with self._lock:
            self._jobs.clear()

    def _serve(self) -> None:
        step_back()
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                _log.exception("a chain could not be compiled, and goes on without")
            del job

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None


BACKGROUND: Final = Background()


@atexit.register
def _leave() -> None:
    BACKGROUND.drop()
    end()
    BACKGROUND.wait(_MOMENT)
