"""Groups of nodes on one device: required by colocation and resources, or preferred for control flow.

Groups are disjoint sets of node positions (TensorFlow whitepaper, 4.3: union-find over the colocation constraints).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.dtypes import resource, variant
from aioflow.graph.traits import Role

# A resource exists on one device, and so do lists and locks, which are variants: handles are passed on, not copied.
HANDLES: Final = frozenset({resource, variant})
_PREFIX: Final = "loc:@"


class DisjointSets:
    """Disjoint sets of the numbers below `count`, each represented by one of its members."""

    __slots__ = ("_parent",)

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, member: int) -> int:
        """Return the representative of a member's set."""
        parent = self._parent
        while parent[member] != member:
            parent[member] = member = parent[parent[member]]  # halve the path
        return member

    def union(self, one: int, other: int) -> int:
        """Merge two sets, and return the representative of the union."""
        kept = self._parent[self.find(other)] = self.find(one)
        return kept


def takes_handle(graph: ClientGraph, node: Node) -> bool:
    """Return whether the node uses a resource, a list or a lock that another node made."""
    return any(graph.spec(edge).dtype in HANDLES for edge in node.inputs)


def makes_handle(graph: ClientGraph, node: Node) -> bool:
    """Return whether the node makes a resource, a list or a lock, and so determines the device of all users of it."""
    return any(spec.dtype in HANDLES for spec in node.outputs) and not takes_handle(graph, node)


def is_everywhere(node: Node) -> bool:
    """Return whether partition copies the node to every device that reads it.

    True for a feed, a constant without control inputs, and a loop invariant.
    """
    if node.role is Role.ENTER:
        return bool(node.attrs.get("is_constant"))
    return node.op == ARG or (node.role is Role.CONSTANT and not node.control)


def joined_by_handles(graph: ClientGraph, positions: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that must share a device because a handle goes from one to the other."""
    nodes = graph.nodes
    for position, node in enumerate(nodes.values()):
        for source, port in node.inputs:
            if nodes[source].outputs[port].dtype in HANDLES:
                yield position, positions[source]


def joined_by_name(graph: ClientGraph, positions: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs that must share a device because the user colocated them (`_class`)."""
    named: dict[str, int] = {}
    for position, node in enumerate(graph.nodes.values()):
        for label in node.attrs.get("_class", ()):
            if label.startswith(_PREFIX):
                # Nodes colocated with a node that the step lacks still stay together.
                anchor = label[len(_PREFIX) :]
                yield position, positions.get(anchor, named.setdefault(anchor, position))


def preferred(graph: ClientGraph, positions: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of control flow nodes that should share a device, where no constraint forbids it.

    A Switch goes to its data, unless that exists everywhere, and an Exit to its Switch. An Enter and a NextIteration go
    to their first reader. So the Enter, Merge, Switch, Exit and NextIteration of a loop variable stay together, and
    only computed values cross between devices.
    """
    entering: dict[str, int] = {}
    for position, node in enumerate(graph.nodes.values()):
        if node.role in (Role.SWITCH, Role.EXIT):
            source = node.inputs[0].node
            if not is_everywhere(graph.nodes[source]):
                yield position, positions[source]
        elif node.role in (Role.ENTER, Role.NEXT):
            entering[node.name] = position
    for position, node in enumerate(graph.nodes.values()):
        for edge in node.inputs:
            # Removed by its first reader, so that later ones do not count.
            waiting = entering.pop(edge.node, None)
            if waiting is not None:
                yield waiting, position


def followers(
    graph: ClientGraph, positions: Mapping[str, int], readers: Mapping[str, Sequence[int]]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield each node that is placed with other nodes, and these others.

    A fetch goes to its input, a feed to its first reader, and a constant to its readers if they share a device.
    """
    for position, node in enumerate(graph.nodes.values()):
        if node.op == RETVAL:
            yield position, [positions[node.inputs[0].node]]
        elif node.op == ARG:
            yield position, readers[node.name][:1]
        elif node.role is Role.CONSTANT and "_class" not in node.attrs:
            yield position, readers[node.name]
