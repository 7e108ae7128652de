"""The threads of a CPU device, and the work that a thread does for a step."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Final, TypeVar

from aioflow.concurrency.slices import ask_for_long_slice
from aioflow.concurrency.stopping import Stopped, Work, current_work
from aioflow.concurrency.threads import AbandonedError, ThreadCall, Threads
from aioflow.runtime.step import Step

NODES_OF_LINES: Final = "__nodes_of_lines__"  # a global of generated code: for each line, the name of its node

_THIS_THREAD = threading.local()


def kernel_threads() -> int | None:
    """Return how many threads a kernel in this thread may use, including this one; None if that is not set."""
    found: int | None = getattr(_THIS_THREAD, "kernel_threads", None)
    return found


def _begin(count: int | None) -> None:
    _THIS_THREAD.kernel_threads = count
    ask_for_long_slice()


T = TypeVar("T")


class StepWork(Work):
    """A part of a step that a thread works on.

    Args:
        step: The step.
        effects: Whether the work counts as having effects outside of a critical section (`begin_critical` to
            `end_critical`).

    Attributes:
        node: The name of the running node, for code that is not generated.
    """

    __slots__ = ("_step", "node")

    def __init__(self, step: Step, effects: bool) -> None:
        super().__init__(None, effects)
        self._step = step
        self.watchers = step.watchers
        self.node: str | None = None

    @property
    def requested(self) -> bool:
        """True if the step was asked to stop."""
        return self._step.requested

    def stop(self) -> None:
        """Request the step to stop."""
        self._step.stop()

    def check(self) -> None:
        """Raise Stopped if the step was asked to stop, except within a critical section."""
        if self._step.requested and not self.effects:
            raise Stopped


def work_here(step: Step) -> StepWork:
    """Return this thread's work, which is a part of the step."""
    # An executor without threads sets no current work.
    work = current_work()
    return work if isinstance(work, StepWork) else StepWork(step, effects=True)


class DeviceThreads(Threads):
    """The executor of a device that has threads.

    Args:
        name: The name of the device.
        threads: Number of threads of the device, and of each kernel; 0 means one per processor.
        leaves: Whether a thread may be abandoned while its function runs. The function marks its critical sections
            by `StepWork.begin_critical`.
    """

    def __init__(self, name: str, threads: int = 0, leaves: bool = False) -> None:
        super().__init__(name, threads or os.cpu_count() or 1, partial(_begin, threads or None))
        self._leaves = leaves

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        """Run `function(*args)` in a thread.

        If the awaiting task is cancelled, the step is asked to stop. This method then raises only after the function
        has ended, or if it has not begun, so no kernel of a step runs after the step's `run`. The exception is an
        abandoned thread.
        """
        try:
            return await self.call(StepWork(step, not self._leaves), function, *args)
        except (asyncio.CancelledError, AbandonedError) as error:
            left = AbandonedError.within(error)
            if left is not None:
                step.leave_behind(running_node(left.call) or "a kernel")
            # A cancellation is passed on. An abandoned thread without one means that the step was stopped, so `halt`
            # raises.
            if left is not error:
                raise
        except Stopped:
            pass
        return step.halt()


def running_node(call: ThreadCall) -> str | None:
    """Return the name of the node whose kernel a call is running, or None if it is unknown."""
    # A snapshot, read from the innermost frame outwards: the thread continues meanwhile.
    frame = sys._current_frames().get(call.thread)
    while frame is not None:
        # Generated code has this global, and its line numbers identify nodes.
        nodes = frame.f_globals.get(NODES_OF_LINES)
        found: str | None = None if nodes is None else nodes[frame.f_lineno - 1]
        if found is not None:
            return found
        frame = frame.f_back
    return call.work.node if isinstance(call.work, StepWork) else None


@cache
def shared_threads(name: str, threads: int) -> DeviceThreads:
    """Return the threads of the device of that name: one set per process, shared by all sessions."""
    return DeviceThreads(name, threads, leaves=True)
