"""Synchronous training of numbered workers with crashes: the variables equal those of a run without crashes.

The batch of a worker depends only on its step, so repeated computations give the same gradient. The result must equal,
bitwise, a NumPy sum in the order of the workers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests.train.replicas import Replica, numbered, replicas

WORKERS = 3
BEFORE_RESTORE, RESTORED, LAST = 4, 2, 8


def gradient(step: int, worker: int) -> Any:
    """Return a worker's gradient for a step: float32 values of very different sizes, so that their order matters."""
    rng = np.random.default_rng([step, worker])
    return (rng.standard_normal(2) * 10.0 ** rng.integers(-4, 5, 2)).astype(np.float32)


def undisturbed(steps: int) -> Any:
    """Return the variable after `steps` steps without crashes."""
    value = np.zeros(2, np.float32)
    for step in range(steps):
        total = gradient(step, 0)
        for worker in range(1, WORKERS):
            total = total + gradient(step, worker)
        value = value - np.float32(1.0) * (total / np.float32(WORKERS))
    return value


async def follow(worker: Replica, index: int, last: int | None = None) -> None:
    """Run the program of a worker until its session is closed, or that of the chief until step `last`."""
    hook = worker.optimizer.make_session_run_hook(last is not None)
    try:
        async with af.train.Coordinator() as coord:
            hook.begin()
            await hook.after_create_session(worker.session, coord)
            while last is None or await worker.run(worker.step) < last:
                step = int(await worker.run(worker.local_step))
                await worker.compute(gradient(step, index), rows=[index, 3])
    except (af.errors.ClosedSessionError, af.errors.CancelledError):
        pass  # the session was closed to simulate a crash


async def until_step(worker: Replica, step: int) -> None:
    async with asyncio.timeout(60):
        while await worker.run(worker.step) < step:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_crashes_of_workers_do_not_change_the_result() -> None:
    async with replicas(WORKERS, numbered(WORKERS), np.float32) as workers, asyncio.timeout(60):
        chief, *others = workers
        async with asyncio.TaskGroup() as tg:
            leads = tg.create_task(follow(chief, 0, LAST))
            tasks = [tg.create_task(follow(worker, index)) for index, worker in enumerate(others, start=1)]
            for crash in range(4):
                await until_step(chief, crash + 1)
                which = crash % len(others)
                await others[which].crash()
                await tasks[which]
                tasks[which] = tg.create_task(follow(others[which], which + 1))
            await leads
        found, steps = await chief.run([chief.dense, chief.step])
    assert steps >= LAST
    np.testing.assert_array_equal(found, undisturbed(int(steps)))


@pytest.mark.parametrize("also", [(), (2,), (1, 2)], ids=["the chief", "and another", "all"])
async def test_chief_restored_from_a_checkpoint_repeats_the_same_steps(also: tuple[int, ...]) -> None:
    """Other workers may continue unaware. Their gradients for steps that the restore has undone are dropped."""
    async with replicas(WORKERS, numbered(WORKERS), np.float32) as workers, asyncio.timeout(60):
        chief = workers[0]
        with chief.graph.as_default():
            restore = [chief.dense.assign(undisturbed(RESTORED)), chief.step.assign(RESTORED)]
        async with asyncio.TaskGroup() as tg:
            tasks = {0: tg.create_task(follow(chief, 0, 10**6))}
            tasks |= {index: tg.create_task(follow(workers[index], index)) for index in range(1, WORKERS)}
            await until_step(chief, BEFORE_RESTORE)
            for index in (0, *also):
                await workers[index].crash()
                await tasks[index]
            await chief.run(restore)
            tasks[0] = tg.create_task(follow(chief, 0, LAST))
            for index in also:
                tasks[index] = tg.create_task(follow(workers[index], index))
            await tasks[0]
        found, steps = await chief.run([chief.dense, chief.step])
    np.testing.assert_array_equal(found, undisturbed(int(steps)))
