"""Training that continues after its parameter server was killed: checkpoints, hooks, and input with a position.

A parameter server, which is a separate process, holds the variables. Halfway it is killed and restarted, empty. The
monitored session detects the failure, creates a new session, restores the last checkpoint and continues with its batch.
The result is the same as without the failure, and each batch counts once.

    python examples/monitored_training.py
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits

STEPS = 240
BATCH = 64
KILLED_AT = 130  # a step
SAVED_EVERY = 40


@dataclass(frozen=True)
class Report:
    """The result of the training.

    Attributes:
        accuracy: Fraction of the test digits that are predicted correctly.
        steps: Global step at the end.
        counted: Number of updates by each batch that the variables contain.
        restored: Step of the checkpoint from which training continued; None if nothing was killed.
        weights: Weights at the end.
    """

    accuracy: float
    steps: int
    counted: list[int]
    restored: int | None
    weights: np.ndarray[Any, Any]


class Model:
    """A classifier whose variables are on the parameter server, with a count of the batches that trained it."""

    def __init__(self) -> None:
        self.images, self.labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int64, [None])
        self.number = af.placeholder(af.int32, [])
        with af.device("/job:ps"):
            self.weights = af.Variable(np.zeros((64, 10), np.float32), name="weights")
            bias = af.Variable(np.zeros(10, np.float32), name="bias")
            self.counted = af.Variable(np.zeros(STEPS, np.int32), trainable=False, name="counted")
            self.step = af.train.get_or_create_global_step()
        logits = af.matmul(self.images, self.weights) + bias
        self.loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits))
        self.right = af.reduce_mean(af.cast(af.equal(af.argmax(logits, 1), self.labels), af.float32))
        update = af.train.AdamOptimizer(0.01).minimize(self.loss, self.step)
        self.train = af.group(update, af.scatter_add(self.counted, self.number, 1))

    def batches(self, training: Digits, start: int) -> Iterator[dict[Any, Any]]:
        """Yield the feeds of the steps from `start` on; the batch of a step depends only on its number."""
        for number in range(start, STEPS):
            some = np.random.default_rng(number).integers(0, len(training), BATCH)
            yield {self.images: training.images[some], self.labels: training.labels[some], self.number: number}


class Restores(af.train.SessionRunHook):
    """A hook that records the step at which each session starts."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    async def after_create_session(self, session: Any, coord: Any) -> None:
        self.steps.append(int(await session.run(af.train.get_global_step())))


async def main(kill: bool = True) -> Report:
    """Train, and kill the parameter server halfway."""
    training, tests = load_digits().split()
    address = free_address()
    restores = Restores()
    with tempfile.TemporaryDirectory() as folder, af.Graph().as_default():
        model = Model()
        final = af.train.FinalOpsHook(
            [model.right, model.step, model.counted, model.weights],
            {model.images: tests.images, model.labels: tests.labels},
        )
        source = af.train.SeekableFeeds(lambda start: model.batches(training, start))
        async with AsyncExitStack() as servers:
            server = await servers.enter_async_context(parameter_server(address, folder))
            async with af.train.MonitoredTrainingSession(
                f"aioflow://{address}",
                checkpoint_dir=Path(folder),
                save_checkpoint_steps=SAVED_EVERY,
                hooks=[restores, final, af.train.NanTensorHook(model.loss)],
                input=af.train.CheckpointedInput(source),
            ) as session:
                while not session.should_stop():  # until the batches end
                    step, _ = await session.run([model.step, model.train])
                    if kill and step >= KILLED_AT:
                        kill = False
                        server.kill()
                        await server.wait()
                        print(f"the server was killed at step {step}", flush=True)
                        server = await servers.enter_async_context(parameter_server(address, folder))
    accuracy, steps, counted, weights = final.final_ops_values
    restored = restores.steps[-1] if len(restores.steps) > 1 else None
    if restored is not None:
        print(f"training went on at step {restored}, that of the last checkpoint")
    times = sorted(set(counted.tolist()))
    print(f"{accuracy:.1%} of the test digits right after {steps} steps; each batch counts {times} times")
    return Report(float(accuracy), int(steps), counted.tolist(), restored, weights)


@asynccontextmanager
async def parameter_server(address: str, folder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a server process at this address during the block; it may write checkpoints to `folder`."""
    arguments = ["-m", "aioflow.worker", "--cluster", f"ps={address}", "--job", "ps", "--task", "0"]
    arguments += ["--allow-dir", folder]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is not None:
            await process.stdout.readline()  # the line that reports that it serves
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_address() -> str:
    """Return an unused address of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


if __name__ == "__main__":
    asyncio.run(main())
