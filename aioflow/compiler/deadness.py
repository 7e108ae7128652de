"""Analysis of the values that may be dead at run time: those on a branch (whitepaper, 4.4).

The guard of a node is the set of predicates, each with the side that it must take, under which the node is alive.
Values of a loop are as alive as the values that enter it. If the graph has another form than `cond` makes, a value
counts as possibly dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node

Guard: TypeAlias = frozenset[tuple[Edge, bool]]
_ALIVE: Final[Guard] = frozenset()
_UNKNOWN: Final[Guard] = frozenset({(Edge("", 0), True)})  # no Merge removes it


def may_be_dead(graph: ClientGraph) -> frozenset[Edge]:
    """Return the outputs that may be dead in a step.

    Inside loops, only branches around the loop count.
    """
    walk = _Walk(graph)
    for node in graph.nodes.values():
        walk.visit(node)
    outputs = (Edge(node.name, port) for node in graph.nodes.values() for port in range(max(1, len(node.outputs))))
    return frozenset(edge for edge in outputs if walk.guard(edge))


def guards(graph: ClientGraph) -> dict[str, Guard]:
    """Return the guards of the nodes whose guard is known. Nodes with equal guards run in the same steps.

    Inside loops, a guard covers only branches around the loop.
    """
    walk = _Walk(graph)
    for node in graph.nodes.values():
        walk.visit(node)
    return {name: guard for name in graph.nodes if _UNKNOWN.isdisjoint(guard := walk.guard_of(name))}


class _Walk:
    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._nodes: dict[str, Guard] = {}
        self._loops = {_predicate(graph, n) for n in graph.nodes.values() if n.op == "LoopCond"}
        self._sides: dict[Edge, Guard] = {}

    def guard(self, edge: Edge) -> Guard:
        """Return the guard of an output."""
        return self._sides.get(edge, self._nodes.get(edge.node, _ALIVE))

    def guard_of(self, name: str) -> Guard:
        """Return the guard of a node itself."""
        return self._nodes[name]

    def visit(self, node: Node) -> None:
        """Determine the guard of a node from the nodes before it, ignoring back edges."""
        if node.op == "Merge":
            self._nodes[node.name] = self._merge(node)
            return
        # A ControlTrigger runs even if its inputs are dead.
        if node.op == "ControlTrigger":
            self._nodes[node.name] = _ALIVE
            return
        guards = [*(self.guard(e) for e in node.inputs), *(self._nodes.get(c, _ALIVE) for c in node.control)]
        guard = self._nodes[node.name] = frozenset[tuple[Edge, bool]]().union(*guards)
        if node.op == "Switch":
            predicate = _predicate(self._graph, node)
            # A loop's own Switch leaves no value dead for the whole step: values of a loop are as alive as those that
            # enter it.
            if predicate not in self._loops:
                for port in range(2):
                    self._sides[Edge(node.name, port)] = guard | {(predicate, bool(port))}

    def _merge(self, node: Node) -> Guard:
        guards = [self.guard(e) for e in node.inputs if e.node in self._nodes]
        # A loop's Merge has one visited input; the other one comes along the back edge.
        if len(guards) < 2:
            return _joined(guards)
        if len(guards) > 2:
            return _UNKNOWN
        first, second = guards
        # A Merge ends a branch if its inputs differ in one predicate, on opposite sides.
        differing = first - second
        if len(differing) == 1:
            ((predicate, side),) = differing
            if second - first == {(predicate, not side)}:
                return first & second
        return first if first == second else _UNKNOWN


def _joined(guards: Iterable[Guard]) -> Guard:
    return frozenset[tuple[Edge, bool]]().union(*guards)


def _predicate(graph: ClientGraph, node: Node) -> Edge:
    """Return the predicate of a Switch or LoopCond, without the nodes that only pass it on."""
    edge = node.inputs[-1] if node.op == "Switch" else Edge(node.name, 0)
    while graph.nodes[edge.node].op in ("Identity", "LoopCond"):
        edge = graph.nodes[edge.node].inputs[0]
    return edge
