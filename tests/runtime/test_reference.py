"""The reference executor as one of a session's executors: what it waits for shows, stops, and gives back its locks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioflow as af
from aioflow import errors, raw_ops
from tests.waiting import time_runs_out, until_waiting


def _session() -> af.Session:
    return af.Session(config=af.SessionConfig(executor="reference"))


@pytest.mark.parametrize("how", ["fails", "cancelled", "times out", "is not consumed"])
async def test_a_lock_is_given_back_when_the_step_ends(graph: af.Graph, how: str) -> None:
    section = af.CriticalSection()
    empty = af.FIFOQueue(9, ["int32"], shapes=[[]])
    number = af.placeholder("int32", [])
    free = section.execute(lambda: number * 7)
    fails = section.execute(lambda: af.floordiv(number, 0))
    stuck = section.execute(empty.dequeue)
    async with _session() as session, asyncio.TaskGroup() as tg:
        if how == "fails":
            with pytest.raises(errors.InvalidArgumentError, match="zero"):
                await session.run(fails, {number: 1})
        elif how == "cancelled":
            task = tg.create_task(session.run(stuck))
            await until_waiting(session)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        elif how == "times out":
            assert "queue 'fifo_queue'" in str(await time_runs_out(session, session.run(stuck, timeout=60)))
        else:
            await session.run(raw_ops.MutexLock(mutex=section._handle).op)
        assert await session.run(free, {number: 1}, timeout=5.0) == 7


async def test_what_waits_shows(graph: af.Graph) -> None:
    queue = af.FIFOQueue(9, ["int32"], shapes=[[]])
    got: Any = queue.dequeue(name="take")
    async with _session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(got))
        (waiting,) = await until_waiting(session)
        assert waiting.startswith("take on queue 'fifo_queue'")
        await session.run(queue.enqueue(5))
        assert await task == 5
        assert await session.stuck_report() == []


async def test_closing_the_session_stops_a_step_that_waits(graph: af.Graph) -> None:
    queue = af.FIFOQueue(9, ["int32"], shapes=[[]])
    session = _session()

    async def stopped() -> None:
        with pytest.raises(errors.CancelledError, match="closed"):
            await session.run(queue.dequeue())

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await until_waiting(session)
        await asyncio.wait_for(session.close(), 5)
