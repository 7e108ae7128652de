"""Waiting until a condition holds, with a limit that only a fault reaches.

Waiting for steps to wait, and for their time to run out: there is no event for the first, and no number of turns of
the loop is always enough: a step may be on its way through a thread. So no short time limit is one that a step surely
reaches, either: the loop's clock is put forward when it does.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError

__all__ = ["clock_put_forward", "eventually", "time_runs_out", "until", "until_collected", "until_waiting"]

_LIMIT = 120.0  # seconds
_PAUSE = 0.005  # seconds between two looks
_TURNS = 1000  # of the loop, before it pauses: other tasks may make the condition true without waiting for anything


def until(condition: Callable[[], object], seconds: float = _LIMIT) -> None:
    """Wait in this thread until `condition()` is true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {_shown(condition)}"
        time.sleep(_PAUSE)


async def eventually(condition: Callable[[], object | Awaitable[object]], seconds: float = _LIMIT) -> None:
    """Wait until `condition()`, which may be a coroutine function, is true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds  # not the loop's clock, which a test may put forward
    for turn in itertools.count():
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < end, f"not within {seconds} s: {_shown(condition)}"
        await asyncio.sleep(0 if turn < _TURNS else _PAUSE)


def until_collected(*references: weakref.ref[Any], seconds: float = _LIMIT) -> None:
    """Wait until the objects are gone. A thread that has just ended a call for them may hold them for a moment."""

    def are_gone() -> bool:
        gc.collect()
        return not any(reference() is not None for reference in references)

    until(are_gone, seconds)


def _shown(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):  # typed at a prompt, or not a function
        return repr(condition)


async def until_waiting(session: af.Session, count: int = 1) -> list[str]:
    """What waits, as "node on what", once that many nodes do."""
    async with asyncio.timeout(_LIMIT):
        while True:
            found = [f"{node} on {what}" for step in await session.stuck_report() for node, _, what in step.waiting]
            if len(found) >= count:
                return found
            await asyncio.sleep(0)


@contextmanager
def clock_put_forward() -> Iterator[None]:
    """A block in which every timer of the running loop is due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    with patch.object(loop, "time", lambda: now() + 1e6):
        yield


async def time_runs_out(session: af.Session, run: Coroutine[Any, Any, Any], count: int = 1) -> DeadlineExceededError:
    """The error of a run with a time limit, any but a short one, which runs out once that many of its nodes wait."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_late(run))
        await until_waiting(session, count)
        with clock_put_forward():
            await asyncio.wait([task])
    return task.result()


async def _late(run: Coroutine[Any, Any, Any]) -> DeadlineExceededError:
    with pytest.raises(DeadlineExceededError) as raised:
        await run
    return raised.value
