"""An asyncio event loop with virtual time: tests of waiting that do not wait.

When no callback is ready, the clock jumps to the next timer. If there is no timer either, the loop has a deadlock and
raises an error that lists where each task is waiting. The rest is asyncio's own loop. Events of other threads or of
sockets are not waited for, so a program must not depend on them. A function for an executor runs at once, on the loop.

A run is repeatable: time starts at 0, randomness comes from one seed, and tasks hash by their number, since
`asyncio.TaskGroup` cancels its tasks in the order of a set.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from aioflow.errors import InternalError

__all__ = ["VirtualClockLoop", "run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_virtual(main: Coroutine[object, object, T], seed: int = 0) -> T:
    """Run a coroutine with a virtual clock, as `asyncio.run` does with the real one, and return its result.

    Args:
        main: The coroutine.
        seed: Seed of `VirtualClockLoop.random`.

    Raises:
        InternalError: a deadlock; the error lists the tasks with the lines at which they wait.
    """
    with asyncio.Runner(loop_factory=partial(VirtualClockLoop, seed)) as runner:
        return runner.run(main)


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop whose `time` is virtual, in seconds from 0.

    Attributes:
        random: Random source for code that runs on the loop; the loop itself does not draw from it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self._now = 0.0
        # The selector needs the loop, which exists by now, and `time` needs `_now`.
        super().__init__(_Jump(self))
        self._numbers = itertools.count()
        self.set_task_factory(lambda _, coroutine, **options: self.make_task(coroutine, **options))

    def make_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a new task for `create_task`."""
        return _Task(next(self._numbers), coroutine, self, **options)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        """Advance the clock by the time in which no callback is ready; None means forever.

        Raises:
            InternalError: a deadlock: `seconds` is None.
        """
        if seconds is None:
            # By number, so that the error is the same in each run.
            waiting = sorted((t for t in asyncio.all_tasks(self) if not t.done()), key=hash)
            raise InternalError(
                f"deadlock at {self._now:.6f} s: nothing is ready and no timer is set",
                expected="something to happen",
                actual="\n".join(["", *(f"    {task.get_name()} at {_place(task)}" for task in waiting)]),
            )
        self._now += max(0.0, seconds)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function at once and return a finished future."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call the function at once: `threads.in_thread` uses this method on this loop."""
        # In the loop's thread: a real thread would run in real time.
        return function(*args)


class _Jump(selectors.SelectSelector):
    """A selector that lets virtual time pass where the loop would wait."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let `timeout` pass and report no events: registered files are never ready."""
        self._loop.pass_time(timeout)
        return []


class _Task(asyncio.Task[Any]):
    """A task whose hash does not depend on its memory address."""

    def __init__(self, number: int, coroutine: Any, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self._number = number  # set first: `super().__init__` puts the task into a set
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


def _place(task: asyncio.Task[object]) -> str:
    """Return the innermost line at which a task is suspended."""
    place = "its start"
    current: Any = task.get_coro()
    while current is not None:
        frame_of, awaited_by = (
            ("gi_frame", "gi_yieldfrom") if isinstance(current, Generator) else ("cr_frame", "cr_await")
        )
        frame = getattr(current, frame_of, None)
        if frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        current = getattr(current, awaited_by, None)
    return place
