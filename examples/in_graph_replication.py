"""In-graph replication: one client and one graph, which contains a copy of the model for each worker.

Each copy computes the gradients of its part of the batch; their mean updates the variables on the parameter server.
That is the gradient of the whole batch, so the result does not depend on the number of workers. The servers are in this
process. With `python -m aioflow.worker` and network addresses they are separate processes, without other changes.

    python examples/in_graph_replication.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits

WORKERS = 3
STEPS = 120
BATCH = 120  # a multiple of the number of workers
CLUSTER = {"ps": ["inproc://in-graph-ps"], "worker": [f"inproc://in-graph-worker-{i}" for i in range(WORKERS)]}


@dataclass(frozen=True)
class Model:
    """Tensors of the graph.

    Attributes:
        images, labels: The batch.
        gradients: Mean over the copies, one for each variable.
        train: A training step.
        right: Fraction of labels that are predicted correctly.
    """

    images: af.Tensor
    labels: af.Tensor
    gradients: list[af.Tensor]
    train: af.Operation
    right: af.Tensor


def logits_of(images: af.Tensor) -> af.Tensor:
    """Build the model's logits. The first call creates the variables; later calls reuse them."""
    with af.variable_scope("model", reuse=af.AUTO_REUSE):
        hidden = af.get_variable("hidden", [64, 64], images.dtype)
        output = af.get_variable("output", [64, 10], images.dtype)
    return af.matmul(af.nn.relu(af.matmul(images, hidden)), output)


def build(parts: int, server: str, worker: Callable[[int], str], dtype: af.DType = af.float32) -> Model:
    """Build `parts` copies of the model, the i-th on the device `worker(i)`, and the variables on `server`."""
    af.set_random_seed(1)
    images, labels = af.placeholder(dtype, [None, 64]), af.placeholder(af.int32, [None])
    with af.device(server):
        right = af.reduce_mean(af.cast(af.nn.in_top_k(af.cast(logits_of(images), af.float32), labels, 1), af.float32))
        optimizer = af.train.MomentumOptimizer(0.1, 0.9)
        of_parts = zip(af.split(images, parts), af.split(labels, parts), strict=True)
    copies = []
    for index, (x, y) in enumerate(of_parts):
        with af.device(worker(index)), af.name_scope(f"copy_{index}"):
            loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits_of(x)))
            copies.append(optimizer.compute_gradients(loss))
    with af.device(server):
        means = [
            (af.add_n([gradient for gradient, _ in same]) / parts, same[0][1]) for same in zip(*copies, strict=True)
        ]
        train = optimizer.apply_gradients(means)
    return Model(images, labels, [gradient for gradient, _ in means], train, right)


async def main(steps: int = STEPS) -> float:
    """Train, and return the accuracy on the test digits."""
    training, tests = load_digits().split()
    batches = np.random.default_rng(1)
    async with AsyncExitStack() as stack:
        for job, addresses in CLUSTER.items():
            for index in range(len(addresses)):
                server = await stack.enter_async_context(af.train.Server(CLUSTER, job, index))
        stack.enter_context(af.Graph().as_default())
        model = build(WORKERS, "/job:ps", lambda index: f"/job:worker/task:{index}")
        session = await stack.enter_async_context(af.Session(server.target))
        await session.run(af.global_variables_initializer())
        for _ in range(steps):
            some = batches.integers(0, len(training), BATCH)
            await session.run(model.train, {model.images: training.images[some], model.labels: training.labels[some]})
        share = float(await session.run(model.right, {model.images: tests.images, model.labels: tests.labels}))
    print(f"{share:.1%} of the test digits right after {steps} steps of {WORKERS} copies of the model")
    return share


if __name__ == "__main__":
    asyncio.run(main())
