"""Engines that compute parts of steps: found by the names under which distributions declare them, and prepared in a
thread while steps run without them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from aioflow.compiler.delegate import Delegate
from aioflow.config import AUTO
from aioflow.errors import NotFoundError
from aioflow.runtime.device import declared
from aioflow.work.forking import not_forked, renew_in_child
from aioflow.work.slices import ask_for_long_slice

__all__ = ["DELEGATES", "PREPARATIONS", "Preparations", "declared_engines", "find_delegate"]

DELEGATES: Final = "aioflow.delegates"  # the group of entry points


def find_delegate(setting: str | None) -> Delegate | None:
    """Return the engine that `SessionConfig.delegate` chooses; None for none.

    Args:
        setting: "auto" for the first that is installed with what it needs, if any; or a name, and behind a colon what
            the engine takes as its options.

    Raises:
        NotFoundError: no installed distribution has it, or what it needs is not installed.
    """
    if setting is None:
        return None
    known = declared_engines()
    with not_forked():  # engines are large packages to import
        if setting == AUTO:
            for load in known.values():
                with suppress(NotFoundError):
                    return load("")
            return None
        name, _, options = setting.partition(":")
        if name in known:
            return known[name](options)
    raise NotFoundError(
        f"no engine {name!r} computes parts of steps",
        expected=f"None, {AUTO!r}, or one of {[*known]}",
        actual=setting,
    )


def declared_engines() -> Mapping[str, Callable[[str], Delegate]]:
    """Return the engines that installed distributions declare, in the order of their names. Each is a function of its
    options that returns the engine, and raises NotFoundError where what it needs is not installed.
    """

    def loader(point: Any) -> Callable[[str], Delegate]:
        def load(options: str) -> Delegate:
            found: Delegate = point.load()(options)
            return found

        return load

    points = {str(point.name): loader(point) for point in declared(DELEGATES)}
    return {name: points[name] for name in sorted(points)}


class Preparations:
    """A queue of functions that prepare something for later steps, run by one thread: each uses several processors."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Begin anew in the child, which does not have the parent's thread."""
        self._changing = threading.Lock()
        self._pending: deque[Callable[[], None]] = deque()
        self._runs = False
        self._waiters: list[Callable[[], None]] = []

    def begin(self, prepare: Callable[[], None]) -> bool:
        """Call `prepare()`, which raises nothing, in the thread; return False where no thread can be started now. The
        interpreter ends after the function that is running, and without those that are queued.
        """
        with self._changing:
            self._pending.append(prepare)
            if self._runs:
                return True
            self._runs = True
        try:
            # A daemon would be stopped inside the engine's code, which aborts the process.
            threading.Thread(target=self._run, name="aioflow-prepares", daemon=False).start()
        except RuntimeError:  # there may be no more threads, or the interpreter is ending
            with self._changing:
                self._pending.remove(prepare)  # others stay queued for the next thread
                waiters = self._stopped()
            _wake(waiters)
            return False
        return True

    def _run(self) -> None:
        ask_for_long_slice()  # as the threads of kernels do: threads that an engine starts here inherit it
        while (prepare := self._next()) is not None:
            prepare()

    def _next(self) -> Callable[[], None] | None:
        with self._changing:
            if self._pending and threading.main_thread().is_alive():
                return self._pending.popleft()
            waiters = self._stopped()  # under the same lock: what is queued from now on starts a new thread
        _wake(waiters)
        return None

    def _stopped(self) -> list[Callable[[], None]]:
        """Note that no thread runs; return the waiters. Call with the lock."""
        self._runs = False
        waiters, self._waiters = self._waiters, []
        return waiters

    async def ended(self) -> None:
        """Wait until nothing is being made."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(over.set)

        with self._changing:
            if not self._runs:
                return
            self._waiters.append(wake)
        await over.wait()


def _wake(waiters: Iterable[Callable[[], None]]) -> None:
    for wake in waiters:
        wake()


PREPARATIONS: Final = Preparations()
