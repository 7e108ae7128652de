"""The plain executor: one node at a time off a ready queue, by pending counts (TensorFlow whitepaper, 3.1).

It is the definition of what a step means. Tests compare the strands with it; nothing here is tuned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.runtime.bind import BoundNode, gather, kernel_error
from aioflow.runtime.liveness import fed_values
from aioflow.runtime.step import Probe

__all__ = ["run_reference"]


async def run_reference(
    graph: ClientGraph, bound: Sequence[BoundNode], feeds: Sequence[Any], probe: Probe | None = None
) -> list[Any]:
    """Run one step, watched by `probe`, and return the fetches in order.

    Raises:
        OpError: a kernel failed; the error names the node.
    """
    kernels = {b.node.name: b for b in bound}
    fed = fed_values(graph, bound)
    consumers = graph.consumers()
    pending = {name: len(set(node.predecessors())) for name, node in graph.nodes.items()}
    ready = deque(name for name, count in pending.items() if count == 0)
    values: dict[Edge, Any] = {}
    fetches: list[Any] = [None] * graph.fetches
    while ready:
        node = graph.nodes[ready.popleft()]
        if node.op == "_Arg":
            values[Edge(node.name, 0)] = feeds[node.attrs["index"]]
        elif node.op == "_Retval":
            fetches[node.attrs["index"]] = values[node.inputs[0]]
        else:
            outputs = await _compute(kernels[node.name], values, fed)
            values.update((Edge(node.name, port), value) for port, value in enumerate(outputs))
            if probe is not None:
                probe.begin()(kernels[node.name], outputs)
        for consumer in consumers[node.name]:
            pending[consumer.name] -= 1
            if pending[consumer.name] == 0:
                ready.append(consumer.name)
    return fetches


async def _compute(bound: BoundNode, values: dict[Edge, Any], fed: frozenset[Edge]) -> Sequence[Any]:
    try:
        with np.errstate(all="ignore"):
            result = bound.call(*gather(bound, values, fed))
        if bound.kernel.is_async and hasattr(result, "__await__"):
            result = await result
    except Exception as error:
        failure = kernel_error(error, bound.node)
        raise failure from failure.__cause__
    if bound.unpacks:
        return tuple(result)
    return (result,) if bound.node.outputs else ()
