"""Waiting for steps to wait, and for their time to run out. There is no event for the first, and no number of turns of
the loop is always enough: a step may be on its way through a thread. So no short time limit is one that a step surely
reaches, either: the loop's clock is put forward when it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError

__all__ = ["clock_put_forward", "time_runs_out", "until_waiting"]

_LIMIT = 60.0  # seconds


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
