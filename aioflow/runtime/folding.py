"""Compute one node while a step is compiled: what the compiler's constant folding is given to do so with.

The kernel is the CPU's, bound to resources of its own, so whatever it does stays here. A node that fails is left to
fail in the step, where the error can name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.graph.opdef import CONTROL_FLOW, OPS
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import BoundNode, bind_graph, gather
from aioflow.runtime.device import load_backend

__all__ = ["fold"]


def fold(node: Node, graph: ClientGraph, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """The outputs of a node as arrays, given the values of its inputs, as the attributes of constants hold them.

    None where the node may not be computed now (it has effects, or waits), or cannot be.
    """
    if node.op in CONTROL_FLOW or node.op not in OPS or OPS.get(node.op).stateful:
        return None
    sources = dict(zip(node.inputs, inputs, strict=True))
    alone = _alone(node, graph, sources)
    try:
        *constants, bound = bind_graph(alone, load_backend("numpy"), ResourceManager(), {})
        if bound.kernel.is_async:
            return None
        values = {Edge(constant.node.name, 0): constant.call() for constant in constants}
        with np.errstate(all="ignore"):
            results = bound.call(*gather(bound, values, frozenset()))
    except Exception:  # of whatever kind: the step comes to the same node, and reports it
        return None
    return _arrays(bound, results)


def _alone(node: Node, graph: ClientGraph, sources: dict[Edge, Any]) -> ClientGraph:
    """The node with its inputs as constants, each of its own name, and nothing else."""
    renamed = {edge: Edge(f"{edge.node}:{edge.port}", 0) for edge in sources}
    nodes: dict[str, Node] = {}
    for edge, value in sources.items():
        spec: OutputSpec = graph.spec(edge)
        name = renamed[edge].node
        nodes[name] = Node(name, "Const", attrs={"value": value, "dtype": spec.dtype}, outputs=(spec,))
    nodes[node.name] = replace(node, inputs=tuple(renamed[edge] for edge in node.inputs), control=())
    return ClientGraph(nodes, 0, 0)


def _arrays(bound: BoundNode, results: Any) -> list[Any]:
    outputs = tuple(results) if bound.unpacks else (results,) if bound.node.outputs else ()
    return [_array(value, spec) for value, spec in zip(outputs, bound.node.outputs, strict=True)]


def _array(value: Any, spec: OutputSpec) -> Any:
    """A result as the attribute of a constant holds it: an array, also of one number or of one string."""
    if isinstance(value, np.ndarray) or not spec.dtype.np_dtype.hasobject:
        return np.asarray(value)
    made = np.empty((), object)
    made[()] = value
    return made
