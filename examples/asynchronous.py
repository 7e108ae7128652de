"""Asynchronous between-graph replication: each worker has its own client and graph, and runs at its own pace.

`train.replica_device_setter` puts the variables on the parameter servers, here balanced by size, and all other nodes on
the worker. Workers read and update the variables without waiting for each other. A gradient may be computed from values
that another worker has changed meanwhile. Worker 0, the chief, initializes the variables; the others wait only for
that.

    python examples/asynchronous.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits

SERVERS, WORKERS = 2, 2
STEPS = 300  # of all workers together
BATCH = 64
CLUSTER = {
    "ps": [f"inproc://asynchronous-ps-{i}" for i in range(SERVERS)],
    "worker": [f"inproc://asynchronous-worker-{i}" for i in range(WORKERS)],
}


class Replica:
    """The graph of one worker; all workers build the same graph, except for the worker's device.

    Attributes:
        graph: The graph.
        images, labels: A batch.
        train: A training step.
        right: Fraction of labels that are predicted correctly.
    """

    def __init__(self, worker: int) -> None:
        largest_first = af.train.GreedyLoadBalancingStrategy(SERVERS, af.train.byte_size_load_fn)
        setter = af.train.replica_device_setter(
            cluster=CLUSTER, worker_device=f"/job:worker/task:{worker}", ps_strategy=largest_first
        )
        with af.Graph().as_default() as self.graph, af.device(setter):
            af.set_random_seed(1)
            self.images, self.labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int32, [None])
            hidden = af.nn.relu(af.matmul(self.images, af.get_variable("hidden", [64, 96])))
            logits = af.matmul(hidden, af.get_variable("output", [96, 10]))
            loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits))
            step = af.train.get_or_create_global_step()
            self.train = af.train.AdamOptimizer(2e-3).minimize(loss, step)
            self.right = af.reduce_mean(af.cast(af.nn.in_top_k(logits, self.labels, 1), af.float32))


async def work(worker: int, target: str, digits: Digits, steps: int) -> int:
    """Run the program of one worker and return the number of its steps."""
    replica, batches, made = Replica(worker), np.random.default_rng(worker), 0
    stop = af.train.StopAtStepHook(last_step=steps)
    with replica.graph.as_default():
        async with af.train.MonitoredTrainingSession(target, is_chief=worker == 0, hooks=[stop]) as session:
            while not session.should_stop():
                some = batches.integers(0, len(digits), BATCH)
                feeds = {replica.images: digits.images[some], replica.labels: digits.labels[some]}
                await session.run(replica.train, feeds)
                made += 1
    return made


async def main(steps: int = STEPS) -> float:
    """Train, and return the accuracy on the test digits."""
    training, tests = load_digits().split()
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(af.train.Server(CLUSTER, job, index))
            for job, addresses in CLUSTER.items()
            for index in range(len(addresses))
        ]
        async with asyncio.TaskGroup() as group:
            at_work = [
                group.create_task(work(index, server.target, training, steps))
                for index, server in enumerate(servers[SERVERS:])
            ]
        replica = Replica(0)
        held = Counter(v.device for v in replica.graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES))
        session = await stack.enter_async_context(af.Session(servers[-1].target, graph=replica.graph))
        share = float(await session.run(replica.right, {replica.images: tests.images, replica.labels: tests.labels}))
    for device, count in sorted(held.items()):
        print(f"{device} holds {count} variables")
    print(f"{share:.1%} of the test digits right after {[task.result() for task in at_work]} steps of the workers")
    return share


if __name__ == "__main__":
    asyncio.run(main())
