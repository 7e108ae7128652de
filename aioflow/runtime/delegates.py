"""The engines that compute parts of steps: found by the names that installed distributions give them, and made ready in
threads while steps run without them.
"""

from __future__ import annotations

import asyncio
import threading
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
    """What is being made in threads for later steps, one after another: it uses several processors for itself."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Nothing of the parent is being made in the child."""
        self._turn = threading.Lock()
        self._changing = threading.Lock()
        self._count = 0
        self._waiters: list[Callable[[], None]] = []

    def begin(self, prepare: Callable[[], None]) -> None:
        """Call `prepare()`, which raises nothing, in a thread. The interpreter does not end before it has ended."""
        with self._changing:
            self._count += 1
        threading.Thread(target=self._run, args=(prepare,), name="aioflow-prepares").start()

    def _run(self, prepare: Callable[[], None]) -> None:
        ask_for_long_slice()  # as the threads of kernels do: those that an engine starts here inherit it
        try:
            with self._turn:
                prepare()
        finally:
            with self._changing:
                self._count -= 1
                waiters, self._waiters = (self._waiters, []) if not self._count else ([], self._waiters)
            for wake in waiters:
                wake()

    async def ended(self) -> None:
        """Wait until nothing is being made."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(over.set)

        with self._changing:
            if not self._count:
                return
            self._waiters.append(wake)
        await over.wait()


PREPARATIONS: Final = Preparations()
