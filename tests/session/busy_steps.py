"""Helpers for tests of several devices: sessions, outcomes, and a step with nodes of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import AioflowError

LIMIT = 120.0  # seconds: a step that hangs fails


def on(devices: int = 3, **settings: Any) -> af.Session:
    return af.Session(config=af.SessionConfig(device_count={"CPU": devices}, **settings))


def at(device: int) -> Any:
    return af.device(f"/cpu:{device}")


async def is_idle(session: af.Session) -> bool:
    return (await session.worker.state()).running == 0 and not await session.stuck_report()


async def outcome(step: Awaitable[Any]) -> Any:
    """Return the value of a step, or its error."""
    try:
        return await step
    except AioflowError as error:
        return error


EXECUTORS = pytest.mark.parametrize("executor", ["strands", "reference"])


def busy_step() -> tuple[list[af.Tensor], af.Tensor]:
    """Build a step over three devices: transfers both ways, a loop with a remote body, a coroutine and a thread."""

    async def awaited(value: Any) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        return value + np.float32(1)

    def called(value: Any) -> Any:
        return value * np.float32(0.5)

    def body(i: Any, v: Any) -> Any:
        with at(2):
            return i + 1, af.tanh(v) + 1.0

    x = af.placeholder("float32", [64, 64])
    with at(0):
        a = af.matmul(x, x)
    with at(1):
        b = af.py_coroutine(awaited, [a], af.float32, shapes=[64, 64])
        c = af.matmul(b, b)
    with at(2):
        d = af.py_func(called, [c], af.float32)
        e = af.random_uniform([64, 64], seed=1) * 0.0 + d
    with at(0):
        _, f = af.while_loop(
            lambda i, _: i < 20, body, [0, e], shape_invariants=[af.TensorShape([]), af.TensorShape(None)]
        )
    with at(1):
        return [f + a, e], x
