"""A worker of elastic training, as a program. It trains with the available workers until the step in `last_step`.

    python -m tests.system.elastic_training PS,WORKER,… TASK

Worker i always contributes the i-th unit vector, so that the variable shows whose gradients were applied.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import numpy as np

import aioflow as af
from tests.system.sync_training import jobs_of

__all__ = ["Model"]


class Model:
    """The variable and its training step on one of several workers."""

    def __init__(self, task: int, workers: int) -> None:
        setter = af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{task}")
        with af.Graph().as_default() as self.graph, af.device(setter):
            self.weights = af.get_variable("weights", initializer=np.zeros(workers))
            self.last_step = af.get_variable("last_step", initializer=np.int64(1 << 62), trainable=False)
            self.step = af.train.get_or_create_global_step()
            self.optimizer = af.train.SyncReplicasOptimizer(
                af.train.GradientDescentOptimizer(1.0), workers, elastic=True
            )
            gradient = af.identity(np.eye(workers)[task])
            self.train = self.optimizer.apply_gradients([(gradient, self.weights)], self.step)


async def _train(addresses: list[str], task: int) -> None:
    model = Model(task, len(addresses) - 1)
    with model.graph.as_default():
        hooks: list[Any] = [model.optimizer.make_session_run_hook(task == 0)]
        async with (
            af.train.Server(jobs_of(addresses), "worker", task) as server,
            af.train.MonitoredTrainingSession(
                server.target, task == 0, hooks=hooks, log_step_count_steps=None
            ) as session,
        ):
            while not session.should_stop():
                await asyncio.sleep(0.01)  # stands for the computation
                await session.run(model.train)
                if task == 0 and np.greater_equal(*await session.run([model.step, model.last_step])):
                    break


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_train(sys.argv[1].split(","), int(sys.argv[2])))
