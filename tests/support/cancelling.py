"""Cancellation of a coroutine at each turn of its event loop, with a check for leaks.

Most faults at start and stop are of one of four kinds:

- An object is used before the code that completes it has run.
- A close is not idempotent, or not shielded.
- A callback does not check whether its future is done or its transport closing.
- A check before an `await` is not repeated after it.

Cancellation at every turn reaches all of them.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

__all__ = ["cancel_at_each_turn", "turns_until_ended"]

_LIMIT: Final = 60.0  # seconds, for the resources of a cancelled coroutine to be released
_DOUBLINGS: Final = 12
_FILES: Final = "/proc/self/fd"


def turns_until_ended(turns: int, first: int = 0) -> Iterator[int]:
    """Yield `first`, … `turns` - 1, and then doubling numbers.

    Work that waits for sockets and threads may outlast any fixed number of turns on a busy machine. The caller stops at
    the first number of turns in which the work ends.

    Raises:
        AssertionError: the caller has not stopped at the last number.
    """
    yield from range(first, turns)
    for _ in range(_DOUBLINGS):
        yield turns
        turns *= 2
    raise AssertionError(f"the work did not end within {turns // 2} turns of the loop")


async def cancel_at_each_turn(
    work: Callable[[], Coroutine[Any, Any, object]],
    then: Callable[[], Coroutine[Any, Any, object]] | None = None,
    *,
    before: Callable[[], Coroutine[Any, Any, object]] | None = None,
    turns: int = 40,
    until_ended: bool = False,
    expected: tuple[type[BaseException], ...] = (),
) -> int:
    """Run `work` repeatedly, cancelled after 0, 1, 2, … turns of the loop, until it ends before it is cancelled.

    After each run no task, descriptor or listening port of it may be left.

    Args:
        work: Makes the coroutine; called for each run.
        then: Run after each run, with a timeout, to show that the objects `work` used still respond or refuse.
        before: Run before each run, and not cancelled; for example to enter the block that `work` leaves. The exit
            of a block always starts, so `work` is then cancelled after its first turn at the earliest.
        turns: How many numbers of turns are tried one after another.
        until_ended: Whether to continue with `turns_until_ended` if `work` outlasts them all.
        expected: Errors that `work` may raise. Any other, and an ExceptionGroup, fails the test.

    Returns:
        The number of cancelled runs.
    """
    if before is not None:
        await before()
    await _run(work, None, expected)  # this run starts what the process keeps: thread pools, imports
    await _end(then)
    present = asyncio.all_tasks(), _files()
    first = 0 if before is None else 1
    for count in turns_until_ended(turns, first) if until_ended else range(first, turns):
        if before is not None:
            await before()
        was_cancelled = await _run(work, count, expected)
        await _until_nothing_is_left(present, count)
        await _end(then)
        if not was_cancelled:
            return count
    return turns


async def _run(
    work: Callable[[], Coroutine[Any, Any, object]], turns: int | None, expected: tuple[type[BaseException], ...]
) -> bool:
    """Run the coroutine, and return whether it was cancelled before it ended."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    was_cancelled = turns is not None and task.cancel(f"after {turns} turns")
    done, _ = await asyncio.wait([task], timeout=_LIMIT)
    if not done:
        frames = "\n".join(map(str, task.get_stack()))
        raise AssertionError(f"still running {_LIMIT} s after it was cancelled in turn {turns}: {task}\n{frames}")
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, expected):
        raise AssertionError(f"{error!r} when cancelled in turn {turns}") from error
    return was_cancelled


async def _end(then: Callable[[], Coroutine[Any, Any, object]] | None) -> None:
    if then is not None:
        async with asyncio.timeout(_LIMIT):
            await then()


async def _until_nothing_is_left(present: tuple[set[asyncio.Task[Any]], set[str]], turn: int) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + _LIMIT
    tasks, files = present
    # A cancelled TaskGroup refers to itself, so the objects of its block may be garbage of any generation.
    generation = 0
    while left := (asyncio.all_tasks() - tasks) or (_files() - files):
        assert loop.time() < until, f"left when cancelled in turn {turn}: {left}"
        await asyncio.sleep(0.001)
        gc.collect(generation)
        generation = min(generation + 1, 2)


def _files() -> set[str]:
    """Return the descriptors of this process with their targets; an empty set if the system does not list them."""
    found = set()
    for name in os.listdir(_FILES) if os.path.isdir(_FILES) else ():
        try:
            found.add(f"{name} -> {os.readlink(f'{_FILES}/{name}')}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found
