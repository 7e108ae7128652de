"""The plain executor: one node at a time off a ready queue, by pending counts (TensorFlow whitepaper, 3.1).

It is the definition of what a step means. Tests compare the strands with it; nothing here is tuned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.runtime.bind import BoundNode, gather, kernel_error
from aioflow.runtime.liveness import fed_values
from aioflow.runtime.step import Step, root_cause

__all__ = ["run_reference"]


async def run_reference(graph: ClientGraph, bound: Sequence[BoundNode], feeds: Sequence[Any], step: Step) -> list[Any]:
    """Run one step and return the fetches in order.

    Raises:
        OpError: a kernel failed, and the error names the node; or the step was stopped.
    """
    fetches: list[Any] = []
    try:
        async with asyncio.TaskGroup() as step_group:
            guard = step_group.create_task(step.watch())
            fetches = await _run(graph, bound, feeds, step)
            guard.cancel()
    except BaseExceptionGroup as group:
        cause = root_cause(group)
        raise cause from cause.__cause__
    return fetches


async def _run(graph: ClientGraph, bound: Sequence[BoundNode], feeds: Sequence[Any], step: Step) -> list[Any]:
    kernels = {b.node.name: b for b in bound}
    fed = fed_values(graph, bound)
    consumers = graph.consumers()
    pending = {name: len(set(node.predecessors())) for name, node in graph.nodes.items()}
    ready = deque(name for name, count in pending.items() if count == 0)
    values: dict[Edge, Any] = {}
    fetches: dict[int, Any] = {}
    while ready:
        node = graph.nodes[ready.popleft()]
        if node.op == "_Arg":
            values[Edge(node.name, 0)] = feeds[node.attrs["index"]]
        elif node.op == "_Retval":
            fetches[node.attrs["index"]] = values[node.inputs[0]]
        else:
            outputs = await _compute(kernels[node.name], values, fed, step)
            values.update((Edge(node.name, port), value) for port, value in enumerate(outputs))
            if step.probe is not None:
                step.probe.begin()(kernels[node.name], outputs)
        for consumer in consumers[node.name]:
            pending[consumer.name] -= 1
            if pending[consumer.name] == 0:
                ready.append(consumer.name)
    return [fetches[index] for index in sorted(fetches)]


async def _compute(bound: BoundNode, values: dict[Edge, Any], fed: frozenset[Edge], step: Step) -> Sequence[Any]:
    try:
        with np.errstate(all="ignore"):
            extra = {"step": step} if bound.kernel.takes_step else {}
            result = bound.call(*gather(bound, values, fed), **extra)
        if bound.kernel.is_async and hasattr(result, "__await__"):
            result = await step.wait_for(bound.node.name, result)
    except Exception as error:
        failure = kernel_error(error, bound.node)
        raise failure from failure.__cause__
    if bound.unpacks:
        return tuple(result)
    return (result,) if bound.node.outputs else ()
