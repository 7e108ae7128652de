"""Gains from fusion: elementwise chains against NumPy, a convolution net with each fusion on and off, peak memory.

Peak memory is that of a training step in the given order and in the order that needs less. The second column is the
baseline of the row, here not TensorFlow. Rounds alternate, and medians are reported.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import aioflow as af
from aioflow.compiler.optimize.order_memory import order_memory, peak_bytes
from aioflow.compiler.optimize.passes import ORDER_MEMORY, PASSES
from aioflow.compiler.prune import StepRequest, prune
from aioflow_numpy.compiled.wanted import BACKGROUND
from aioflow_numpy.threads import thread_count
from benchmarks.roofline import measured_peak
from benchmarks.tables import BASELINE, Quantity, Row, Target, beside, program, seconds

__all__ = ["FUSION_ROWS"]

_ROUNDS = 21
_CHAIN = 2_500_000  # elements
_CHAIN_TARGETS = {True: 3, False: 1.6}  # with all threads, and with one
_NONE = {p.name: False for p in PASSES} | {ORDER_MEMORY: False}
_FUSIONS: Mapping[str, Sequence[str]] = {
    "no fusion": (),
    "bias and activation": ("fuse_bias",),
    "elementwise chains": ("fuse_elementwise",),
    "batch norm folded": ("fold_batch_norm",),
    "all three": ("fuse_bias", "fuse_elementwise", "fold_batch_norm"),
}


def config(*passes: str) -> af.SessionConfig:
    """Return a configuration with these passes only."""
    return af.SessionConfig(optimizations=_NONE | dict.fromkeys(passes, True))


async def alternate(steps: Mapping[str, Callable[[], Awaitable[Any]]], repeats: int = 1) -> dict[str, float]:
    """Return the median time of each step in seconds, over rounds in which each step in turn runs `repeats` times."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        await step()
    for _ in range(_ROUNDS):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(repeats):
                await step()
            times[name].append((time.perf_counter() - started) / repeats)
    return {name: median(found) for name, found in times.items()}


# -- ten operations on 10 MB -------------------------------------------------------------------------------------------


def gated(m: Any, x: Any, y: Any) -> Any:
    """Build ten operations of an activated, gated sum, four of them with both inputs."""
    z = m.maximum((x + y) * 0.5, 0.0) + y
    return m.minimum(m.square(z * x - 0.3), 4.0) * y + x


