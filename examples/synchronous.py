"""Synchronous training with a backup worker: of three gradients per step, the first two count.

Each worker computes its gradients and waits until the step is applied, as the mean of the first two gradients. A
gradient that arrives later belongs to an old step and is dropped, so the slowest worker delays no step. The last worker
is slow on purpose.

    python examples/synchronous.py
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits

WORKERS, NEEDED = 3, 2
STEPS = 150
BATCH = 64
CLUSTER = {
    "ps": ["inproc://synchronous-ps"],
    "worker": [f"inproc://synchronous-worker-{i}" for i in range(WORKERS)],
}


class Replica:
    """The graph of one worker; all workers build the same graph, except for the worker's device."""

    def __init__(self, worker: int) -> None:
        setter = af.train.replica_device_setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{worker}")
        with af.Graph().as_default() as self.graph, af.device(setter):
            af.set_random_seed(1)
            self.images, self.labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int32, [None])
            hidden = af.nn.relu(af.matmul(self.images, af.get_variable("hidden", [64, 96])))
            logits = af.matmul(hidden, af.get_variable("output", [96, 10]))
            loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits))
            step = af.train.get_or_create_global_step()
            self.optimizer = af.train.SyncReplicasOptimizer(af.train.AdamOptimizer(5e-3), NEEDED, WORKERS)
            self.train = self.optimizer.minimize(loss, step)
            self.right = af.reduce_mean(af.cast(af.nn.in_top_k(logits, self.labels, 1), af.float32))


async def work(worker: int, target: str, digits: Digits, steps: int) -> int:
    """Run the program of one worker and return the number of gradients that it computed."""
    replica, batches, made = Replica(worker), np.random.default_rng(worker), 0
    is_chief = worker == 0
    hooks = [replica.optimizer.make_session_run_hook(is_chief), af.train.StopAtStepHook(last_step=steps)]
    with replica.graph.as_default():
        async with af.train.MonitoredTrainingSession(target, is_chief, hooks=hooks) as session:
            while not session.should_stop():
                some = batches.integers(0, len(digits), BATCH)
                if worker == WORKERS - 1:
                    await asyncio.sleep(0.03)
                made += 1
                # When the chief stops, the waiting workers get OutOfRangeError, which ends their training.
                feeds = {replica.images: digits.images[some], replica.labels: digits.labels[some]}
                await session.run(replica.train, feeds)
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
                for index, server in enumerate(servers[1:])
            ]
        replica = Replica(0)
        session = await stack.enter_async_context(af.Session(servers[0].target, graph=replica.graph))
        share = float(await session.run(replica.right, {replica.images: tests.images, replica.labels: tests.labels}))
    made = [task.result() for task in at_work]
    print(f"{made} gradients of the workers made {steps} steps of {NEEDED}")
    print(f"{share:.1%} of the test digits right")
    return share


if __name__ == "__main__":
    asyncio.run(main())
