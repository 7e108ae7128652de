"""Figures other than ratios of step times: import time, peak memory, and waiting nodes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from statistics import median

import numpy as np

import aioflow as af
from benchmarks.tables import BASELINE, Quantity, Row, Target, beside, seconds

__all__ = ["RESOURCE_ROWS"]


def import_time() -> Row:
    """Measure the seconds from the start of Python to the end of the import, less those of Python alone."""
    times: dict[str, list[float]] = {"pass": [], "import aioflow": [], "import tensorflow": []}
    with tempfile.TemporaryDirectory() as cache:
        # Both load compiled bytecode, as after any first import. A separate cache folder works even if writing
        # bytecode is disabled.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for _ in range(6):
            for code, found in times.items():
                started = time.perf_counter()
                command = [sys.executable, "-W", "ignore", "-c", code]
                subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=environment)
                found.append(time.perf_counter() - started)
    bare, ours, theirs = (median(t[1:]) for t in times.values())
    return beside("`import`", seconds(ours - bare), seconds(theirs - bare), Target(0.1), other=BASELINE)


def peak_memory() -> Row:
    """Measure the peak of 100 chained elementwise operations on 100 MB, beyond the input, in arrays."""
    return asyncio.run(_peak_memory())


async def _peak_memory() -> Row:
    with af.Graph().as_default():
        x = y = af.placeholder(af.float32, [None])
        for i in range(100):
            y = af.tanh(y) if i % 4 == 3 else y * 1.0001 if i % 2 else y + 0.5
        data = np.ones(25_000_000, np.float32)
        async with af.Session() as session:
            await session.run(y, {x: data[:10]})
            tracemalloc.start()
            await session.run(y, {x: data})
            peak = tracemalloc.get_traced_memory()[1] / data.nbytes
            tracemalloc.stop()
    name = "100 elementwise ops on 100 MB, peak over the input"
    return beside(name, Quantity(peak, "arrays"), target=Target(2, column="aioflow"), other=BASELINE)


def coroutine_nodes() -> Row:
    """Time a step of 1,000 `py_coroutine` nodes, each of which sleeps for 50 ms."""
    taken = seconds(asyncio.run(_coroutine_nodes()))
    name = "1,000 coroutine nodes that sleep 50 ms each"
    return beside(name, taken, target=Target(0.2, column="aioflow"), other=BASELINE)


async def _coroutine_nodes() -> float:
    async def nap(x: np.ndarray) -> np.ndarray:
        await asyncio.sleep(0.05)
        return x

    times = []
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [])
        total = af.add_n([af.py_coroutine(nap, [x], af.float32) for _ in range(1000)])
        async with af.Session() as session:
            for _ in range(11):
                started = time.perf_counter()
                await session.run(total, {x: 1.0})
                times.append(time.perf_counter() - started)
    return median(times)


RESOURCE_ROWS: tuple[Callable[[], Row], ...] = (import_time, peak_memory, coroutine_nodes)
