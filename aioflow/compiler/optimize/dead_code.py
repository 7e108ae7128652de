"""Dead code elimination: nodes that neither a fetch nor a target needs are removed.

Whitepaper 4.2 prunes the user's graph in the same way. This pass prunes again after rewrites have left nodes without
readers. A node with effects stays only if another node waits for it, as in the user's graph: the passes keep the
control edges that lead to it.

A target that only waits, like the group of a training step's updates, is also removed, and the nodes that it waits for
become targets. A step ends when all its nodes have run, so no other device has to be notified of their end.
"""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.facts import is_pure_op
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph.boundary import ARG, RETVAL


def dead_code(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph without unneeded nodes. Feeds stay, because they are numbered."""
    waiting = [n.name for n in graph.nodes.values() if n.op in (ARG, RETVAL)]
    targets = _effective_targets(graph)
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


def _effective_targets(graph: ClientGraph) -> tuple[str, ...]:
    """Return the targets, with those that only wait replaced by the nodes that they wait for."""
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
