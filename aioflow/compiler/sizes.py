"""Inference of static shapes by the ops' shape functions, repeated when more is known about the feeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.errors import OpError
from aioflow.graph.boundary import ARG
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims, num_elements
from aioflow.graph.static_value import constant_value
from aioflow.kernels.registry import HOST, KERNELS
from aioflow.memory.values import Array
from aioflow.ops.apply import output_specs
from aioflow.ops.importer import by_name

_ASSUMED: Final = 46_080  # 2**10 * 45: assumed for an unknown size; large, and divisible by most divisors


def with_shapes(
    graph: ClientGraph, given: Mapping[int, Dims], values: Mapping[int, Array] | None = None
) -> ClientGraph:
    """Return a step with the shapes that follow if its feeds have these shapes.

    Args:
        graph: The graph of the step.
        given: The shapes, by the index of the feed.
        values: The values of some feeds (`telling`), by the index of the feed.

    Raises:
        OpError: a node does not accept inputs of these shapes.
    """
    inference = _Inference(graph)
    for node in graph.nodes.values():
        if node.op == ARG:
            index = node.attrs["index"]
            inference.add(node, [given[index]], None if values is None else values.get(index))
        # Without a shape function, or behind an input that comes later in a loop, the static shapes stay.
        elif not inference.infer(node):
            inference.add(node, [spec.dims for spec in node.outputs])
    return inference.graph()


def assuming_sizes(graph: ClientGraph) -> ClientGraph:
    """Return the graph with the shapes that follow if each unknown size is a large one.

    If a size of a value with known rank is still unknown then, it depends on values.
    """
    inference = _Inference(graph)
    for node in graph.nodes.values():
        try:
            if not inference.infer(node):
                inference.add(node, [_assumed(spec.dims) for spec in node.outputs])
        except OpError:  # the assumption is too large here: use only what is known without it
            inference.add(node, [spec.dims for spec in node.outputs])
    return inference.graph()


def by_values(graph: ClientGraph) -> list[str]:
    """Return the nodes whose sizes depend on values, and not on the sizes of the graph's inputs."""
    likely = assuming_sizes(graph)
    return [
        name
        for name, read in likely.read_outputs().items()
        if not _are_known(read) and _are_known(map(likely.spec, likely.nodes[name].inputs))
    ]


def telling(graph: ClientGraph) -> frozenset[int]:
    """Return the indices of the feeds whose values may determine sizes: integers that `by_values` nodes depend on."""
    waiting, seen, found = by_values(graph), set[str](), set[int]()
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.op == ARG:
            found.add(node.attrs["index"])
        sources = {edge.node for edge in node.inputs if graph.spec(edge).dtype.is_integer}
        waiting += sources - seen
        seen |= sources
    return frozenset(found)


def _are_known(specs: Iterable[OutputSpec]) -> bool:
    return all(num_elements(spec.dims) is not None for spec in specs)


def _assumed(dims: Dims) -> Dims:
    return None if dims is None else tuple(_ASSUMED if size is None else size for size in dims)


def _both(static: Dims, inferred: Dims) -> Dims:
    """Return the combined information of two shapes of one value. If they contradict, the static one is right."""
    if static is None or inferred is None or len(static) != len(inferred):
        return inferred if static is None else static
    return tuple(more if size is None else size for size, more in zip(static, inferred, strict=True))


def _is_open(given: Tensor | list[Tensor]) -> bool:
    return any(constant_value(tensor) is None for tensor in (given if isinstance(given, list) else [given]))


class _Inference:
    """The nodes of a graph as operations of a temporary graph, with output shapes as far as they are inferred."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._home = Graph()  # an operation needs a graph, but these are not listed in it
        self._tensors: dict[Edge, Tensor] = {}

    def infer(self, node: Node) -> bool:
        """Add a node with the shapes that follow from those of its inputs, and return whether they could be inferred.

        Inputs that the kernel reads as numbers, such as axes and sizes, must be known; otherwise the shapes are
        unknown.

        Raises:
            OpError: the node does not accept inputs of these shapes.
        """
        op_def = OPS.get(node.op)
        if op_def.shape_fn is None or not node.inputs or any(edge not in self._tensors for edge in node.inputs):
            return False
        inputs = [self._tensors[edge] for edge in node.inputs]
        named = by_name(op_def, inputs, node.attrs)
        inferred = output_specs(op_def, named, node.attrs)
        kernel = KERNELS.find(node.op, HOST, node.attrs)
        if kernel is not None and any(_is_open(named[name]) for name in kernel.host):
            self.add(node, [None for _ in node.outputs])
            return True
        self.add(node, [_both(spec.dims, dims) for spec, (_, dims) in zip(node.outputs, inferred, strict=True)])
        return True

    def add(self, node: Node, dims: list[Dims], value: Array | None = None) -> None:
        """Add a node with these output shapes, or a constant if its value is given."""
        op_def = OPS.get(node.op if value is None else "Const")
        inputs = tuple(self._tensors[edge] for edge in node.inputs if edge in self._tensors)
        attrs: dict[str, object] = dict(node.attrs) if value is None else {"value": value, "dtype": node.attrs["T"]}
        op = Operation(self._home, op_def, node.name, inputs, attrs)
        op.outputs = [
            Tensor(op, port, spec.dtype, each) for port, (spec, each) in enumerate(zip(node.outputs, dims, strict=True))
        ]
        self._tensors.update((Edge(node.name, port), tensor) for port, tensor in enumerate(op.outputs))

    def graph(self) -> ClientGraph:
        """Return the graph with the inferred shapes."""
        return replace(self._graph, nodes={name: self._with_shapes(node) for name, node in self._graph.nodes.items()})

    def _with_shapes(self, node: Node) -> Node:
        dims = (self._tensors[Edge(node.name, port)].dims for port in range(len(node.outputs)))
        specs = tuple(OutputSpec(spec.dtype, each) for spec, each in zip(node.outputs, dims, strict=True))
        return node if specs == node.outputs else replace(node, outputs=specs)
