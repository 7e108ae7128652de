"""Tests of memory: a closed model's memory is released."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import psutil
import pytest

import aioflow as af
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, floats, run_twice

MANY, FIRST = 1000, 100
ROWS, COLUMNS = 1000, 2500  # of the weights: 10 MB


def resident() -> int:
    """Return the bytes of this process that are in memory, without freed memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


async def use_a_model(parts: list[Delegated], variable: bool) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [None, ROWS])
        weights = floats(ROWS, COLUMNS)
        y = af.tanh(af.matmul(x, af.Variable(weights) if variable else af.constant(weights)))
        start = af.global_variables_initializer()
    async with af.Session(graph=graph, config=BY_ONNXRUNTIME) as session:
        await session.run(start)
        await run_twice(session, parts, y, {x: np.ones((4, ROWS), np.float32)})
    parts.clear()


@pytest.mark.soak
@pytest.mark.parametrize("variable", [False, True], ids=["constants", "variables"])
async def test_memory_after_many_models_is_as_after_a_few(parts: list[Delegated], variable: bool) -> None:
    for _ in range(FIRST):
        await use_a_model(parts, variable)
    before = resident()
    for _ in range(MANY - FIRST):
        await use_a_model(parts, variable)
    assert resident() - before < 100e6


@pytest.mark.soak
async def test_model_takes_at_most_one_copy_of_its_weights(parts: list[Delegated]) -> None:
    weights = [floats(2048, 2048) for _ in range(8)]
    with af.Graph().as_default() as graph:
        x = y = af.placeholder(af.float32, [8, 2048])
        for each in weights:
            y = af.nn.relu(af.matmul(y, af.constant(each)) + af.constant(each[:8]))
    before = resident()
    async with af.Session(graph=graph, config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, y, {x: np.ones((8, 2048), np.float32)})
        taken = psutil.Process().memory_info().rss - before  # with memory that the C library keeps
    assert taken < 1.5 * sum(each.nbytes for each in weights)
