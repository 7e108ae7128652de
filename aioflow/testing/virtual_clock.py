"""An asyncio event loop whose time passes when nothing else can happen: tests of waiting that do not wait.

When nothing is ready the clock jumps to the next timer. When there is none either, nothing can ever happen again: that
is a deadlock, and an error that says where each task is waiting. The rest is asyncio's own loop. What comes from other
threads or from sockets is not waited for, so there must be none; a function for an executor runs at once, on the loop.

A run is the same every time: time starts at 0, chance comes from one seed, and tasks hash by their number, since
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


def run_virtual(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Run a coroutine by a virtual clock, as `asyncio.run` does by the real one, and return its result.

    Args:
        seed: Of `VirtualClockLoop.random`.

    Raises:
        InternalError: a deadlock; the error lists the tasks with the lines at which they wait.
    """
    with asyncio.Runner(loop_factory=partial(VirtualClockLoop, seed)) as runner:
        return runner.run(main)


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop whose `time` is virtual, in seconds from 0.

    Attributes:
        random: The source of chance for what runs on the loop; no other part of the loop draws from it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self._now = 0.0
        super().__init__(_Jump(self))
        self._numbers = itertools.count()
        self.set_task_factory(lambda _, coroutine, **options: self.make_task(coroutine, **options))

    def make_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """What `create_task` makes."""
        return _Task(next(self._numbers), coroutine, self, **options)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        """Nothing is ready for so long; None means forever.

        Raises:
            InternalError: it would be forever.
        """
        if seconds is None:
            waiting = sorted((t for t in asyncio.all_tasks(self) if not t.done()), key=hash)
            raise InternalError(
                f"deadlock at {self._now:.6f} s: nothing is ready and no timer is set",
                expected="something to happen",
                actual="\n".join(["", *(f"    {task.get_name()} at {_place(task)}" for task in waiting)]),
            )
        self._now += max(0.0, seconds)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call the function now: what `threads.in_thread` does on this loop."""
        return function(*args)


class _Jump(selectors.SelectSelector):
    """What the loop calls when it would wait: time passes instead."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing of what is registered is ever ready."""
        self._loop.pass_time(timeout)
        return []


class _Task(asyncio.Task[Any]):
    """A task whose hash does not depend on where it is in memory."""

    def __init__(self, number: int, coroutine: Any, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self._number = number  # first: the task is put into a set when it is made
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost line at which a task is suspended."""
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
