"""Steps partitioned at random: a seed chooses the device of every node, regardless of placement."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.config import SessionConfig
from aioflow.graph.arrays import to_array
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker

CPU = "/job:localhost/replica:0/task:0/device:CPU:{}"


def scattered(graph: ClientGraph, seed: int, devices: int) -> ClientGraph:
    """Return the graph with every node on a random device.

    Nodes that use a resource or have a seed are all on the first device.
    """
    rng = random.Random(seed)
    nodes = {}
    for name, node in graph.nodes.items():
        specs = [*node.outputs, *(graph.spec(edge) for edge in node.inputs)]
        touches = any(spec.dtype is af.resource for spec in specs) or "seed" in node.attrs
        nodes[name] = replace(node, device=CPU.format(0 if touches else rng.randrange(devices)))
    return replace(graph, nodes=nodes)


def split_plan(fetches: Sequence[Any], feeds: Sequence[Any], seed: int, devices: int) -> Plan:
    """Return the plan of a step that is partitioned at random, and verify each of its subgraphs."""
    graph = prune(StepRequest(tuple(feeds), tuple(fetches)))
    plan = partition(scattered(graph, seed, devices))
    for _, subgraph in plan.by_device():
        verify(subgraph, whole=False)
    return plan


async def run_split(
    fetches: Sequence[Any], feeds: dict[Any, Any], seed: int, devices: int, executor: str = "strands"
) -> list[Any]:
    """Run the step, partitioned at random, and return the fetched values."""
    # A budget of 0 runs every strand in a device's threads, so each third seed covers that path.
    config = SessionConfig(
        device_count={"CPU": devices}, executor=executor, inline_budget=0.0 if seed % 3 == 0 else 2e-4
    )
    worker = Worker(config)
    plan = split_plan(fetches, list(feeds), seed, devices)
    (part,) = plan.parts.values()
    handle = worker.register_now(part, 1, config)
    step = Step()
    try:
        return await worker.run(handle, [to_array(v, t.dtype) for t, v in feeds.items()], step)
    finally:
        step.finish()
