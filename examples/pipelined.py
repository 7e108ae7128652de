"""Concurrent steps of one replica: several runs of the same graph in flight, each at a different point.

A step first requests its examples from a service, and waits for the response. While one step waits, others compute.
They read and update the same variables without locks, like asynchronous replicas; no update is lost.

    python examples/pipelined.py
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits

STEPS = 120
IN_FLIGHT = 8
BATCH = 64
LATENCY = 0.01  # seconds, of the service
CLUSTER = {"ps": ["inproc://pipelined-ps"], "worker": ["inproc://pipelined-worker"]}


class Replica:
    """The graph of a replica that requests its examples from a service.

    Attributes:
        graph: The graph.
        asking: Number of open requests.
        most: Maximum number of open requests.
        images: Images of the batch.
        step: Global step.
        train: A training step.
        guesses: Predicted digits.
        initialize: Initializer of the variables.
    """

    def __init__(self) -> None:
        training, _ = load_digits().split()
        batches = np.random.default_rng(1)
        self.asking = self.most = 0

        async def ask_service() -> tuple[Any, Any]:
            self.asking += 1
            self.most = max(self.most, self.asking)
            await asyncio.sleep(LATENCY)
            self.asking -= 1
            some = batches.integers(0, len(training), BATCH)
            return training.images[some], training.labels[some]

        setter = af.train.replica_device_setter(cluster=CLUSTER, worker_device="/job:worker/task:0")
        with af.Graph().as_default() as self.graph:
            af.set_random_seed(1)
            images, labels = af.py_coroutine(ask_service, [], [af.float32, af.int32])
            images.set_shape([None, 64])
            labels.set_shape([None])
            self.images = images
            with af.device(setter):
                hidden = af.nn.relu(af.matmul(images, af.get_variable("hidden", [64, 96])))
                logits = af.matmul(hidden, af.get_variable("output", [96, 10]))
                loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
                self.step = af.train.get_or_create_global_step()
                self.train = af.train.AdamOptimizer(3e-3).minimize(loss, self.step)
                self.guesses = af.argmax(logits, 1)
                self.initialize = af.global_variables_initializer()


async def train(session: af.Session, replica: Replica, steps: int, in_flight: int) -> float:
    """Run `steps` steps, with at most `in_flight` at a time, and return the steps per second."""
    left = iter(range(steps))

    async def one_after_another() -> None:
        for _ in left:
            await session.run(replica.train)

    begin = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one_after_another())
    return steps / (perf_counter() - begin)


async def main(steps: int = STEPS) -> list[int]:
    """Train with one step at a time, and again with several in flight. Return the maxima of open requests."""
    _, tests = load_digits().split()
    replica = Replica()
    async with (
        af.train.Server(CLUSTER, "ps"),
        af.train.Server(CLUSTER, "worker") as server,
        af.Session(server.target, graph=replica.graph) as session,
    ):
        most = []
        for in_flight in (1, IN_FLIGHT):
            await session.run(replica.initialize)
            rate = await train(session, replica, steps, in_flight)
            most.append(replica.most)
            guesses, made = await session.run([replica.guesses, replica.step], {replica.images: tests.images})
            share = np.mean(guesses == tests.labels)
            print(f"{in_flight} in flight: {rate:.0f} steps a second, {share:.1%} right after {made} steps")
    return most


if __name__ == "__main__":
    asyncio.run(main())
