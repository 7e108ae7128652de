"""Patterns of subgraphs, written as text, and their search in a graph.

    x * Minimum(Maximum(x * alpha + beta, 0), 1)

- A function's name is an op. `+ - * /` are the arithmetic ops. Operands of a commutative op match in either order.
- A name captures any value. A repeated name must be the same value.
- `(name := …)` names an inner node.
- A number is a constant scalar of that value.
- `Cast[x]` is x, with or without a Cast.
- Identity nodes are looked through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.graph.opdef import OPS
from aioflow.memory.values import Array
from aioflow.runtime.folding import fold

_OPERATORS: Final[Mapping[type[ast.operator], frozenset[str]]] = {
    ast.Add: frozenset({"Add", "AddV2"}),
    ast.Sub: frozenset({"Sub"}),
    ast.Mult: frozenset({"Mul"}),
    ast.Div: frozenset({"Div", "RealDiv"}),
}
_FAR: Final = 16  # longest path from a constant to a value still treated as one
_EQUAL: Final = 1e-6  # relative tolerance, for the digits with which constants are written


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node of a pattern, and the patterns of its inputs.

    Attributes:
        ops: Ops that match; empty for any value or a number.
        inputs: Patterns of the inputs.
        name: Name of the node or captured value.
        number: Value of the constant to match.
        is_optional: True if the first input may stand in the node's place.
    """

    ops: frozenset[str] = frozenset()
    inputs: tuple[Pattern, ...] = ()
    name: str = ""
    number: float | None = None
    is_optional: bool = False

    @property
    def size(self) -> int:
        """Number of nodes in the pattern."""
        return bool(self.ops) + sum(each.size for each in self.inputs)

    @property
    def captured(self) -> dict[str, None]:
        """Names of the values that the pattern reads from outside, in order."""
        found = dict.fromkeys(name for each in self.inputs for name in each.captured)
        if self.name and not self.ops:
            found[self.name] = None
        # A name that is bound by `:=` is computed inside, even if it also occurs as an operand.
        for own in self._named():
            found.pop(own, None)
        return found

    def _named(self) -> Iterator[str]:
        if self.name and self.ops:
            yield self.name
        for each in self.inputs:
            yield from each._named()


def parsed(text: str) -> Pattern:
    """Parse the text of a pattern."""
    return _pattern(ast.parse(text, mode="eval").body)


