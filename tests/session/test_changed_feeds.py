"""Feeds that the caller changes while the step waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import aioflow as af

SMALL = 1 << 14  # float32 elements: 64 KiB

Use = Callable[[af.Session, Any, Any, Any], Coroutine[Any, Any, Any]]


async def _batched(session: af.Session, y: Any, x: Any, value: Any) -> Any:
    return await session.batched(y, [x], max_batch_size=SMALL, unchecked=True)(value)


USES: dict[str, Use] = {
    "run": lambda session, y, x, value: session.run(y, {x: value}),
    "run with a time limit": lambda session, y, x, value: session.run(y, {x: value}, timeout=60.0),
    "make_callable": lambda session, y, x, value: session.make_callable(y, [x])(value),
    "batched": _batched,
}


@pytest.mark.parametrize("is_new", [True, False], ids=["the first step", "a later step"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_small_feed_may_be_changed_while_the_step_waits(use: Use, order: Any, is_new: bool) -> None:
    x = af.placeholder("float32", [None, 2])
    gate = af.FIFOQueue(2, ["float32"], [()])
    opened = gate.enqueue(1.0)
    with af.control_dependencies([gate.dequeue()]):
        y = af.identity(x)
    value = np.zeros((SMALL // 2, 2), np.float32, order)
    async with af.Session() as session, asyncio.timeout(60), asyncio.TaskGroup() as group:
        if not is_new:
            await session.run(opened)
            await use(session, y, x, value)
        task = group.create_task(use(session, y, x, value))
        await asyncio.sleep(0)  # the step has begun
        value[:] = 1.0
        await session.run(opened)
        np.testing.assert_array_equal(await task, np.zeros((SMALL // 2, 2)))


async def test_batched_calls_use_the_feeds_at_the_time_of_the_call() -> None:
    x = af.placeholder("float32", [None, 2])
    value = np.zeros((1, 2), np.float32)
    async with af.Session() as session, asyncio.TaskGroup() as group:
        predict = session.batched(x + 1.0, [x])
        tasks = []
        for number in range(5):
            value[:] = number
            tasks.append(group.create_task(predict(value)))
            await asyncio.sleep(0)
        assert [(await task).tolist() for task in tasks] == [[[n + 1.0, n + 1.0]] for n in range(5)]
