"""Waits for conditions, with a limit that only a fault reaches.

These helpers also wait until steps wait, and until their time limits expire. No event signals that a step waits. No
fixed number of turns of the loop is enough either, since a step may be passing through a thread. So a short time limit
might expire before the step waits. The helpers advance the loop's clock once the step waits.
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
_PAUSE = 0.005  # seconds between two checks
_TURNS = 1000  # turns of the loop before it pauses: other tasks may make the condition true without waiting


def until(condition: Callable[[], object], seconds: float = _LIMIT) -> None:
    """Wait in this thread until `condition()` is true. Raise AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {_shown(condition)}"
        time.sleep(_PAUSE)


async def eventually(condition: Callable[[], object | Awaitable[object]], seconds: float = _LIMIT) -> None:
    """Wait until `condition()`, which may be a coroutine function, is true. Raise AssertionError after `seconds`."""
    end = time.monotonic() + seconds  # not the loop's clock, which a test may advance
    for turn in itertools.count():
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < end, f"not within {seconds} s: {_shown(condition)}"
        await asyncio.sleep(0 if turn < _TURNS else _PAUSE)


def until_collected(*references: weakref.ref[Any], seconds: float = _LIMIT) -> None:
    """Wait until the objects have been collected.

    A thread that has just ended a call for them may hold them for a moment.
    """

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
    """Wait until `count` nodes wait, and return them as "node on what"."""
    async with asyncio.timeout(_LIMIT):
        while True:
            found = [f"{node} on {what}" for step in await session.stuck_report() for node, _, what in step.waiting]
            if len(found) >= count:
                return found
            await asyncio.sleep(0)


@contextmanager
def clock_put_forward() -> Iterator[None]:
    """Advance the loop's clock during the block, so that every timer is due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    with patch.object(loop, "time", lambda: now() + 1e6):
        yield


async def time_runs_out(session: af.Session, run: Coroutine[Any, Any, Any], count: int = 1) -> DeadlineExceededError:
    """Return the error of a run whose time limit expires once `count` of its nodes wait.

    The limit must be long enough not to expire by itself.
    """
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
