"""Marks the nodes whose elements, taken from a queue or the like, are put back if the fetches are not delivered."""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.boundary import GIVES_BACK
from aioflow.graph.opdef import traits_of

__all__ = ["mark_takes"]


def mark_takes(graph: ClientGraph) -> ClientGraph:
    """Return the graph in which the nodes that take something away are marked (`Binding.gives_back`), unless what comes
    after them changes something: it may have used what they took. One that runs as often as a loop or a branch says is
    not marked, since a step would hold what all its runs took.
    """
    takes = [node for node in graph.nodes.values() if traits_of(node.op).takes_away]
    if not takes:
        return graph
    in_flow = _in_flow(graph)
    consumers = graph.consumers()
    used: set[str] = set()  # what a change comes after
    marked: dict[str, Node] = {}
    for node in reversed(list(graph.nodes.values())):
        is_used = any(reader.name in used for reader in consumers[node.name])
        if traits_of(node.op).takes_away and not is_used and node.name not in in_flow:
            marked[node.name] = replace(node, attrs={**node.attrs, GIVES_BACK: True})
        elif is_used or node.changes:
            used.add(node.name)
    return replace(graph, nodes={name: marked.get(name, node) for name, node in graph.nodes.items()})


def _in_flow(graph: ClientGraph) -> set[str]:
    """Return the names of the nodes that come after a node of control flow."""
    found: set[str] = set()
    for node in graph.nodes.values():
        if traits_of(node.op).steers or any(name in found for name in node.predecessors()):
            found.add(node.name)
    return found
