"""Async kernels: tasks around them, concurrency, errors, cancellation and time limits."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from tests.support.waiting import time_runs_out, until_waiting

_GATES: dict[str, asyncio.Event] = {}

if "TestWait" not in OPS:
    define_op("TestWait", "x: T", "y: T", ["T: type", "gate: string"], shape=lambda ctx: ctx.dims("x"))


if not KERNELS.for_op("TestWait"):

    @kernel("TestWait")
    async def _wait(x: Any, *, gate: str) -> Any:
        await _GATES.setdefault(gate, asyncio.Event()).wait()
        return x


@pytest.fixture(autouse=True)
def _no_gates() -> None:
    _GATES.clear()


def _wait_for(x: Any, gate: str) -> af.Tensor:
    return make("TestWait", x, gate=gate, name=f"wait_{gate}")


async def test_values_cross_async_nodes() -> None:
    x = af.placeholder("float32", [])
    slow = _wait_for(x * 2.0, "a") + _wait_for(x + 1.0, "b")
    _GATES.update(a=asyncio.Event(), b=asyncio.Event())
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        running = tg.create_task(session.run([slow + x, x], {x: 3.0}))
        await asyncio.sleep(0)
        _GATES["b"].set()
        _GATES["a"].set()
        assert await running == [13.0, 3.0]


async def test_independent_async_nodes_wait_together() -> None:
    x = af.placeholder("float32", [])
    total = af.add_n([_wait_for(x, "same") for _ in range(200)])
    _GATES["same"] = asyncio.Event()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        running = tg.create_task(session.run(total, {x: 1.0}))
        tg.create_task(_open_later("same"))
        assert await running == 200


async def _open_later(gate: str) -> None:
    await asyncio.sleep(0.01)
    _GATES[gate].set()


async def test_timeout_reports_waiting_nodes_and_keeps_session_usable() -> None:
    x = af.placeholder("float32", [])
    slow = _wait_for(x, "never") + 1.0
    async with af.Session() as session:
        assert "wait_never" in str(await time_runs_out(session, session.run(slow, {x: 1.0}, timeout=60)))
        assert await session.run(x + 1.0, {x: 1.0}) == 2


async def test_cancelling_the_task_stops_the_step() -> None:
    x = af.placeholder("float32", [])
    slow = _wait_for(x, "never")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(slow, {x: 1.0}))
        await until_waiting(session)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.worker.state()).running == 0
        assert await session.run(x * 3.0, {x: 1.0}) == 3


async def test_closing_the_session_stops_its_steps() -> None:
    x = af.placeholder("float32", [])
    slow = _wait_for(x, "never")
    session = af.Session()

    async def stopped() -> None:
        with pytest.raises(af.errors.CancelledError, match="closed"):
            await session.run(slow, {x: 1.0})

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await until_waiting(session)
        await session.close()
    with pytest.raises(af.errors.ClosedSessionError):
        await session.run(slow, {x: 1.0})


async def test_an_error_in_one_branch_stops_the_others() -> None:
    x = af.placeholder("int32", [])
    fails = af.floordiv(x, 0)
    waits = _wait_for(x, "never")
    async with af.Session() as session:
        with pytest.raises(af.errors.InvalidArgumentError) as caught:
            await session.run([_wait_for(fails, "also"), waits], {x: 1}, timeout=5)
        assert caught.value.node == fails.op.name


async def test_a_constant_carries_its_blocks_control_dependencies() -> None:
    """Run `assign_add(1.0)` in a block. It waits only through the constant, which has the block's dependencies."""
    x = af.placeholder("float32", [])
    count = af.Variable(0.0)
    with af.control_dependencies([_wait_for(x, "later")]):
        added = count.assign_add(1.0)
    _GATES["later"] = asyncio.Event()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(count.initializer)
        running = tg.create_task(session.run(added, {x: 1.0}))
        await until_waiting(session)
        assert await session.run(count) == 0
        _GATES["later"].set()
        await running
        assert await session.run(count) == 1


async def test_cancelled_tasks_do_not_hide_the_first_error() -> None:
    """Fail one task while another runs in a thread: the caller must always get the error of the first."""
    x = af.placeholder("float32", [None])
    busy: Any = x
    for _ in range(40):
        busy = af.tanh(busy)
    fails = af.gather(_wait_for(x, "open"), [10**9])
    # A budget of 0 runs `busy` in a thread while the other task fails.
    async with af.Session(config=af.SessionConfig(inline_budget=0)) as session:
        for _ in range(20):
            _GATES["open"] = asyncio.Event()
            _GATES["open"].set()
            with pytest.raises(af.errors.InvalidArgumentError) as caught:
                await session.run([_wait_for(busy, "open"), fails], {x: np.ones(20_000, np.float32)})
            assert caught.value.node == fails.op.name
