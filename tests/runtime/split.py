"""Run a step cut up at random: every node on a device that a seed chooses, whatever placement would say."""

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
    """The graph with every node on a random device; nodes that touch a resource are all on the first."""
    rng = random.Random(seed)
    nodes = {}
    for name, node in graph.nodes.items():
        specs = [*node.outputs, *(graph.spec(edge) for edge in node.inputs)]
        touches = any(spec.dtype is af.resource for spec in specs) or "seed" in node.attrs
        nodes[name] = replace(node, device=CPU.format(0 if touches else rng.randrange(devices)))
    return replace(graph, nodes=nodes)


def split_plan(fetches: Sequence[Any], feeds: Sequence[Any], seed: int, devices: int) -> Plan:
    """The plan of a step that is cut up at random, each of its subgraphs verified."""
    graph = prune(StepRequest(tuple(feeds), tuple(fetches)))
    plan = partition(scattered(graph, seed, devices))
    for _, subgraph in plan.by_device():
        verify(subgraph, whole=False)
    return plan


async def run_split(
    fetches: Sequence[Any], feeds: dict[Any, Any], seed: int, devices: int, executor: str = "strands"
) -> list[Any]:
    """The fetched values."""
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
