"""Cancellation at each kernel boundary: the step stops there, and the session and its variables stay usable."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import aioflow as af
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from tests.support.waiting import clock_put_forward

_NODES = 12
_reached = threading.Event()
_proceed = threading.Event()
_log: list[int] = []
_stop_at = -1

if "TestCheckpoint" not in OPS:
    define_op(
        "TestCheckpoint", "x: float32", "y: float32", ["index: int"], stateful=True, shape=lambda ctx: ctx.dims("x")
    )

if not KERNELS.for_op("TestCheckpoint"):

    @kernel("TestCheckpoint")
    def _checkpoint(x: Any, *, index: int) -> Any:
        _log.append(index)
        if index == _stop_at:
            _reached.set()
            _proceed.wait(5)
        return x


@pytest.mark.parametrize("boundary", range(_NODES))
async def test_cancel_stops_the_step_at_the_next_kernel_boundary(boundary: int) -> None:
    global _stop_at
    x = af.placeholder("float32", [])
    y: Any = x
    for index in range(_NODES):
        y = make("TestCheckpoint", y, index=index)
    count = af.Variable(0.0, name="count")
    async with af.Session(config=af.SessionConfig(inline_budget=0)) as session, asyncio.TaskGroup() as tg:
        await session.run(count.initializer)
        _stop_at = boundary
        _log.clear()
        _reached.clear()
        _proceed.clear()
        with af.control_dependencies([y]):
            done = count.assign_add(1.0)
        task = tg.create_task(session.run(done, {x: 1.0}))
        await asyncio.to_thread(_reached.wait, 5)
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done(), "run ended while a kernel of its step was still running"
        _proceed.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _log == list(range(boundary + 1)), "a kernel ran after the boundary at which the step was cancelled"
        _stop_at = -1
        assert await session.run(count) == 0
        await session.run(done, {x: 1.0})
        assert await session.run(count) == 1


async def test_timeout_stops_a_step_in_a_thread() -> None:
    global _stop_at
    x = af.placeholder("float32", [])
    y: Any = x
    for index in range(_NODES):
        y = make("TestCheckpoint", y, index=index)
    _log.clear()
    _reached.clear()
    _proceed.clear()
    _stop_at = 3

    async def timed_out() -> None:
        with pytest.raises(af.errors.DeadlineExceededError):
            await session.run(y, {x: 1.0}, timeout=60)

    async with af.Session(config=af.SessionConfig(inline_budget=0)) as session:
        async with asyncio.TaskGroup() as tg:
            tg.create_task(timed_out())
            assert await asyncio.to_thread(_reached.wait, 5)
            (step,) = session._steps
            with clock_put_forward():
                while not step.requested:  # noqa: ASYNC110  # a step has no event for it
                    await asyncio.sleep(0)
            _proceed.set()
        assert _log == [0, 1, 2, 3]
        _stop_at = -1
        assert await session.run(y, {x: 1.0}) == 1
