"""`python -m benchmarks.lag`: the delay of timers in the event loop while a network trains in the same loop.

It is measured alone on the machine, and beside two other busy processes. A setting of kernel threads that is good alone
may block the loop on a loaded machine: a thread that holds the interpreter lock and gets no processor delays the loop.
Each measurement runs in its own process, with asyncio's loop and uvloop, with and without oneDNN's kernels.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.kernels import NUMPY_ALONE, fresh_environment, have_onednn
from benchmarks.tables import Cell, Quantity, Row, Target, program, seconds

__all__ = ["LAG_ROWS", "Lag", "lag_row", "lag_samples", "print_lag"]

_SECONDS: Final = 6.0
_BUSY: Final = 2  # other processes
_LOOPS: Final = ("asyncio", "uvloop")
_NUMPY: Final = "NumPy alone"
_TARGETS: Final = {"oneDNN": 1e-3, _NUMPY: 2e-3}  # seconds, for the 99th percentile, alone on the machine


class Lag(NamedTuple):
    """The result: lags in seconds, training steps meanwhile, and the number of processors used by other processes."""

    p99: float
    most: float
    steps: int
    others: float


def print_lag(loop: str, seconds: float) -> None:
    """Print, as JSON, the lag of a loop of that name in this process."""
    import uvloop  # only this process needs it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        print(json.dumps(runner.run(_lag(seconds))))


async def _lag(seconds: float) -> Lag:
    import aioflow as af  # imported here, after the environment has selected the kernels
    from benchmarks.cases import mlp_training

    with af.Graph().as_default():
        fetches, feeds = mlp_training(1024, 512)(af)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            for _ in range(3):
                await session.run(fetches, feeds)
            steps, done = 0, asyncio.Event()

            async def train() -> None:
                nonlocal steps
                while not done.is_set():
                    await session.run(fetches, feeds)
                    steps += 1

            async with asyncio.TaskGroup() as tg:
                tg.create_task(train())
                begin, used = time.perf_counter(), _busy_seconds() - time.process_time()
                lags = await lag_samples(seconds)
                others = (_busy_seconds() - time.process_time() - used) / (time.perf_counter() - begin)
                done.set()
    return Lag(float(np.percentile(lags, 99)), max(lags), steps, others)


def _busy_seconds() -> float:
    """Return the processor time that all processes have used since boot, in seconds; NaN on other systems than Linux.

    Idle time and time that a hypervisor gave to other machines do not count.
    """
    if sys.platform != "linux":
        return math.nan
    with open("/proc/stat") as file:
        user, nice, system, _, _, interrupts, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


async def lag_samples(seconds: float, interval: float = 1e-3) -> list[float]:
    """Return the delays of a timer of `interval`, started repeatedly for `seconds`."""
    lags: list[float] = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        await asyncio.sleep(interval)
        lags.append(max(0.0, time.perf_counter() - now - interval))
    return lags


def lag_row(kernels: str, loop: str, busy: int) -> Row:
    """Return a row of the table for these kernels and this loop, beside `busy` busy processes."""
    with _busy_processes(busy):
        lag = _in_a_process(kernels, loop)
    beside = f", beside {busy} busy processes" if busy else ""
    cells: dict[str, Cell] = {
        "99th percentile": seconds(lag.p99),
        "longest": seconds(lag.most),
        "steps": Quantity(lag.steps),
        "processors used by others": f"{lag.others:.1f}",
    }
    targets = () if busy else (Target(_TARGETS[kernels], column="99th percentile"),)
    return Row(f"{loop}, {kernels}{beside}", cells, targets)


def _in_a_process(kernels: str, loop: str) -> Lag:
    done = subprocess.run(
        [sys.executable, "-c", f"from benchmarks.lag import print_lag\nprint_lag({loop!r}, {_SECONDS})"],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=fresh_environment() | (NUMPY_ALONE if kernels == _NUMPY else {}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return Lag(*json.loads(done.stdout))


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Run `count` other processes that compute without pause during the block."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)  # before `Popen.__exit__` waits for it
        yield


LAG_ROWS: tuple[Callable[[], Row], ...] = tuple(
    partial(lag_row, kernels, loop, busy)
    for kernels in _TARGETS
    if have_onednn() or kernels == _NUMPY
    for busy in (0, _BUSY)
    for loop in _LOOPS
)

if __name__ == "__main__":
    program("lag", __doc__, LAG_ROWS)