def gated_in_place(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Compute the same in NumPy, one operation after another, all in one buffer."""
    half, zero, shift, limit = (np.float32(v) for v in (0.5, 0.0, 0.3, 4.0))
    np.add(x, y, out=out)
    np.multiply(out, half, out=out)
    np.maximum(out, zero, out=out)
    np.add(out, y, out=out)
    np.multiply(out, x, out=out)
    np.subtract(out, shift, out=out)
    np.square(out, out=out)
    np.minimum(out, limit, out=out)
    np.multiply(out, y, out=out)
    np.add(out, x, out=out)
    return out


def chain(threads: bool) -> Row:
    """Time the chain against NumPy with `out=`."""
    times, uncompiled = asyncio.run(_chain(threads))
    ratio, target = times["numpy"] / times["fused"], _CHAIN_TARGETS[threads]
    peak, rate = measured_peak().bytes, 3 * 4 * _CHAIN / times["fused"]  # two arrays are read and one is written
    used = "all threads" if threads else "one thread"
    name = f"chain of 10 elementwise ops on 10 MB, {used}, against NumPy with `out=`"
    note = (
        f"{times['numpy'] / uncompiled:.2f}× before it is compiled; "
        f"{rate / 1e9:.1f} GB/s, {rate / (peak.all if threads else peak.one):.2f} of copies'"
    )
    ours, theirs = seconds(times["fused"], note), seconds(times["numpy"])
    return beside(name, ours, theirs, Target(least=target), other=BASELINE, ratio=ratio)


async def _chain(threads: bool) -> tuple[dict[str, float], float]:
    """Return the times of NumPy and of the fused chain, and the time of the chain before it is compiled."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(_CHAIN).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    count = thread_count if threads else lambda: 1
    with af.Graph().as_default(), patch("aioflow_numpy.fused_blocks.thread_count", count):
        x, y = af.placeholder(af.float32, [None]), af.placeholder(af.float32, [None])
        z = gated(af, x, y)
        async with af.Session(config=config("fuse_elementwise")) as ours:

            async def plain() -> np.ndarray:
                return gated_in_place(a, b, out)

            async def fused() -> np.ndarray:
                made: np.ndarray = await ours.run(z, {x: a, y: b})
                return made

            if not np.array_equal(await fused(), await plain()):
                raise RuntimeError("the chain gives other values than NumPy")
            with patch("aioflow_numpy.compiled.blocks._WORTH", float("inf")):
                uncompiled = (await alternate({"numpy": plain, "fused": fused}, repeats=2))["fused"]
            await fused()  # this call starts the compilation
            while not BACKGROUND.wait(_ROUNDS):
                pass
            if (await fused()).tobytes() != (await plain()).tobytes():
                raise RuntimeError("the compiled chain gives other values than NumPy")
            return await alternate({"numpy": plain, "fused": fused}, repeats=10), uncompiled


# -- a convolution net -------------------------------------------------------------------------------------------------


def residual_net(m: Any, image: Any) -> Any:
    """Build the logits of a small residual network: a stem and six blocks of two convolutions, each normalized."""
    rng = np.random.default_rng(0)

    def convolved(x: Any, outputs: int, size: int, stride: int) -> Any:
        inputs = x.shape.as_list()[3]
        kernel = rng.standard_normal((size, size, inputs, outputs)) / np.sqrt(size * size * inputs)
        made = m.nn.conv2d(x, m.constant(kernel.astype(np.float32)), strides=[1, stride, stride, 1], padding="SAME")
        scale, offset, mean = (m.constant(rng.standard_normal(outputs).astype(np.float32) / 4 + v) for v in (1, 0, 0))
        variance = m.constant(rng.random(outputs).astype(np.float32) + 0.5)
        return m.nn.fused_batch_norm(made, scale, offset, mean, variance, is_training=False)[0]

    def block(x: Any, outputs: int, stride: int) -> Any:
        shortcut = x if stride == 1 else convolved(x, outputs, 1, stride)
        inner = m.nn.relu(convolved(x, outputs, 3, stride))
        return m.nn.relu(convolved(inner, outputs, 3, 1) + shortcut)

    y = m.nn.relu(convolved(image, 32, 3, 2))
    for outputs, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        y = block(y, outputs, stride)
    weights = m.constant(rng.standard_normal((128, 100)).astype(np.float32))
    return m.nn.bias_add(m.matmul(m.reduce_mean(y, axis=[1, 2]), weights), m.zeros([100]))


def inference() -> Row:
    """Time an inference step with each fusion, and measure how far folding changes the result."""
    times, moved = asyncio.run(_inference())
    whole = times["no fusion"]
    shares = ", ".join(f"{name} {times[name] / whole:.3f}" for name in list(_FUSIONS)[1:-1])
    ours = seconds(times["all three"], f"{shares} of the time; folding moves {moved:.0e}")
    name = "residual net of 15 convolutions, batch 8, no fusion and all"
    return beside(name, ours, seconds(whole), Target(1), other=BASELINE)


async def _inference() -> tuple[dict[str, float], float]:
    value = np.random.default_rng(1).random((8, 96, 96, 3)).astype(np.float32)
    with af.Graph().as_default():
        image = af.placeholder(af.float32, [None, 96, 96, 3])
        logits = residual_net(af, image)
        sessions = {name: af.Session(config=config(*passes)) for name, passes in _FUSIONS.items()}
        steps = {name: _step(session, logits, {image: value}) for name, session in sessions.items()}
        exact, folded = await steps["no fusion"](), await steps["batch norm folded"]()
        times = await alternate(steps)
        for session in sessions.values():
            await session.close()
    return times, float(np.abs(folded - exact).max() / np.abs(exact).max())


def _step(session: af.Session, fetches: Any, feeds: Mapping[Any, Any]) -> Callable[[], Awaitable[Any]]:
    async def step() -> Any:
        return await session.run(fetches, feeds)

    return step


# -- memory ------------------------------------------------------------------------------------------------------------


def order() -> Row:
    """Measure the peak memory of a gradient-descent step in the given order and in the order that needs less."""
    (given, ordered), (estimate, better) = asyncio.run(_order())
    theirs = Quantity(given / 2**20, "MiB")
    ours = Quantity(ordered / 2**20, "MiB", f"estimated {better / estimate:.2f} times as much")
    name = "training step of ten layers, peak memory in the given order and ordered"
    return beside(name, ours, theirs, Target(1), other=BASELINE)


async def _order() -> tuple[list[float], tuple[int, int]]:
    rng = np.random.default_rng(0)
    peaks: list[float] = []
    with af.Graph().as_default():
        x = y = af.placeholder(af.float32, [256, 512])
        for _ in range(10):
            weight = af.Variable((rng.standard_normal((512, 512)) / 23).astype(np.float32))
            y = af.tanh(af.matmul(y, weight))
        step = af.train.GradientDescentOptimizer(0.01).minimize(af.reduce_mean(af.square(y)))
        graph = prune(StepRequest((x,), (), (step,)))
        estimates = peak_bytes(graph, 256), peak_bytes(order_memory(graph, lambda *_: None), 256)
        value = rng.standard_normal((256, 512)).astype(np.float32)
        for passes in ((), (ORDER_MEMORY,)):
            async with af.Session(config=config(*passes)) as session:
                await session.run(af.global_variables_initializer())
                peaks.append(min([await _peak(_step(session, step, {x: value})) for _ in range(3)]))
    return peaks, estimates


async def _peak(step: Callable[[], Awaitable[Any]]) -> float:
    """Return the peak allocation of a step, in bytes."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await step()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


def chain_in_threads() -> Row:
    """Time the chain with all threads."""
    return chain(True)


def chain_in_one_thread() -> Row:
    """Time the chain with one thread."""
    return chain(False)


FUSION_ROWS: tuple[Callable[[], Row], ...] = (chain_in_threads, chain_in_one_thread, inference, order)

if __name__ == "__main__":
    program("fusion", __doc__, FUSION_ROWS)
