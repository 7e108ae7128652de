"""Training steps in processes that import NumPy before aioflow, and in processes that import it after.

`python -m benchmarks.import_order` prints only these rows. OpenBLAS reads its settings when NumPy is imported, so
aioflow can set them only if it is imported first. Steps must not be slower otherwise. Processor time is reported, too:
it reveals threads that spin, and hardly depends on other load.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.kernels import fresh_environment
from benchmarks.tables import BASELINE, Row, Target, beside, program, seconds

__all__ = ["IMPORT_ORDER_ROWS", "measure"]

_ROUNDS = 5
_SECONDS = 2.0  # duration of the steps in one process
_ORDERS = ("numpy, aioflow", "aioflow, numpy")


def step(name: str, hidden: int, batch: int) -> Row:
    """Time a training step with either order of imports: medians over alternating fresh processes."""
    found: dict[str, list[tuple[float, float]]] = {order: [] for order in _ORDERS}
    for i in range(_ROUNDS):
        for order in _ORDERS if i % 2 else reversed(_ORDERS):
            found[order].append(_in_a_process(order, hidden, batch))
    (first, first_busy), (second, second_busy) = (
        (median(elapsed), median(busy)) for elapsed, busy in (zip(*found[order], strict=True) for order in _ORDERS)
    )
    note = f"processor time {first_busy / second_busy:.3f} times as much"
    ours, target = seconds(second), Target(1.05, 1 / 1.05)
    name = f"{name}, NumPy imported first ÷ aioflow first"
    return beside(name, ours, seconds(first, note), target, other=BASELINE, ratio=first / second)


def _in_a_process(order: str, hidden: int, batch: int) -> tuple[float, float]:
    code = f"import {order}\nfrom benchmarks.import_order import measure\nmeasure({hidden}, {batch})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=fresh_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    elapsed, busy = json.loads(done.stdout)
    return elapsed, busy


def measure(hidden: int, batch: int) -> None:
    """Print the medians of a step's wall time and processor time, in seconds, in this process."""
    print(json.dumps(asyncio.run(_measure(hidden, batch))))


async def _measure(hidden: int, batch: int) -> tuple[float, float]:
    import aioflow as af  # already imported, in the order to measure
    from benchmarks.cases import mlp_training

    with af.Graph().as_default():
        fetches, feeds = mlp_training(hidden, batch)(af)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            for _ in range(5):
                await session.run(fetches, feeds)
            elapsed, busy, end = [], [], time.perf_counter() + _SECONDS
            while time.perf_counter() < end:
                started, used = time.perf_counter(), time.process_time()
                await session.run(fetches, feeds)
                elapsed.append(time.perf_counter() - started)
                busy.append(time.process_time() - used)
    return median(elapsed), median(busy)


IMPORT_ORDER_ROWS: tuple[Callable[[], Row], ...] = (
    partial(step, "MLP 784-512-512-10, training step, batch 128", 512, 128),
    partial(step, "MLP 784-1024-1024-10, training step, batch 1024", 1024, 1024),
)

if __name__ == "__main__":
    program("import_order", __doc__, IMPORT_ORDER_ROWS)
