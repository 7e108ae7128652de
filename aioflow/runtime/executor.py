"""A CPU device's threads, and what a thread knows of the step that it works for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeVar

from aioflow.runtime.step import Step
from aioflow.work.slices import ask_for_long_slice
from aioflow.work.stopping import Stopped, Work, current_work
from aioflow.work.threads import Call, LeftBehind, Threads

__all__ = [
    "NODES_OF_LINES",
    "DeviceThreads",
    "StepWork",
    "kernel_threads",
    "running_node",
    "shared_threads",
    "work_here",
]

NODES_OF_LINES: Final = "__nodes_of_lines__"  # the global of generated code that has the name of each line's node

_THIS_THREAD = threading.local()


def kernel_threads() -> int | None:
    """How many threads a kernel in this thread may use, itself included; None where nobody has said so."""
    found: int | None = getattr(_THIS_THREAD, "kernel_threads", None)
    return found


def _begin(count: int | None) -> None:
    _THIS_THREAD.kernel_threads = count
    ask_for_long_slice()


T = TypeVar("T")


class StepWork(Work):
    """A part of a step.

    Args:
        effects: Whether what runs has effects unless it says otherwise (`acted`).

    Attributes:
        node: The node that is running, where generated code does not tell.
    """

    __slots__ = ("_step", "node")

    def __init__(self, step: Step, effects: bool) -> None:
        super().__init__(None, effects)
        self._step = step
        self.watchers = step.watchers
        self.node: str | None = None

    @property
    def requested(self) -> bool:
        """Whether the step was asked to stop."""
        return self._step.requested

    def stop(self) -> None:
        """Ask the step to stop."""
        self._step.stop()

    def check(self) -> None:
        """Raises Stopped, but not in the middle of what has an effect."""
        if self._step.requested and not self.effects:
            raise Stopped


def work_here(step: Step) -> StepWork:
    """What this thread works on, which is a part of the step. An executor without threads has not said so itself."""
    work = current_work()
    return work if isinstance(work, StepWork) else StepWork(step, effects=True)


class DeviceThreads(Threads):
    """The executor of a device that has threads.

    Args:
        name: Of the device.
        threads: How many it has, and each kernel that it runs; 0 means one per processor.
        leaves: Whether a function may be left behind. It says when it has effects (`StepWork.act`).
    """

    def __init__(self, name: str, threads: int = 0, leaves: bool = False) -> None:
        super().__init__(name, threads or os.cpu_count() or 1, partial(_begin, threads or None))
        self._leaves = leaves

    async def run(self, step: Step, function: Callable[..., T], *args: Any) -> T:
        """Run `function(*args)` in a thread.

        When the awaiting task is cancelled the step is asked to stop, and this returns (by raising) only when the
        function has, or if it has not begun: no kernel of a step runs after its `run` has ended. The exception is a
        function that is left behind.
        """
        try:
            return await self.call(StepWork(step, not self._leaves), function, *args)
        except (asyncio.CancelledError, LeftBehind) as error:
            left = LeftBehind.behind(error)
            if left is not None:
                step.leave_behind(running_node(left.call) or "a kernel")
            if left is not error:
                raise
        except Stopped:
            pass
        return step.halt()


def running_node(call: Call) -> str | None:
    """The name of the node whose kernel a call is in."""
    frame = sys._current_frames().get(call.thread)
    while frame is not None:
        nodes = frame.f_globals.get(NODES_OF_LINES)
        found: str | None = None if nodes is None else nodes[frame.f_lineno - 1]
        if found is not None:
            return found
        frame = frame.f_back
    return call.work.node if isinstance(call.work, StepWork) else None


@cache
def shared_threads(name: str, threads: int) -> DeviceThreads:
    """The threads of the device of that name: one set per process, whatever the number of sessions."""
    return DeviceThreads(name, threads, leaves=True)
