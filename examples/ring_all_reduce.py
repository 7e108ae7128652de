"""Data-parallel training without a parameter server: each task has the whole model and a part of each batch.

The gradients of all tasks are averaged around a ring (`aioflow.distributed.all_reduce`), and each task applies the
average to its own copy. The copies start equal and receive the same bits in each step, so they stay equal. The tasks
are servers in this process, so the example needs no other process. `python -m aioflow.worker` runs them as processes.

    python examples/ring_all_reduce.py --tasks 3
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits

STEPS = 120
SHARE = 48  # of a batch, for each task


@dataclass(frozen=True)
class Replica:
    """The model on one task."""

    images: af.Tensor
    labels: af.Tensor
    weights: list[af.Variable]
    gradients: list[Any]
    right: af.Tensor


def build(task: int) -> Replica:
    """Build a network for 8×8 digits on one task. The weights of all tasks start with the same values."""
    rng = np.random.default_rng(0)
    with af.device(f"/job:worker/task:{task}"), af.name_scope(f"replica_{task}"):
        images, labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int64, [None])
        first = af.Variable((rng.standard_normal((64, 96)) / 8).astype(np.float32), name="first")
        second = af.Variable((rng.standard_normal((96, 10)) / 10).astype(np.float32), name="second")
        logits = af.matmul(af.nn.relu(af.matmul(images, first)), second)
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        right = af.reduce_mean(af.cast(af.equal(af.argmax(logits, 1), labels), af.float32))
        weights = [first, second]
        return Replica(images, labels, weights, af.gradients(loss, weights), right)


def update(replicas: list[Replica]) -> af.Operation:
    """Build a training step of all replicas."""
    averages = af.distributed.all_reduce([replica.gradients for replica in replicas], "mean")
    optimizer = af.train.AdamOptimizer(0.003)
    steps = []
    for task, (replica, gradients) in enumerate(zip(replicas, averages, strict=True)):
        with af.device(f"/job:worker/task:{task}"):
            steps.append(optimizer.apply_gradients(list(zip(gradients, replica.weights, strict=True))))
    return af.group(*steps)


def free_addresses(count: int) -> list[str]:
    """Return unused addresses of this machine."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


async def main(tasks: int = 3, steps: int = STEPS) -> list[float]:
    """Train, and return the accuracy of each task's copy on the test digits."""
    training, tests = load_digits().split()
    batches = np.random.default_rng(1)
    cluster = af.train.ClusterSpec({"worker": free_addresses(tasks)})
    async with AsyncExitStack() as stack:
        stack.enter_context(af.Graph().as_default())
        replicas = [build(task) for task in range(tasks)]
        train = update(replicas)
        servers = [await stack.enter_async_context(af.train.Server(cluster, "worker", t)) for t in range(tasks)]
        session = await stack.enter_async_context(af.Session(servers[0].target))
        await session.run(af.global_variables_initializer())
        for _ in range(steps):
            feeds: dict[af.Tensor, Any] = {}
            for replica in replicas:
                some = batches.integers(0, len(training), SHARE)
                feeds |= {replica.images: training.images[some], replica.labels: training.labels[some]}
            await session.run(train, feeds, timeout=10.0)
        feeds = {r.images: tests.images for r in replicas} | {r.labels: tests.labels for r in replicas}
        shares = [float(share) for share in await session.run([r.right for r in replicas], feeds)]
    for task, share in enumerate(shares):
        print(f"task {task}: {share:.1%} of the test digits right after {steps} steps")
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3)
    asyncio.run(main(parser.parse_args().tasks))
