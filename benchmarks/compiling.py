"""Compilation costs: optimizing ResNet-50, placing 10,000 nodes on 8 devices, looking up a compiled step."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import aioflow as af
from aioflow.compiler.optimize.passes import PASSES
from aioflow.compiler.prune import StepRequest, prune
from aioflow.runtime.folding import fold
from benchmarks.placement import speed
from benchmarks.tables import BASELINE, Row, Target, beside, program, seconds

# isort: split
import numpy as np

__all__ = ["COMPILING_ROWS"]

_BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride of the first block


def resnet_50(image: Any) -> Any:
    """Build the class scores of ResNet-50 (K. He et al., 2015, table 1), with batch normalization as arithmetic."""

    def convolved(x: Any, outputs: int, size: int, stride: int) -> Any:
        inputs = x.shape.as_list()[3]
        kernel = af.constant(np.zeros((size, size, inputs, outputs), np.float32))
        made = af.nn.conv2d(x, kernel, strides=[1, stride, stride, 1], padding="SAME")
        mean, variance, offset, scale = (af.Variable(np.ones(outputs, np.float32)) for _ in range(4))
        return af.nn.batch_normalization(made, mean, variance, offset, scale, 1e-3)

    def block(x: Any, channels: int, stride: int) -> Any:
        outputs = 4 * channels
        same = stride == 1 and x.shape.as_list()[3] == outputs
        shortcut = x if same else convolved(x, outputs, 1, stride)
        inner = af.nn.relu(convolved(x, channels, 1, stride))
        inner = af.nn.relu(convolved(inner, channels, 3, 1))
        return af.nn.relu(convolved(inner, outputs, 1, 1) + shortcut)

    y = af.nn.max_pool(af.nn.relu(convolved(image, 64, 7, 2)), [1, 3, 3, 1], [1, 2, 2, 1], "SAME")
    for channels, count, stride in _BLOCKS:
        for i in range(count):
            y = block(y, channels, stride if i == 0 else 1)
    weights = af.Variable(np.zeros((2048, 1000), np.float32))
    return af.nn.softmax(af.nn.bias_add(af.matmul(af.reduce_mean(y, [1, 2]), weights), af.zeros([1000])))


def optimizing() -> Row:
    """Time all passes over the inference graph."""
    with af.Graph().as_default():
        image = af.placeholder(af.float32, [None, 224, 224, 3])
        request = StepRequest((image,), (resnet_50(image),))
        before = prune(request)
        times = []
        for _ in range(7):
            graph = before
            started = time.perf_counter()
            for optimization in PASSES:
                graph = optimization.run(graph, fold)
            times.append(time.perf_counter() - started)
    name = f"all passes over ResNet-50, {len(before.nodes)} nodes ({len(graph.nodes)} after)"
    return _row(name, median(times), 1.0)


def placing() -> Row:
    """Time the constraints and the simulation of placement."""
    taken = dict(speed(10_000, 8, 3))
    return _row("placement of 10,000 nodes on 8 devices", taken["constraints"] + taken["auto"], 1.5)


def a_known_step() -> Row:
    """Time the lookup of a compiled step: `run` of a known signature, against a callable, which needs no lookup."""
    return asyncio.run(_a_known_step())


async def _a_known_step() -> Row:
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [])
        y = x + 1.0
        async with af.Session() as session:
            call = session.make_callable(y, [x])
            times: list[list[float]] = [[], []]
            value = np.float32(1)
            for _ in range(9):
                for found, step in zip(times, (lambda: session.run(y, {x: value}), lambda: call(value)), strict=True):
                    started = time.perf_counter()
                    for _ in range(2000):
                        await step()
                    found.append((time.perf_counter() - started) / 2000)
    looked_up, direct = (median(t) for t in times)
    name = "a cached plan: a callable of a step, and `run` of the same"
    return beside(name, seconds(looked_up), seconds(direct), other=BASELINE)


def _row(name: str, taken: float, limit: float) -> Row:
    return beside(name, seconds(taken), target=Target(limit, column="aioflow"), other=BASELINE)


COMPILING_ROWS = (optimizing, placing, a_known_step)


if __name__ == "__main__":
    program("compiling", __doc__, COMPILING_ROWS)
