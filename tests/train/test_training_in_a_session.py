"""Optimizers in a session: convergence, and atomic concurrent steps and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow


@pytest.mark.parametrize("name", ["GradientDescent", "Momentum", "Adam", "RMSProp"])
async def test_linear_model_converges(name: str) -> None:
    rng = np.random.default_rng(4)
    inputs = rng.standard_normal((64, 5)).astype(np.float32)
    wanted = inputs @ rng.standard_normal((5, 2)).astype(np.float32) + 0.5
    make: Callable[[], Any] = {
        "GradientDescent": lambda: aioflow.train.GradientDescentOptimizer(0.3),
        "Momentum": lambda: aioflow.train.MomentumOptimizer(0.1, 0.7),
        "Adam": lambda: aioflow.train.AdamOptimizer(0.1),
        "RMSProp": lambda: aioflow.train.RMSPropOptimizer(0.02),
    }[name]
    with aioflow.Graph().as_default():
        x, y = aioflow.placeholder("float32", [None, 5]), aioflow.placeholder("float32", [None, 2])
        w = aioflow.Variable(np.zeros((5, 2), np.float32), name="w")
        b = aioflow.Variable(np.zeros(2, np.float32), name="b")
        loss = aioflow.reduce_mean(aioflow.square(aioflow.matmul(x, w) + b - y))
        step = aioflow.train.create_global_step()
        train = make().minimize(loss, global_step=step)
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            feeds = {x: inputs, y: wanted}
            before = await session.run(loss, feeds)
            for _ in range(150):
                await session.run(train, feeds)
            assert await session.run(loss, feeds) < 0.01 * before
            assert await aioflow.train.global_step(session, step) == 150


async def test_concurrent_steps_apply_once_and_reads_are_consistent() -> None:
    size, steps = 200_000, 60
    with aioflow.Graph().as_default():
        v = aioflow.Variable(np.zeros(size, np.float32), name="v")
        step = aioflow.train.create_global_step()
        optimizer = aioflow.train.GradientDescentOptimizer(1.0)
        train = optimizer.apply_gradients([(aioflow.constant(np.full(size, -1.0, np.float32)), v)], step)
        value = v.read_value()
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            read = await asyncio.gather(
                *(session.run([train, value] if i % 2 else [train, step]) for i in range(steps))
            )
            for _, seen in read:
                assert np.min(seen) == np.max(seen)
            assert np.all(await session.run(v) == steps)
            assert await session.run(step) == steps
