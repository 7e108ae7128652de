"""A model in two halves, the lower on one task of a cluster and the upper on another, trained as one graph.

Both tasks are servers in this process, so the example needs no other process. `python -m aioflow.worker` runs the same
tasks as processes, without changes to the session. Activations and gradients are sent between the halves in 16 bits.

    python examples/two_tasks.py
"""

from __future__ import annotations

import asyncio
import socket

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits

STEPS = 150
BATCH = 128
HIDDEN = 96


def build() -> tuple[af.Tensor, af.Tensor, af.Operation, af.Tensor]:
    """Build the model; return images, labels, a training step, and the fraction of correctly predicted labels."""
    rng = np.random.default_rng(0)
    images, labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int64, [None])
    with af.device("/job:lower/task:0"):
        first = af.Variable((rng.standard_normal((64, HIDDEN)) / 8).astype(np.float32), name="first")
        hidden = af.compressed(af.nn.relu(af.matmul(images, first)), "bfloat16")
    with af.device("/job:upper/task:0"):
        second = af.Variable((rng.standard_normal((HIDDEN, 10)) / 10).astype(np.float32), name="second")
        logits = af.matmul(hidden, second)
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        right = af.reduce_mean(af.cast(af.equal(af.argmax(logits, 1), labels), af.float32))
    return images, labels, af.train.AdamOptimizer(0.003).minimize(loss), right


def free_address() -> str:
    """Return an unused address of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


async def main(steps: int = STEPS) -> float:
    """Train, and return the accuracy on the test digits."""
    training, tests = load_digits().split()
    batches = np.random.default_rng(1)
    cluster = af.train.ClusterSpec({"lower": [free_address()], "upper": [free_address()]})
    with af.Graph().as_default():
        images, labels, train, right = build()
        async with (
            af.train.Server(cluster, "upper", 0),
            af.train.Server(cluster, "lower", 0) as lower,
            af.Session(lower.target) as session,
        ):
            await session.run(af.global_variables_initializer())
            for _ in range(steps):
                some = batches.integers(0, len(training), BATCH)
                await session.run(train, {images: training.images[some], labels: training.labels[some]}, timeout=10.0)
            share = float(await session.run(right, {images: tests.images, labels: tests.labels}))
    print(f"{share:.1%} of the test digits right after {steps} steps on two tasks")
    return share


if __name__ == "__main__":
    asyncio.run(main())
