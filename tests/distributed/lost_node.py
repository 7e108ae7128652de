"""A program that loses the Ray node of a task and restarts its cluster on the remaining nodes.

All nodes are on this machine, each with its own address in 127.0.0.0/8. Run it as a process: Ray takes the main
thread, its signals, and a folder (RAY_TMPDIR).
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import aioflow as af
from aioflow.distributed import Job
from aioflow.errors import UnavailableError

JOBS: Final = {"ps": Job(resources={"here": 1}), "worker": Job(resources={"there": 1})}
SMALL: Final = {"object_store_memory": 80 << 20}
STEPS: Final = 40
LOST_AT: Final = 20
QUICKLY: Final = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 10,
}


async def train(cluster: Any, folder: str, lose: Callable[[], None]) -> None:
    """Count to STEPS, with a part of each step on the worker. Call `lose` at LOST_AT."""
    with af.Graph().as_default():
        with af.device("/job:ps"):
            step = af.train.get_or_create_global_step()
        with af.device("/job:worker"):
            one = af.identity(af.constant(1, af.int64))
        with af.device("/job:ps"):
            count = step.assign_add(one)
        async with af.train.MonitoredTrainingSession(
            cluster.target,
            checkpoint_dir=folder,
            save_checkpoint_steps=5,
            hooks=[af.train.StopAtStepHook(last_step=STEPS)],
        ) as session:
            reached = int(await session.run(step))
            print("begins at", reached, flush=True)
            while not session.should_stop():
                if await session.run(count) == LOST_AT > reached:
                    lose()
                    await asyncio.Event().wait()  # until the loss is noticed, which ends the block


async def main(nodes: Any) -> None:
    """Train to the end, with a new cluster after each loss."""
    there = {
        address: nodes.add_node(num_cpus=1, resources={"there": 1}, node_ip_address=address, **SMALL)
        for address in ("127.0.0.2", "127.0.0.3")
    }
    ray = importlib.import_module("ray")
    ray.init(address=nodes.address, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                async with af.distributed.ray.start(JOBS, allow_dirs=[folder]) as cluster:
                    at = cluster.status_of("worker").node
                    print("the worker is at", at, flush=True)
                    await train(cluster, folder, partial(nodes.remove_node, there[at], allow_graceful=False))
                print("ends", flush=True)
                break
            except UnavailableError as error:
                print("lost:", error.message, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    cluster_utils = importlib.import_module("ray.cluster_utils")
    head = {"num_cpus": 1, "resources": {"here": 1}, "include_dashboard": False, "_system_config": QUICKLY, **SMALL}
    nodes = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        asyncio.run(main(nodes))
    finally:
        nodes.shutdown()
