"""Topological order for graphs whose only back edges close loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aioflow.compiler.control_flow import is_back_edge
from aioflow.compiler.ir import Node


def in_order(nodes: Mapping[str, Node], followers: Mapping[str, Sequence[str]] | None = None) -> dict[str, Node]:
    """Return the nodes in topological order, as close as possible to the given order; back edges are ignored.

    Args:
        nodes: The nodes by name.
        followers: Maps a node to the nodes that come directly after it.
    """
    behind = followers or {}
    order: dict[str, Node] = {}
    visited: set[str] = set()
    for root in nodes:
        # A stack instead of recursion: graphs may be deeper than Python's recursion limit.
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order[name] = nodes[name]
                # Pushed last, so that they come directly behind the node.
                stack.extend((s, False) for s in reversed(behind.get(name, ())) if s not in visited)
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                node = nodes[name]
                sources = [s for s in node.predecessors() if not is_back_edge(node, nodes[s])]
                stack.extend((s, False) for s in reversed(sources) if s not in visited)
    return order
