"""A worker of synchronous training, as a program. It trains until a step, despite failures of itself and others.

    python -m tests.system.sync_training PS,WORKER,WORKER TASK FOLDER STEPS

A worker's batch follows from the step and the worker's number, and gradients are added in the order of workers. So the
variables after a number of steps are bitwise equal, no matter how often work was lost on the way. `replayed` returns
the expected values.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import aioflow as af

__all__ = ["WORKERS", "Model", "batch", "jobs_of", "replayed"]

WORKERS = 2
_ROWS, _INPUTS, _OUTPUTS = 16, 12, 3
_RATE = 0.05


class Model:
    """A softmax regression. With a task, its variables are on the parameter server and updated synchronously."""

    def __init__(self, task: int | None = None) -> None:
        setter = None
        if task is not None:
            setter = af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{task}")
        with af.Graph().as_default() as self.graph, af.device(setter):
            self.inputs = af.placeholder(af.float32, [_ROWS, _INPUTS])
            self.labels = af.placeholder(af.int64, [_ROWS])
            self.step = af.train.get_or_create_global_step()
            self.weights = af.get_variable("weights", initializer=np.zeros((_INPUTS, _OUTPUTS), np.float32))
            self.read = af.identity(self.weights)
            logits = af.matmul(self.inputs, self.read)
            self.loss = af.reduce_mean(
                af.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits)
            )
            self.gradient: Any
            (self.gradient,) = af.gradients(self.loss, [self.weights])
            if task is not None:
                self.optimizer = af.train.SyncReplicasOptimizer(
                    af.train.GradientDescentOptimizer(_RATE), WORKERS, worker_index=task
                )
                self.train = self.optimizer.minimize(self.loss, self.step)
                (self.local_step,) = af.local_variables()

    def feeds(self, step: int, worker: int) -> dict[Any, Any]:
        """Return the batch of a worker at a step."""
        inputs, labels = batch(step, worker)
        return {self.inputs: inputs, self.labels: labels}


def batch(step: int, worker: int) -> tuple[Any, Any]:
    """Return samples of three classes that are roughly linearly separable."""
    rng = np.random.default_rng([step, worker])
    labels = rng.integers(0, _OUTPUTS, _ROWS)
    inputs = rng.standard_normal((_ROWS, _INPUTS)).astype(np.float32)
    inputs[np.arange(_ROWS), labels] += 2
    return inputs, labels


async def replayed(steps: int) -> Any:
    """Return the weights after `steps` undisturbed steps, computed by one process."""
    model = Model()
    weights: Any = np.zeros((_INPUTS, _OUTPUTS), np.float32)
    total: Any = None
    async with af.Session(graph=model.graph) as session:
        for step in range(steps):
            for worker in range(WORKERS):
                gradient = await session.run(model.gradient, {**model.feeds(step, worker), model.read: weights})
                total = gradient if worker == 0 else total + gradient
            weights = weights - np.float32(_RATE) * (total / np.float32(WORKERS))
    return weights


def jobs_of(addresses: Sequence[str]) -> dict[str, list[str]]:
    """Return the cluster: a parameter server and workers."""
    return {"ps": list(addresses[:1]), "worker": list(addresses[1:])}


async def _train(jobs: dict[str, list[str]], task: int, folder: str, steps: int) -> None:
    model = Model(task)

    async def one_step(step_context: Any) -> None:
        step = int(await step_context.session.run(model.local_step))
        await step_context.run_with_hooks(model.train, model.feeds(step, task))

    with model.graph.as_default():
        hook: Any = model.optimizer.make_session_run_hook(task == 0, num_tokens=WORKERS)
        async with (
            af.train.Server(jobs, "worker", task) as server,
            af.train.MonitoredTrainingSession(
                server.target,
                is_chief=task == 0,
                checkpoint_dir=folder if task == 0 else None,
                save_checkpoint_steps=20 if task == 0 else None,
                hooks=[hook, af.train.StopAtStepHook(last_step=steps)],
                log_step_count_steps=None,
            ) as session,
        ):
            print("trains", flush=True)
            while not session.should_stop():
                await session.run_step_fn(one_step)
    print("done", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_train(jobs_of(sys.argv[1].split(",")), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
