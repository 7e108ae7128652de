"""Dead code elimination: what neither a fetch nor a target needs goes (whitepaper 4.2 prunes the user's graph in the
same way; this does it again after rewrites have left nodes without readers).

A node with effects stays where something waits for it, and only there, as in the graph that the user gave: the passes
keep the control edges that lead to it.

A target that does nothing but wait, as what a training step's updates are grouped in, goes as well, and what it waits
for are targets instead. A step ends when all its nodes have run: nobody need be told of them by way of another device.
"""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.evaluate import Evaluate
from aioflow.compiler.optimize.facts import is_pure_op
from aioflow.graph.boundary import ARG, RETVAL

__all__ = ["dead_code"]


def dead_code(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """The graph without the nodes that nothing needs. Feeds stay: they are numbered."""
    waiting = [n.name for n in graph.nodes.values() if n.op in (ARG, RETVAL)]
    targets = _acting(graph)
    waiting += targets
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(graph.nodes[name].predecessors())
    if len(needed) == len(graph.nodes):
        return graph
    return replace(graph, nodes={name: node for name, node in graph.nodes.items() if name in needed}, targets=targets)


def _acting(graph: ClientGraph) -> tuple[str, ...]:
    """The targets, with those that only wait replaced by what they wait for."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting = list(reversed(graph.targets))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.nodes[name]
        if node.control and not node.inputs and not node.outputs and is_pure_op(node.op):
            waiting.extend(reversed(node.control))
        else:
            found[name] = None
    return tuple(found)
