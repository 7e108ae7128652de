"""An embedding table on two parameter servers, trained by a worker that only reads the rows it needs.

The task is to order numbers: each has a vector, and a small network on the vectors of two numbers predicts which one is
larger. The table has two parts, one on each parameter server. A step sends row numbers there, receives those rows, and
sends their gradients back. In a checkpoint the parts are one tensor, so the example restores it on a single task.

All tasks are servers in this process, so the example needs no other process. `python -m aioflow.worker` runs the same
tasks as processes, without changes to the session.

    python examples/sharded_embedding.py
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

import aioflow as af

STEPS = 300
BATCH = 256
ROWS = 200
WIDTH = 8


class Model:
    """A model that predicts which of two numbers is larger: the loss, a training step, and the accuracy."""

    def __init__(self, parts: int) -> None:
        self.pairs = af.placeholder(af.int64, [None, 2])
        self.table = af.get_variable("table", [ROWS, WIDTH], partitioner=af.fixed_size_partitioner(parts))
        rows = af.nn.embedding_lookup(self.table, self.pairs, partition_strategy="div")
        first, second = af.unstack(rows, axis=1)
        weights = af.get_variable("weights", [WIDTH, 1])
        logits = af.squeeze(af.matmul(first - second, weights), [1])
        larger = self.pairs[:, 0] > self.pairs[:, 1]
        labels = af.cast(larger, af.float32)
        self.loss = af.reduce_mean(af.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        self.train = af.train.AdagradOptimizer(0.3).minimize(self.loss)
        self.right = af.reduce_mean(af.cast(af.equal(logits > 0.0, larger), af.float32))


async def main(steps: int = STEPS) -> float:
    """Train on the cluster, and return the accuracy after restoring the checkpoint on one task."""
    rng = np.random.default_rng(0)
    addresses = [free_address() for _ in range(3)]
    cluster = {"ps": addresses[:2], "worker": addresses[2:]}
    with tempfile.TemporaryDirectory() as folder:
        path = await train(cluster, steps, rng, f"{folder}/model")
        with af.Graph().as_default():
            model = Model(parts=1)
            async with af.Session() as session:
                await af.train.Saver().restore(session, path)
                right = float(await session.run(model.right, {model.pairs: pairs(rng, 2000)}))
    print(f"{right:.1%} of the pairs in order after {steps} steps")
    return right


async def train(cluster: Mapping[str, list[str]], steps: int, rng: np.random.Generator, path: str) -> str:
    """Train with the table on two parameter servers, and return the path of the checkpoint."""
    with af.Graph().as_default():
        with af.device(af.train.replica_device_setter(cluster=cluster)):
            model = Model(parts=2)
        for part in model.table:
            print(f"{part.name} {part.shape} on {part.device}")
        async with AsyncExitStack() as running:
            for task in (0, 1):
                await running.enter_async_context(af.train.Server(cluster, "ps", task))
            task_0 = af.train.Server(
                cluster, "worker", 0, allow_dirs=[Path(path).parent]
            )  # this task writes the checkpoint
            worker = await running.enter_async_context(task_0)
            session = await running.enter_async_context(af.Session(worker.target))
            await session.run(af.global_variables_initializer())
            step = session.make_callable([model.loss, model.train], [model.pairs])
            for number in range(steps):
                loss, _ = await step(pairs(rng, BATCH))
                if number % 100 == 0:
                    print(f"step {number}: loss {loss:.3f}")
            return str(await af.train.Saver().save(session, path))


def pairs(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return pairs of different numbers."""
    first = rng.integers(0, ROWS, count)
    return np.stack([first, (first + rng.integers(1, ROWS, count)) % ROWS], axis=1)


def free_address() -> str:
    """Return an unused address of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


if __name__ == "__main__":
    asyncio.run(main())