def _pattern(tree: ast.expr) -> Pattern:
    match tree:
        case ast.Name(id=name):
            return Pattern(name=name)
        case ast.Constant(value=int() | float() as number):
            return Pattern(number=number)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            return replace(_pattern(value), name=name)
        case ast.BinOp(left=left, op=operator, right=right):
            return Pattern(_OPERATORS[type(operator)], (_pattern(left), _pattern(right)))
        case ast.Subscript(value=ast.Name(id=op), slice=value):
            return Pattern(frozenset({op}), (_pattern(value),), is_optional=True)
        case ast.Call(func=ast.Name(id=op), args=args):
            return Pattern(frozenset({op}), tuple(map(_pattern, args)))
    raise ValueError(f"no pattern: {ast.unparse(tree)}")


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a pattern.

    Attributes:
        search: Search that found it.
        edges: Captured values and named inner values, by their names in the pattern.
        nodes: Matched nodes by name; the first returns the result.
    """

    search: Search
    edges: Mapping[str, Edge] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)

    @property
    def root(self) -> Node:
        """The node that returns the result."""
        return next(iter(self.nodes.values()))

    def spec(self, name: str) -> OutputSpec:
        """Return dtype and static shape of a value."""
        return self.search.graph.spec(self.edges[name])

    def node(self, name: str) -> Node:
        """Return the node that returns a value."""
        return self.search.graph.nodes[self.search.behind(self.edges[name]).node]

    def constant(self, name: str) -> Array | None:
        """Return the value if it follows from constants, else None."""
        return self.search.constant(self.edges[name])

    def number(self, name: str) -> float | None:
        """Return the value if it follows from constants and is a scalar, else None."""
        value = self.constant(name)
        return float(value) if value is not None and value.shape == () else None


class Search:
    """Pattern search in one graph."""

    def __init__(self, graph: ClientGraph) -> None:
        self.graph = graph
        self._constants: dict[str, Array | None] = {}
        self._depths: dict[str, int] = {}  # nodes that follow from constants, with their distance
        for node in graph.nodes.values():
            self._note(node)

    def at(self, node: Node, pattern: Pattern) -> Found | None:
        """Return the match of the pattern with `node` as its root, or None."""
        return next(self._match(pattern, Edge(node.name, 0), Found(self)), None)

    def behind(self, edge: Edge) -> Edge:
        """Return the value with Identity nodes looked through."""
        while self.graph.nodes[edge.node].op == "Identity":
            edge = self.graph.nodes[edge.node].inputs[0]
        return edge

    def constant(self, edge: Edge) -> Array | None:
        """Return the value of an output if it follows from constants alone, else None."""
        node = self.graph.nodes[edge.node]
        if node.name not in self._depths:
            return None
        if node.name not in self._constants:
            self._constants[node.name] = self._computed(node)
        return self._constants[node.name]

    def _note(self, node: Node) -> None:
        if node.op == "Const":
            self._depths[node.name] = 0
        elif node.inputs and len(node.outputs) == 1 and all(edge.node in self._depths for edge in node.inputs):
            depth = 1 + max(self._depths[edge.node] for edge in node.inputs)
            if depth < _FAR:
                self._depths[node.name] = depth

    def _computed(self, node: Node) -> Array | None:
        if node.op == "Const":
            value: Array = node.attrs["value"]
            return value
        inputs = [self.constant(edge) for edge in node.inputs]
        given = [value for value in inputs if value is not None]
        results = fold(node, self.graph, given) if len(given) == len(inputs) else None
        return None if results is None else results[0]

    def _match(self, pattern: Pattern, edge: Edge, found: Found) -> Iterator[Found]:
        if pattern.number is not None:
            # The shape is compared first, because computing a large constant only to discard it takes long.
            value = self.constant(edge) if self.graph.spec(edge).dims == () else None
            if value is not None and np.isclose(value, pattern.number, rtol=_EQUAL, atol=0):
                yield found
            return
        if pattern.name:
            known = found.edges.get(pattern.name)
            if known is not None and self.behind(known) != self.behind(edge):
                return
            if known is None:
                # `Found` is immutable: an attempt that fails leaves no names behind for the next one.
                found = Found(self, {**found.edges, pattern.name: edge}, found.nodes)
        if not pattern.ops:
            yield found
            return
        yield from self._match_node(pattern, edge, found)
        if pattern.is_optional:
            yield from self._match(pattern.inputs[0], edge, found)

    def _match_node(self, pattern: Pattern, edge: Edge, found: Found) -> Iterator[Found]:
        # The root is the node itself: an Identity that reads it is not part of the match.
        inner = self.behind(edge) if found.nodes else edge
        node = self.graph.nodes[inner.node]
        if inner.port or node.op not in pattern.ops or len(node.inputs) != len(pattern.inputs):
            return
        taken = Found(self, found.edges, {**found.nodes, **self._between(edge, inner), node.name: node})
        # If a later part of the pattern does not match with one order of operands, the search resumes with the other.
        orders = [pattern.inputs]
        if OPS.get(node.op).commutative:
            orders.append(pattern.inputs[::-1])
        for order in orders:
            yield from self._match_all(order, node.inputs, taken)

    def _between(self, edge: Edge, inner: Edge) -> dict[str, Node]:
        """Return the Identity nodes between two edges of the same value."""
        found = {}
        while edge != inner:
            node = self.graph.nodes[edge.node]
            found[node.name] = node
            edge = node.inputs[0]
        return found

    def _match_all(self, patterns: Sequence[Pattern], edges: Sequence[Edge], found: Found) -> Iterator[Found]:
        if not patterns:
            yield found
            return
        # Backtracking: each match of the first input is tried with all matches of the others.
        for each in self._match(patterns[0], edges[0], found):
            yield from self._match_all(patterns[1:], edges[1:], each)
