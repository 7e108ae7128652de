"""Fusion of subgraphs that ONNX has as one op into one node.

The family that declared the pattern translates that node. Fusion runs before any optimization, while the graph is as
the user built it: the inputs of a fused node then stay unchanged, including 8-bit weights.
"""

from __future__ import annotations

from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.shapes import num_elements
from aioflow.interop.onnx.exporting.patterns import Found, Pattern, Search
from aioflow.interop.onnx.exporting.rules import Composed, load_families, patterns_of


def fused(graph: ClientGraph, opset: int) -> ClientGraph:
    """Return the graph with fused nodes.

    The inner nodes of a pattern must have no readers outside it, so that nothing is computed twice.
    """
    load_families()
    return replace(graph, nodes=_Fusing(graph, opset).nodes())


class _Fusing:
    """The fusion of one graph, from its end, so that the largest patterns are found before those inside them."""

    def __init__(self, graph: ClientGraph, opset: int) -> None:
        self._graph = graph
        self._search = Search(graph)
        self._opset = opset
        self._readers = graph.consumers()
        self._within: set[str] = set()

    def nodes(self) -> dict[str, Node]:
        """Return all nodes, with each fused node in place of its pattern's root. The inner nodes are then unread."""
        made: dict[str, Node] = {}
        for node in list(self._graph.nodes.values())[::-1]:
            if node.name in self._within or len(node.outputs) != 1:
                continue
            for rule, pattern in patterns_of(node.op):
                found = self._search.at(node, pattern)
                if found is not None and self._is_alone(found) and rule.where(found, self._opset):
                    made[node.name] = _one(rule, pattern, found)
                    self._within.update(set(found.nodes) - self._shared(found))
                    break
        return {name: made.get(name, node) for name, node in self._graph.nodes.items()}

    def _is_alone(self, found: Found) -> bool:
        inner = set(found.nodes) - self._shared(found) - {found.root.name}
        # Patterns must not overlap: the inner nodes of another match are gone.
        if not self._within.isdisjoint(inner) or not inner.isdisjoint(self._graph.targets):
            return False
        return all(reader.name in found.nodes for name in inner for reader in self._readers[name])

    def _shared(self, found: Found) -> set[str]:
        """Return the nodes that patterns may share, since they cost next to nothing.

        They are shapes, and casts of scalars and constants, such as zero points.
        """
        _, *inner = found.nodes.values()
        return {node.name for node in inner if node.op == "Shape" or self._is_cheap_cast(node)}

    def _is_cheap_cast(self, node: Node) -> bool:
        is_constant = node.op == "Cast" and self._graph.nodes[node.inputs[0].node].op == "Const"
        return is_constant or (node.op == "Cast" and num_elements(node.outputs[0].dims) == 1)


def _one(rule: Composed, pattern: Pattern, found: Found) -> Node:
    # In the order of the pattern; an alternative form may lack some of them, such as a zero point.
    names = [name for name in pattern.captured if name in found.edges]
    inner = {name: found.node(name) for name in found.edges if name not in names}
    control = dict.fromkeys(name for node in found.nodes.values() for name in node.control)
    return replace(
        found.root,
        op=rule.op,
        inputs=tuple(found.edges[name] for name in names),
        control=tuple(name for name in control if name not in found.nodes),
        attrs={**inner, "inputs": tuple(names)},
    )
