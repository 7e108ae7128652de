"""Sinking of transposes below the elementwise nodes that read them, if that does not increase their number.

Transposes around the layers of a network then meet and cancel (the layout propagation of TensorFlow's layout optimizer
and of cuDNN front ends).

Elementwise nodes that read transposed values are *carried* in regions, each as a whole or not at all: a carried node
reads the values before the transpose, and outside readers read a transpose of its result. A kernel iterates in memory
order, so the transpose of the new result has the bytes and strides of the old one. That holds only if all operands have
the same memory order, which `Facts` tells. Nodes that sum, copy into rows or read an axis are never carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.facts import Facts
from aioflow.compiler.optimize.rewrite import Rewriting
from aioflow.concurrency.stopping import batches
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Memory, Role
from aioflow.memory.values import Array

AxisOrder: TypeAlias = tuple[int, ...]


def transposes(graph: ClientGraph) -> Iterator[str]:
    """Yield the names of the transposes."""
    return (name for name, node in graph.nodes.items() if node.op == "Transpose")


def sunk(graph: ClientGraph) -> ClientGraph:
    """Return the graph with the profitable regions carried above their transposes."""
    if not any(transposes(graph)):
        return graph
    regions = _Regions(graph)
    worth = regions.worth()
    return _rewritten(graph, regions, worth) if worth else graph


def permutation(order: Array | None) -> AxisOrder | None:
    """Return a constant as an order of axes, or None if it is not a permutation."""
    if order is None or sorted(order.reshape(-1).tolist()) != list(range(order.size)):
        return None
    return tuple(order.reshape(-1).tolist())


@dataclass(frozen=True, slots=True)
class _Turned:
    """A value that is the transpose of another one.

    Attributes:
        order: The order of the axes.
        transpose: The first node with this order.
        ordered: True if the value before the transpose is row-major.
    """

    order: AxisOrder
    transpose: Node
    ordered: bool


class _Regions:
    """The elementwise nodes that can be carried, grouped into regions."""

    def __init__(self, graph: ClientGraph) -> None:
        self.turned: dict[str, _Turned] = {}  # by node: all outputs of a node are transposed alike
        self._graph = graph
        self._nodes = graph.nodes
        self._facts = Facts(graph.nodes)
        self._above: dict[str, str] = {}  # union-find over transposes and the nodes that can be carried
        self._orders: dict[str, AxisOrder] = {}
        for node in graph.nodes.values():
            if node.op == "Transpose":
                self._note_transpose(node)
            elif self.turned and any(edge.node in self.turned for edge in node.inputs):
                self._note_reader(node)

    def worth(self) -> set[str]:
        """Return the nodes of the regions that do not increase the number of transposes."""
        gains: Counter[str] = Counter()
        consumers = self._graph.consumers()
        for name, turned in self.turned.items():
            back = [r for r in consumers[name] if r.name in self._orders and _undo(turned.order, self._orders[r.name])]
            rest = [r for r in consumers[name] if r not in back and not self._carries(r, name)]
            if turned.transpose.name == name:
                # A transpose without other readers disappears; a member gains its inverse transposes and costs one for
                # outside readers.
                gains[self._root(name)] += not rest
            else:
                reads = any(edge.node == name for r in rest for edge in r.inputs)
                gains[self._root(name)] += len(back) - reads
        return {n for n, t in self.turned.items() if t.transpose.name != n and gains[self._root(n)] >= 0}

    def _carries(self, reader: Node, name: str) -> bool:
        turned = self.turned.get(reader.name)
        return turned is not None and turned.transpose.name != reader.name and name not in reader.control

    def _note_transpose(self, node: Node) -> None:
        source = self._nodes[node.inputs[1].node]
        order = permutation(source.attrs["value"]) if source.role is Role.CONSTANT else None
        if order is None or len(order) < 2:
            return
        self._orders[node.name] = order
        edge = node.inputs[0]
        inner = self.turned.get(edge.node)
        # A transpose back ends the region of its input and starts none.
        if inner is not None and _undo(inner.order, order):
            return
        ordered = self._facts.is_row_major(edge)
        if (ordered or self._facts.is_compact(edge)) and _known_rank(node, len(order)):
            self.turned[node.name] = _Turned(order, node, ordered)

    def _note_reader(self, node: Node) -> None:
        found = [self.turned[edge.node] for edge in node.inputs if edge.node in self.turned]
        first = found[0]
        ordered = all(one.ordered for one in found)
        if (
            self._is_elementwise(node)
            and all(one.order == first.order and one.transpose.device == node.device for one in found)
            # Several operands certainly have the same memory order only if all are row-major.
            and (ordered or len(found) == 1)
            and _known_rank(node, len(first.order))
            and all(edge.node in self.turned or self._fits(node, edge, first.order) for edge in node.inputs)
        ):
            self.turned[node.name] = _Turned(first.order, first.transpose, ordered)
            for edge in node.inputs:
                if edge.node in self.turned:
                    self._above[self._root(edge.node)] = self._root(node.name)

    def _is_elementwise(self, node: Node) -> bool:
        traits = traits_of(node.op)
        return (
            traits.kind == "elementwise"
            and traits.memory is Memory.OWN
            and not traits.row_major
            and self._facts.is_pure(node.op)
        )

    def _fits(self, node: Node, edge: Edge, order: AxisOrder) -> bool:
        """Return whether an operand is the same for all elements, or a constant that varies along one axis only."""
        spec = self._graph.spec(edge)
        if spec.dims == ():
            return True
        source, traits = self._nodes[edge.node], traits_of(node.op)
        if source.role is not Role.CONSTANT or not traits.broadcasts or spec.dtype.name not in traits.fuses:
            return False
        value: Array = source.attrs["value"]
        return value.ndim <= len(order) and sum(size != 1 for size in value.shape) <= 1

    def _root(self, name: str) -> str:
        while name in self._above and self._above[name] != name:
            name = self._above[name]
        return name


def _known_rank(node: Node, rank: int) -> bool:
    return all(spec.dims is not None and len(spec.dims) == rank for spec in node.outputs)


def _undo(first: AxisOrder, second: AxisOrder) -> bool:
    return len(first) == len(second) and all(first[axis] == i for i, axis in enumerate(second))


def _rewritten(graph: ClientGraph, regions: _Regions, worth: set[str]) -> ClientGraph:
    rewriting = Rewriting(graph)
    read_outside = {
        edge for n in graph.nodes.values() if n.name not in worth for edge in n.inputs if edge.node in worth
    }
    for node in batches(graph.nodes.values(), 64):
        renamed = rewriting.renamed(node)
        if node.name not in worth:
            rewriting.record(node, renamed)
            continue
        turned = regions.turned[node.name]
        inputs = _straight(node, renamed, regions, worth, rewriting)
        carried = rewriting.remade(renamed, node.op, inputs, **node.attrs)
        if carried is None:  # control edges cannot express what it waits for
            return graph
        outputs = tuple(OutputSpec(spec.dtype, _before(spec.dims, turned.order)) for spec in node.outputs)
        rewriting.record(node, replace(carried, outputs=outputs))
        for port, spec in enumerate(node.outputs):
            if Edge(node.name, port) in read_outside:
                attrs = {**turned.transpose.attrs, "T": spec.dtype}
                # Readers outside of the region still need the transposed value.
                rewriting.follow(node, port, "transposed", "Transpose", turned.transpose.inputs[1:], attrs, spec)
    return rewriting.finished()


def _straight(node: Node, renamed: Node, regions: _Regions, worth: set[str], rewriting: Rewriting) -> tuple[Edge, ...]:
    """Return the inputs of a node when it is carried."""
    order = regions.turned[node.name].order
    found = []
    for edge, now in zip(node.inputs, renamed.inputs, strict=True):
        if edge.node in worth:
            found.append(edge)
        elif edge.node in regions.turned:
            found.append(rewriting.node(edge).inputs[0])
        else:
            found.append(_along(node, now, order, rewriting))
    return tuple(found)


def _along(node: Node, edge: Edge, order: AxisOrder, rewriting: Rewriting) -> Edge:
    """Return a constant along one axis as a constant along the axis that this was before the transpose."""
    value = rewriting.constant(edge)
    if value is None or value.size == 1:
        return edge
    lead = len(order) - value.ndim
    axis = next(order[lead + i] for i, size in enumerate(value.shape) if size != 1)
    made = value.reshape(-1, *[1] * (len(order) - 1 - axis))
    return rewriting.beside(node, "along", made, rewriting.spec(edge).dtype, rewriting.node(edge).control)


def _before(dims: Dims, order: AxisOrder) -> Dims:
    """Return the shape before a transpose with this order, given the shape after it."""
    known = dims or ()
    return tuple(known[order.index(axis)] for axis in range(len(known)))
