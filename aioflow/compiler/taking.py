"""Marking of nodes that take elements from queues and the like, which return them if the fetches are not delivered."""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.boundary import GIVES_BACK
from aioflow.graph.opdef import traits_of


def mark_takes(graph: ClientGraph) -> ClientGraph:
    """Return the graph with the nodes marked that take elements away (`Binding.gives_back`).

    A node is not marked if a later node changes state: that node may have used the elements. A node after control flow
    is not marked either: it may run many times, and the step would hold the elements of all its runs.
    """
    takes = [node for node in graph.nodes.values() if traits_of(node.op).takes_away]
    if not takes:
        return graph
    in_flow = _in_flow(graph)
    consumers = graph.consumers()
    used: set[str] = set()  # nodes that a state change depends on
    marked: dict[str, Node] = {}
    # Backwards, so that it is known of every reader whether a change of state depends on it.
    for node in reversed(list(graph.nodes.values())):
        is_used = any(reader.name in used for reader in consumers[node.name])
        if traits_of(node.op).takes_away and not is_used and node.name not in in_flow:
            marked[node.name] = replace(node, attrs={**node.attrs, GIVES_BACK: True})
        elif is_used or node.changes:
            used.add(node.name)
    return replace(graph, nodes={name: marked.get(name, node) for name, node in graph.nodes.items()})


def _in_flow(graph: ClientGraph) -> set[str]:
    """Return the names of the control flow nodes and of all nodes that come after one."""
    found: set[str] = set()
    for node in graph.nodes.values():
        if traits_of(node.op).is_control_flow or any(name in found for name in node.predecessors()):
            found.add(node.name)
    return found
