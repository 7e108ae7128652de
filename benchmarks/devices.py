"""Multi-device costs in one process: two concurrent branches, and a Send with its Recv.

`python -m benchmarks.devices branches` times the branches in this process. The table runs it in a child process whose
BLAS has one thread, since the thread count is fixed when NumPy is imported.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from statistics import median

import aioflow as af  # before NumPy, so that its backends may prepare it
from benchmarks.tables import BASELINE, Row, Target, beside, program, seconds

# isort: split
import numpy as np

__all__ = ["DEVICE_ROWS"]

_ROUNDS = 9


def two_branches() -> Row:
    """Time two chains of four products of 1,024² matrices on two devices and on one, each with one thread."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.devices", "branches"]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    one, two = json.loads(done.stdout)
    name = "two chains of 1,024² products, one CPU device ÷ two"
    return beside(name, seconds(two), seconds(one), Target(least=1.7), other=BASELINE, ratio=one / two)


async def _branches() -> tuple[float, float]:
    """Return the seconds of a step on one device and on two, as medians of alternating rounds."""
    sessions = [(af.Session(graph=graph, config=config), *built) for config, graph, *built in map(_chains, (1, 2))]
    times: list[list[float]] = [[], []]
    data = (np.random.default_rng(0).standard_normal((1024, 1024)) / 32).astype(np.float32)
    for _ in range(_ROUNDS + 1):
        for (session, x, ends), found in zip(sessions, times, strict=True):
            started = time.perf_counter()
            await session.run(ends, {x: data})
            found.append(time.perf_counter() - started)
    one, two = (median(found[1:]) for found in times)
    return one, two


def _chains(devices: int) -> tuple[af.SessionConfig, af.Graph, af.Tensor, list[af.Operation]]:
    graph = af.Graph()
    with graph.as_default():
        x = af.placeholder(af.float32, [1024, 1024])
        ends = []
        for branch in range(2):
            with af.device(f"/cpu:{branch % devices}"):
                y = x * float(branch + 1)  # differ, since identical chains would be computed once
                for _ in range(4):
                    y = af.matmul(y, x)
                ends.append(af.reduce_sum(y).op)
    return af.SessionConfig(device_count={"CPU": devices}, threads=1), graph, x, ends


def send_and_recv() -> Row:
    """Time a chain of 41 small nodes that changes device at each node, minus the same chain on one device, per change.

    The result is processor time, since wall time depends on other load on the cores.
    """
    pair = seconds(asyncio.run(_send_and_recv()))
    return beside("a local Send with its Recv", pair, target=Target(6e-6, column="aioflow"), other=BASELINE)


async def _send_and_recv(nodes: int = 41, steps: int = 60) -> float:
    sessions = []
    for devices in (1, 2):
        graph = af.Graph()
        with graph.as_default():
            x = y = af.placeholder(af.float32, [4])
            for i in range(nodes):
                with af.device(f"/cpu:{i % devices}"):
                    y = af.exp(y) * 0.0
        config = af.SessionConfig(device_count={"CPU": 2}, optimizations=False)
        sessions.append((af.Session(graph=graph, config=config), x, y))
    times: list[list[float]] = [[], []]
    data = np.ones(4, np.float32)
    for _ in range(_ROUNDS + 1):
        for (session, x, y), found in zip(sessions, times, strict=True):
            started = time.process_time()
            for _ in range(steps):
                await session.run(y, {x: data})
            found.append((time.process_time() - started) / steps)
    one, two = (median(found[1:]) for found in times)
    return (two - one) / (nodes - 1)


DEVICE_ROWS = (two_branches, send_and_recv)


if __name__ == "__main__":
    if sys.argv[1:] == ["branches"]:
        print(json.dumps(asyncio.run(_branches())))
    else:
        program("devices", __doc__, DEVICE_ROWS)
