"""The driver and its ready queue: memory that a step holds, fairness, and errors."""

from __future__ import annotations

import asyncio
import tracemalloc

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError

ROWS = 250_000  # a megabyte of float32


async def test_value_between_tasks_lives_until_its_last_reader_has_begun() -> None:
    x = y = af.placeholder("float32", [ROWS])
    for i in range(16):
        with af.device(f"/cpu:{i % 2}"):
            y = af.exp(y * 0.5)
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2}, optimizations=False)) as session:
        data = np.zeros(ROWS, np.float32)
        await session.run(y, {x: data})
        tracemalloc.start()
        await session.run(y, {x: data})
        peak = tracemalloc.get_traced_memory()[1] / data.nbytes
        tracemalloc.stop()
    # A strand holds its input, a product and its result, and the fetch is copied. The thread of each device may also
    # hold the arguments and the result of the previous strand until the thread gets processor time.
    assert peak < 8, "there are 32 arrays in all"


def _long_row() -> tuple[af.Tensor, af.Tensor]:
    x = y = af.placeholder("float32", [])
    for i in range(1500):
        with af.device(f"/cpu:{i % 2}"):
            y = y + 1.0
    return x, y


async def test_long_row_of_short_tasks_yields_to_other_asyncio_tasks() -> None:
    x, y = await asyncio.to_thread(_long_row)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2}, optimizations=False)) as session:
        await session.run(y, {x: 0.0})
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(others())
            await asyncio.sleep(0)
            turns = 0
            assert await session.run(y, {x: 0.0}) == 1500.0
            seen = turns
            task.cancel()
    assert seen >= 1


@pytest.mark.parametrize("device", [0, 1])
async def test_first_error_is_raised_and_no_task_is_left(device: int) -> None:
    with af.device(f"/cpu:{device}"):
        x = af.placeholder("int32", [])
        with af.control_dependencies([af.no_op()]):
            bad = af.floordiv(1, x, name="bad")
    with af.device(f"/cpu:{1 - device}"):
        slow = af.py_coroutine(_never, [], af.int32, shapes=[])
        both = bad + slow
    async with af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as session:
        with pytest.raises(InvalidArgumentError) as raised:
            await session.run(both, {x: 0}, timeout=20)
        assert raised.value.node == "bad"
        assert await session.stuck_report() == []
        assert len(asyncio.all_tasks()) == 1


async def _never() -> int:
    await asyncio.Event().wait()
    return 0
