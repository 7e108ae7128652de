"""Durations of requests, turns and batches are exact on every event loop, though uvloop's clock ticks in ms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import aioflow as af
from aioflow.serve.calls import CallLimit
from aioflow.serve.counting import counted
from aioflow.serve.lag import LoopLag
from aioflow.serve.tally import RequestTally

SECONDS = 0.002


@contextmanager
def clock_that_stands() -> Iterator[None]:
    """Stop the clock of the running loop during the block."""
    loop = asyncio.get_running_loop()
    with patch.object(loop, "time", return_value=loop.time()):
        yield


def take_long() -> None:
    time.sleep(SECONDS)


async def test_request_duration_does_not_use_the_loop_clock() -> None:
    model: Any = SimpleNamespace(name="m", tally=RequestTally())
    with clock_that_stands(), counted(model):
        take_long()
    assert model.tally.seconds["ok"] >= SECONDS


async def test_turn_duration_does_not_use_the_loop_clock() -> None:
    turns = CallLimit(1, 4)

    async def hold() -> None:
        async with turns.turn():
            await asyncio.sleep(0)
            take_long()

    with clock_that_stands():
        async with asyncio.TaskGroup() as group:
            group.create_task(hold())
            await asyncio.sleep(0)
            async with turns.turn() as waited:
                assert waited >= SECONDS


async def test_batch_durations_do_not_use_the_loop_clock() -> None:
    def slow(rows: Any) -> Any:
        take_long()
        return rows

    x = af.placeholder(af.float32, [None, 2])
    y = af.ensure_shape(af.py_func(slow, [x], af.float32), [None, 2])
    async with af.Session() as session:
        predict = session.batched(y, [x], max_batch_size=1, unchecked=True)
        with clock_that_stands():
            await asyncio.gather(*(predict(np.ones((1, 2), np.float32)) for _ in range(3)))
        found = predict.statistics()
    assert found.compute_seconds >= 3 * SECONDS
    assert found.queue_seconds >= 3 * SECONDS  # the second waits for the first, the third for both


@pytest.mark.blocks_loop("measures what happens then")
async def test_loop_lag_does_not_use_the_loop_clock() -> None:
    lag = LoopLag(interval=0.0)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(lag.watch())
        with clock_that_stands():
            await asyncio.sleep(0)
            take_long()
            await asyncio.sleep(0)
        watching.cancel()
    assert lag.worst >= SECONDS
