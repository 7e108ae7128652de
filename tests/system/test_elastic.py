"""Tests of elastic training between real processes: one is killed for good, and a new one takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from tests.support.processes import program_on_loop
from tests.system.elastic_training import Model
from tests.system.processes import worker_process
from tests.system.sync_training import jobs_of

WORKERS = 3
SECONDS = 60.0  # limit for each stage


@asynccontextmanager
async def trainer(addresses: list[str], task: int) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ["-m", "tests.system.elastic_training", ",".join(addresses), str(task)]
    async with program_on_loop(*command) as process:
        yield process


async def until(session: af.Session, model: Model, seen: Callable[[int, Any], bool]) -> tuple[int, Any]:
    """Run steps until `seen` accepts the step and the weights, and return them."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                step, weights = await session.run([model.step, model.weights])
                if seen(int(step), weights):
                    return int(step), weights
            except af.errors.FailedPreconditionError:
                pass  # the chief has not initialized the variables yet
            await asyncio.sleep(0.05)


async def test_training_continues_without_a_killed_worker_and_admits_a_new_one() -> None:
    addresses = free_addresses(1 + WORKERS)
    model = Model(0, WORKERS)
    with model.graph.as_default():
        last = af.placeholder(af.int64, [])
        stop = model.last_step.assign(last, read_value=False)
    async with asyncio.timeout(4 * SECONDS), AsyncExitStack() as stack:
        await stack.enter_async_context(worker_process(jobs_of(addresses), "ps"))
        processes = [await stack.enter_async_context(trainer(addresses, task)) for task in range(WORKERS)]
        session = await stack.enter_async_context(af.Session(f"aioflow://{addresses[0]}", graph=model.graph))
        await until(session, model, lambda _, weights: bool((weights <= -3).all()))
        processes[2].kill()
        await processes[2].wait()
        step, left = await until(session, model, lambda step, weights: True)
        await until(session, model, lambda now, _: now >= step + 100)
        processes[2] = await stack.enter_async_context(trainer(addresses, 2))
        step, _ = await until(session, model, lambda _, weights: bool(weights[2] <= left[2] - 3))
        await session.run(stop, {last: step + 10})
        async with asyncio.timeout(SECONDS):
            assert [await process.wait() for process in processes] == [0] * WORKERS
        reached, weights = await session.run([model.step, model.weights])
    assert reached >= step + 10
    assert weights.sum() == pytest.approx(-reached, abs=1e-9)
