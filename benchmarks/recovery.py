"""`python -m benchmarks.recovery`: the time from the kill of a parameter server to the first step after recovery.

The server process is killed by SIGKILL during training and immediately restarted on the same port, empty. A
`MonitoredTrainingSession` trains in this process. It detects the failure, waits for the server, restores the last
checkpoint, and continues.

The time runs from the kill to the first applied step. It includes the start of the new process with Python and its
imports, which is also reported separately. Its processor time is printed as well, which depends less on other load.
`--megabytes` adds a variable of that size to the restored state.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import psutil

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.worker import loop_factory
from benchmarks.tables import Printer, Row, Target, seconds

TARGET: Final = 3.0  # seconds
STEPS: Final = 40  # before each kill
SAVED_EVERY: Final = 20

Step = Callable[[], Awaitable[int]]


class Recovered(NamedTuple):
    """Seconds from the kill until the new process serves, and until the first step has been applied.

    Attributes:
        serves: Seconds until the new process serves.
        busy: Processor seconds of the new process until it serves.
        first_step: Seconds until the first step has been applied.
    """

    serves: float
    busy: float
    first_step: float


class Server:
    """The parameter server's process."""

    def __init__(self, cluster: dict[str, list[str]]) -> None:
        jobs = [text for job, (address,) in cluster.items() for text in ("--cluster", f"{job}={address}")]
        self._command = ("-m", "aioflow.worker", *jobs, "--job", "ps", "--task", "0")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> tuple[float, float]:
        """Start the process and wait until it serves. Return the time at that moment and the processor seconds used."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, stdout=asyncio.subprocess.PIPE
        )
        if self._process.stdout is None or b"serves" not in await self._process.stdout.readline():
            raise RuntimeError("the server has not started")
        times = psutil.Process(self._process.pid).cpu_times()
        return time.perf_counter(), float(times.user + times.system)

    async def kill(self) -> float:
        """Kill the process and return the time of the kill."""
        if self._process is None:
            raise RuntimeError("there is no server")
        killed = time.perf_counter()
        os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        return killed


def build(megabytes: int) -> af.Tensor:
    """Build a training step of 784-128-10 on random data, with the variables on the server.

    Returns:
        The number of steps that the variables contain.
    """
    rng = np.random.default_rng(0)
    device = af.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")
    with af.device(device):
        images = af.constant(rng.random((100, 784), np.float32))
        labels = af.constant(rng.integers(0, 10, 100).astype(np.int32))
        first = af.get_variable("first", initializer=(rng.standard_normal((784, 128)) / 28).astype(np.float32))
        second = af.get_variable("second", initializer=(rng.standard_normal((128, 10)) / 11).astype(np.float32))
        logits = af.matmul(af.nn.relu(af.matmul(images, first)), second)
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        if megabytes:
            af.get_variable("ballast", [megabytes, 1 << 18], initializer=af.zeros_initializer(), trainable=False)
        count = af.train.get_or_create_global_step()
        with af.control_dependencies([af.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=count)]):
            return count.read_value()


@asynccontextmanager
async def training(target: str, folder: Path, megabytes: int) -> AsyncIterator[Step]:
    """Yield a step of monitored training, which recovers by itself and returns the number of steps in the variables."""
    train = build(megabytes)
    async with af.train.MonitoredTrainingSession(
        target, checkpoint_dir=folder, save_checkpoint_steps=SAVED_EVERY
    ) as session:

        async def step() -> int:
            return int(await session.run(train))

        yield step


async def measure(rounds: int, megabytes: int) -> list[Recovered]:
    """Train, kill and recover, `rounds` times."""
    addresses = free_addresses(2)
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    found = []
    server = Server(cluster)
    await server.start()
    try:
        with tempfile.TemporaryDirectory() as folder, af.Graph().as_default():
            async with (
                af.train.Server(cluster, "worker", 0) as worker,
                training(worker.target, Path(folder), megabytes) as step,
            ):
                for _ in range(rounds):
                    for _ in range(STEPS):
                        before = await step()
                    killed = await server.kill()
                    async with asyncio.TaskGroup() as group:
                        serves = group.create_task(server.start())
                        after = await step()
                        ended = time.perf_counter()
                    check(before, after)
                    served, busy = serves.result()
                    found.append(Recovered(served - killed, busy, ended - killed))
    finally:
        await server.kill()
    return found


def check(before: int, after: int) -> None:
    """Check that training continued from one of the last two checkpoints; the latest may be incomplete.

    Raises:
        RuntimeError: the training restarted, or counted steps that were not run.
    """
    if not before - 2 * SAVED_EVERY < after <= before + 1:
        raise RuntimeError(f"{before} steps before the kill, {after} after the first step of the recovery")


def row(megabytes: int, found: list[Recovered]) -> Row:
    """Return a row of the table."""
    middle, worst = median(r.first_step for r in found), max(r.first_step for r in found)
    serves, busy = median(r.serves for r in found), median(r.busy for r in found)
    ballast = f", {megabytes} MB more to restore" if megabytes else ""
    cells = {
        "median": seconds(middle),
        "longest": seconds(worst),
        "of this the new process": seconds(serves, f"processor time {seconds(busy)}"),
    }
    case = f"from a killed ps, restarted at once, to the first step after recovery{ballast}"
    return Row(case, cells, (Target(TARGET, column="longest"),))


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=0, help="of a variable besides the model's")
    Printer.add_options(parser)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(measure(options.rounds, options.megabytes))
    Printer(options).row(row(options.megabytes, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
