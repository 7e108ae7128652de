"""One training script for a cluster of processes and for Ray: a single line selects it.

A parameter server holds the variables, and each of two workers computes the gradients of half of every batch. A task
that dies is restarted at the same place, and the session continues from the last checkpoint: each batch counts once.

    python examples/train_cluster.py
    python examples/train_cluster.py --on ray --kill worker
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits

JOBS = {"ps": af.distributed.Job(num_cpus=0.5), "worker": af.distributed.Job(2, num_cpus=0.5)}
STEPS = 200
BATCH = 64
KILLED_AT = 90  # a step
SAVED_EVERY = 40


@dataclass(frozen=True)
class Report:
    """The result of the training.

    Attributes:
        accuracy: Fraction of the test digits that are predicted correctly.
        counted: Number of updates by each batch that the variables contain.
        restarts: Number of restarts of each task.
        weights: Weights at the end.
    """

    accuracy: float
    counted: list[int]
    restarts: dict[str, int]
    weights: np.ndarray[Any, Any]


class Model:
    """A classifier whose variables are on the parameter server, with a count of the batches that trained it."""

    def __init__(self) -> None:
        self.images, self.labels = af.placeholder(af.float32, [None, 64]), af.placeholder(af.int64, [None])
        self.number = af.placeholder(af.int32, [])
        with af.device("/job:ps"):
            self.weights = af.Variable(np.zeros((64, 10), np.float32), name="weights")
            self.counted = af.Variable(np.zeros(STEPS, np.int32), trainable=False, name="counted")
            self.step = af.train.get_or_create_global_step()
        optimizer = af.train.GradientDescentOptimizer(0.5)
        halves = zip(af.split(self.images, 2), af.split(self.labels, 2), strict=True)
        gradients: list[Any] = []
        for worker, (images, labels) in enumerate(halves):
            with af.device(f"/job:worker/task:{worker}"):
                logits = af.matmul(images, self.weights)
                loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
                gradients.append(optimizer.compute_gradients(loss, [self.weights])[0][0])
        with af.device("/job:ps"):
            update = optimizer.apply_gradients([(af.add_n(gradients) / 2.0, self.weights)], self.step)
            self.train = af.group(update, af.scatter_add(self.counted, self.number, 1))
            logits = af.matmul(self.images, self.weights)
            self.right = af.reduce_mean(af.cast(af.equal(af.argmax(logits, 1), self.labels), af.float32))

    def batches(self, training: Digits, start: int) -> Iterator[dict[Any, Any]]:
        """Yield the feeds of the steps from `start` on; the batch of a step depends only on its number."""
        for number in range(start, STEPS):
            some = np.random.default_rng(number).integers(0, len(training), BATCH)
            yield {self.images: training.images[some], self.labels: training.labels[some], self.number: number}


async def main(on: str = "processes", kill: str | None = None) -> Report:
    """Train on "processes" or "ray", and kill the first task of a job halfway."""
    start = af.distributed.ray.start if on == "ray" else af.distributed.processes.start  # the line that selects
    training, tests = load_digits().split()
    with tempfile.TemporaryDirectory() as folder, af.Graph().as_default():
        model = Model()
        final = af.train.FinalOpsHook(
            [model.right, model.counted, model.weights], {model.images: tests.images, model.labels: tests.labels}
        )
        source = af.train.SeekableFeeds(lambda start: model.batches(training, start))
        async with (
            start(JOBS, allow_dirs=[folder]) as cluster,
            af.train.MonitoredTrainingSession(
                cluster.target,
                checkpoint_dir=Path(folder),
                save_checkpoint_steps=SAVED_EVERY,
                hooks=[final],
                input=af.train.CheckpointedInput(source),
            ) as session,
        ):
            while not session.should_stop():  # until the batches end
                step, _ = await session.run([model.step, model.train])
                if kill is not None and step >= KILLED_AT:
                    status = cluster.status_of(kill)
                    os.kill(status.pid, signal.SIGKILL)  # works because the task is on this machine
                    print(f"{kill} was killed at step {step}", flush=True)
                    kill = None
        restarts = {task: status.restarts for task, status in cluster.tasks.items()}
    accuracy, counted, weights = final.final_ops_values
    times = sorted(set(counted.tolist()))
    print(f"{accuracy:.1%} of the test digits right; each batch counts {times} times; restarts: {restarts}")
    return Report(float(accuracy), counted.tolist(), restarts, weights)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--on", choices=("processes", "ray"), default="processes")
    parser.add_argument("--kill", choices=tuple(JOBS), help="kill the first task of this job half-way")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(**vars(parsed())))
