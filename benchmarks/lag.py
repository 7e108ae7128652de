"""`python -m benchmarks.lag`: how late the event loop serves a timer while a network trains in the same loop.

Once alone on the machine, and once beside two other busy processes, since a setting of the kernels' threads that does
well in the one may stop the loop in the other: a thread that holds the interpreter's lock and gets no processor keeps
the loop waiting. Each in a process of its own, by asyncio's loop and by uvloop's, with oneDNN's kernels and without.
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

__all__ = ["LAG_ROWS", "Lag", "lag_row", "lag_samples", "print_lag"]

_SECONDS: Final = 6.0
_BUSY: Final = 2  # other processes
_LOOPS: Final = ("asyncio", "uvloop")
_NUMPY: Final = "NumPy alone"
_TARGETS: Final = {"oneDNN": 1e-3, _NUMPY: 2e-3}  # seconds, for the 99th percentile, alone on the machine


class Lag(NamedTuple):
    """What was measured; seconds, steps of training meanwhile, and processors that other processes have used."""

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
    import aioflow as af  # with the kernels that this process is to have
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
    """What all processes together have used of the processors since the machine began; the idle, and what the machine
    was not given, are not of it. NaN where only other systems than Linux would tell.
    """
    if sys.platform != "linux":
        return math.nan
    with open("/proc/stat") as file:
        user, nice, system, _, _, interrupts, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


async def lag_samples(seconds: float, interval: float = 1e-3) -> list[float]:
    """How late a timer of `interval` is, again and again for `seconds`."""
    lags: list[float] = []
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        await asyncio.sleep(interval)
        lags.append(max(0.0, time.perf_counter() - now - interval))
    return lags


def lag_row(kernels: str, loop: str, busy: int) -> str:
    """A line of the table: with these kernels, by this loop, beside so many busy processes."""
    with _busy_processes(busy):
        lag = _in_a_process(kernels, loop)
    beside = f", beside {busy} busy processes" if busy else ""
    figures = f"{lag.p99 * 1e3:.2f} ms | {lag.most * 1e3:.1f} ms | {lag.steps} | {lag.others:.1f}"
    target = None if busy else _TARGETS[kernels]
    verdict = "— | —" if target is None else f"≤ {target * 1e3:.0f} ms | {'yes' if lag.p99 <= target else '**no**'}"
    return f"| {loop}, {kernels}{beside} | {figures} | {verdict} |"


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
    """So many other processes that do not stop to compute while the block runs."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)  # before it is waited for
        yield


LAG_ROWS: tuple[Callable[[], str], ...] = tuple(
    partial(lag_row, kernels, loop, busy)
    for kernels in _TARGETS
    if have_onednn() or kernels == _NUMPY
    for busy in (0, _BUSY)
    for loop in _LOOPS
)

if __name__ == "__main__":
    print(
        "| the loop's lag | 99th percentile | longest | steps | processors used by others | target | reached |\n"
        "|---|---|---|---|---|---|---|"
    )
    for _row_of in LAG_ROWS:
        print(_row_of(), flush=True)
