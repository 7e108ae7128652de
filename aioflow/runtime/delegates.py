"""The engines that compute parts of steps: found by the names that installed distributions give them, and made ready in
threads while steps run without them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aioflow.compiler.delegate import Delegate
from aioflow.errors import NotFoundError
from aioflow.runtime.device import declared
from aioflow.work.forking import renew_in_child
from aioflow.work.slices import ask_for_long_slice

__all__ = ["AUTO", "DELEGATES", "PREPARATIONS", "Preparations", "find_delegate"]

DELEGATES: Final = "aioflow.delegates"  # the group of entry points
AUTO: Final = "auto"


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
    known = sorted(declared(DELEGATES), key=lambda point: str(point.name))
    if setting == AUTO:
        for point in known:
            with suppress(NotFoundError):
                found: Delegate = point.load()("")
                return found
        return None
    name, _, options = setting.partition(":")
    for point in known:
        if point.name == name:
            chosen: Delegate = point.load()(options)
            return chosen
    raise NotFoundError(
        f"no engine {name!r} computes parts of steps",
        expected=f"None, {AUTO!r}, or one of {[point.name for point in known]}",
        actual=setting,
    )


class Preparations:
    """What is being made in a thread for later steps: one thing after another, since each uses several processors."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Nothing of the parent is being made in the child."""
        self._changing = threading.Lock()
        self._pending: deque[Callable[[], None]] = deque()
        self._runs = False
        self._waiters: list[Callable[[], None]] = []

    def begin(self, prepare: Callable[[], None]) -> bool:
        """Call `prepare()`, which raises nothing, in a thread, when its turn comes; return False where there can be no
        thread now. The interpreter does not end in the middle of one, and begins no more of them when it ends.
        """
        with self._changing:
            self._pending.append(prepare)
            if self._runs:
                return True
            self._runs = True
        try:
            # A daemon would be stopped in the engine's code, which ends the process.
            threading.Thread(target=self._run, name="aioflow-prepares", daemon=False).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._rest()
            return False
        return True

    def _run(self) -> None:
        ask_for_long_slice()  # as the threads of kernels do: those that an engine starts here inherit it
        while threading.main_thread().is_alive():
            with self._changing:
                if not self._pending:
                    break
                prepare = self._pending.popleft()
            prepare()
        self._rest()

    def _rest(self) -> None:
        with self._changing:
            self._pending.clear()
            self._runs = False
            waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

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


PREPARATIONS: Final = Preparations()
