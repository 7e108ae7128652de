"""Fusion of a layer normalization over the last axis, as the importer of ONNX models writes it, into `_LayerNorm`.

This is done where a package has a faster kernel than the device's own, whose time is that of the single nodes.

No intermediate result may be read elsewhere, or be fetched, waited for or colocated with. The result has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import aioflow.ops.fused  # noqa: F401  # defines the ops of kernels.fused
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.fuse_elementwise import named_elsewhere
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph.traits import Role
from aioflow.kernels.registry import KERNELS
from aioflow.memory.values import Array


def fuse_layer_norm(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with layer normalizations fused. Each has the name of its last node."""
    if not _is_faster() or not any(node.op == "Rsqrt" for node in graph.nodes.values()):
        return graph
    fused, gone, pattern = dict[str, Node](), set[str](), _Pattern(graph)
    for node in graph.nodes.values():
        found = pattern.of(node)
        if found is not None:
            fused[node.name], members = found
            gone.update(members)
    nodes = {name: fused.get(name, node) for name, node in graph.nodes.items() if name not in gone}
    return replace(graph, nodes=nodes)


def _is_faster() -> bool:
    return any(kernel.priority for kernel in KERNELS.for_op("_LayerNorm"))


class _Pattern:
    """Search for (x - mean) * rsqrt(variance + epsilon) * scale + offset."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._consumers, self._named = graph.consumers(), named_elsewhere(graph)

    def of(self, last: Node) -> tuple[Node, set[str]] | None:
        """Return the fused node for a last addition, and the names of the other members; None for other nodes."""
        for scaled, offset in self._split(last, "AddV2", "Mul"):
            for normal, scale in self._split(scaled, "Mul", "Mul"):
                for root, deviation in self._split(normal, "Mul", "Rsqrt"):
                    found = self._statistics(root, deviation)
                    if found is None:
                        continue
                    x, epsilon, statistics = found
                    members = {each.name for each in (scaled, normal, root, *statistics)}
                    if self._are_vectors(x, scale, offset) and self._is_closed(members, last):
                        attrs = {"T": last.outputs[0].dtype, "epsilon": epsilon}
                        attrs |= {name: last.attrs[name] for name in ("_class",) if name in last.attrs}
                        return replace(last, op="_LayerNorm", inputs=(x, scale, offset), attrs=attrs), members
        return None

    def _statistics(self, root: Node, deviation: Edge) -> tuple[Edge, float, list[Node]] | None:
        """Return x, epsilon and the nodes up to the variance plus epsilon, given 1 / deviation and x - mean."""
        difference, total = self._node(deviation), self._node(root.inputs[0])
        if difference.op != "Sub":
            return None
        x, mean = difference.inputs[0], self._node(difference.inputs[1])
        for variance, epsilon in self._split(total, "AddV2", "Mean"):
            square, value = self._node(variance.inputs[0]), self._constant(epsilon)
            is_variance = square.op == "Square" and square.inputs[0] == deviation and mean.op == "Mean"
            if not is_variance or mean.inputs[0] != x or value is None or value.ndim:
                continue
            if self._is_of_rows(mean, x) and self._is_of_rows(variance, x):
                return x, float(value), [difference, total, mean, variance, square]
        return None

    def _node(self, edge: Edge) -> Node:
        return self._graph.nodes[edge.node]

    def _constant(self, edge: Edge) -> Array | None:
        node = self._node(edge)
        return np.asarray(node.attrs["value"]) if node.role is Role.CONSTANT else None

    def _split(self, node: Node, op: str, inner: str) -> Iterator[tuple[Node, Edge]]:
        """Yield each operand of a node of `op` that is of the op `inner`, with the other operand."""
        if node.op == op:
            for edge, other in (node.inputs, node.inputs[::-1]):
                if self._node(edge).op == inner:
                    yield self._node(edge), other

    def _is_of_rows(self, mean: Node, x: Edge) -> bool:
        """Return True if a mean is along the last axis, which it keeps."""
        axes, dims = self._constant(mean.inputs[1]), self._graph.spec(x).dims
        is_last = axes is not None and dims is not None and axes.reshape(-1).tolist() in ([-1], [len(dims) - 1])
        return is_last and bool(mean.attrs.get("keep_dims"))

    def _are_vectors(self, x: Edge, *vectors: Edge) -> bool:
        """Return True if x is float32, and the vectors have a number for each of a known count of columns."""
        dtype, dims = self._graph.spec(x)
        columns = dims[-1:] if dims else ()
        return (
            dtype.name == "float32"
            and None not in columns
            and all(self._graph.spec(v).dims == columns for v in vectors)
        )

    def _is_closed(self, members: set[str], last: Node) -> bool:
        """Return True if the members are read only among themselves, and run where and after what the last one does."""
        for name in members:
            node = self._graph.nodes[name]
            is_alike = node.device == last.device and node.control == last.control
            if name in self._named or not is_alike or node.attrs.get("_class") != last.attrs.get("_class"):
                return False
            if any(reader.name not in members and reader is not last for reader in self._consumers[name]):
                return False
        return True
