"""Fusion of a matrix product or convolution with the bias and activation that follow it.

Bias and activation are applied in the product's own buffer while it is in cache (Grappler's remapper: `_FusedMatMul`,
`_FusedConv2D`). Between bias and activation a convolution may be added to another array: that of a residual network.

Every intermediate result must be read by the next fused node alone, and must not be fetched, waited for or colocated
with, so that its removal is not observable. The fused node has the name of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import aioflow.ops.fused  # noqa: F401  # defines the ops of kernels.fused
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.fuse_elementwise import named_elsewhere, origins
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph.opdef import OPS
from aioflow.kernels.fused import implied_attrs

_FUSED: Final[Mapping[str, str]] = {
    "MatMul": "_FusedMatMul",
    "Conv2D": "_FusedConv2D",
    "DepthwiseConv2dNative": "_FusedDepthwiseConv2dNative",
}
_SUMS: Final = frozenset({"Add", "AddV2"})
_ADDITIONS: Final = _SUMS | {"BiasAdd", "BiasAddV1"}
_ADDED_TO: Final = _FUSED.keys() - {"MatMul"}
_ACTIVATIONS: Final = frozenset({"Relu", "Relu6", "Tanh", "Sigmoid", "Elu"})
_SWISH: Final = ("Sigmoid", "Mul")  # x * sigmoid(x): the sigmoid reads x alone, the product reads both
_DTYPES: Final = frozenset({"float32", "float64"})
# Attributes of products that no kernel reads.
_HINTS: Final = frozenset({"use_cudnn_on_gpu", "grad_a", "grad_b"})
# Attributes that do not affect what a node computes.
_ASIDE: Final = frozenset({"_class", "_output_shapes", "_gradient_op_type"})


def fuse_bias(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with products, biases and activations fused."""
    if not any(node.op in _FUSED for node in graph.nodes.values()):
        return graph
    pattern = _Pattern(graph)
    found = [steps for node in graph.nodes.values() if len(steps := pattern.after(node)) > 1]
    fused = {steps[-1].name: _fused(graph, steps) for steps in found}
    gone = {node.name for steps in found for node in steps[:-1]}
    return replace(graph, nodes={n: fused.get(n, node) for n, node in graph.nodes.items() if n not in gone})


class _Pattern:
    """Search for the nodes that follow a product in a graph and can be fused with it."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._consumers = graph.consumers()
        self._named = named_elsewhere(graph)
        self._place = {name: at for at, name in enumerate(graph.nodes)}

    def after(self, product: Node) -> list[Node]:
        """Return the product followed by those of bias, residual sum and activation that can be fused with it.

        The result is empty if `product` is not a product. An activation is one node, or the two of `x * sigmoid(x)`.
        """
        if product.op not in _FUSED or not self._is_plain(product):
            return []
        steps = [product]
        bias = self._next(product)
        if bias is not None and bias.op in _ADDITIONS and _bias_operand(self._graph, product, bias) is not None:
            steps.append(bias)
            steps += self._residual(product, bias)
        activation = self._next(steps[-1])
        if activation is not None and activation.op in _ACTIVATIONS and _has_defaults(self._graph, activation):
            steps.append(activation)
            return steps
        return [*steps, *self._swish(steps[-1])]

    def _is_plain(self, product: Node) -> bool:
        known = OPS.get(_FUSED[product.op]).attrs
        channels_last = product.attrs.get("data_format", "NHWC") == "NHWC"
        own = set(product.attrs) - _ASIDE - _HINTS
        return channels_last and product.outputs[0].dtype.name in _DTYPES and own <= set(known)

    def _next(self, node: Node) -> Node | None:
        """Return the only reader of a node if the two can be fused, or None."""
        readers = self._readers(node)
        return readers[0] if len(readers) == 1 else None

    def _residual(self, product: Node, node: Node) -> Sequence[Node]:
        """Return the addition of an earlier array of the same shape to a convolution's result, or nothing.

        This cannot create a cycle: all readers of the product read it through the addition, which reads the array. The
        array must come before the convolution in the order of the graph.
        """
        total = self._next(node)
        if (
            product.op not in _ADDED_TO
            or total is None
            or total.op not in _SUMS
            or not _has_defaults(self._graph, total)
        ):
            return ()
        others = [edge for edge in total.inputs if edge.node != node.name]
        dims = node.outputs[0].dims
        if len(others) != 1 or dims is None or self._graph.spec(others[0]).dims != dims:
            return ()
        # If two convolutions are added, the later one absorbs the sum, so that the earlier one does not have to keep
        # its image waiting. On another device the product would have to wait for the transfer.
        other = self._graph.nodes[others[0].node]
        return (total,) if other.device == node.device and self._place[other.name] < self._place[node.name] else ()

    def _swish(self, x: Node) -> Sequence[Node]:
        """Return the sigmoid and the product of `x * sigmoid(x)` if no other node reads x; or nothing."""
        readers = self._readers(x)
        if sorted(reader.op for reader in readers) != sorted(_SWISH):
            return ()
        sigmoid, last = sorted(readers, key=lambda reader: _SWISH.index(reader.op))
        if self._next(sigmoid) is not last or not all(_has_defaults(self._graph, each) for each in readers):
            return ()
        return (sigmoid, last)

    def _readers(self, node: Node) -> Sequence[Node]:
        """Return all readers of a node if it can be fused with them without an observable change; or nothing."""
        readers = self._consumers[node.name]
        return readers if node.name not in self._named and all(_alike(node, each) for each in readers) else ()


def _alike(node: Node, reader: Node) -> bool:
    """Return whether two nodes have the same device, control inputs and colocation."""
    return (
        reader.device == node.device
        and reader.control == node.control
        and reader.attrs.get("_class") == node.attrs.get("_class")
    )


def _has_defaults(graph: ClientGraph, node: Node) -> bool:
    own = {name: value for name, value in node.attrs.items() if name not in _ASIDE}
    dtypes = [graph.spec(edge).dtype for edge in node.inputs]
    return own == implied_attrs(node.op, dtypes, node.outputs[0].dtype)


def _bias_operand(graph: ClientGraph, product: Node, node: Node) -> Edge | None:
    """Return the bias, one number per channel, that is added to the product; None if anything else is added."""
    if not _has_defaults(graph, node):
        return None
    at = node.inputs.index(Edge(product.name, 0))
    other = node.inputs[1 - at]
    if node.op in ("BiasAdd", "BiasAddV1"):
        # A BiasAdd adds its second input to the first, so the product must be the first.
        return other if at == 0 else None
    made, bias = product.outputs[0].dims, graph.spec(other).dims
    if made is None or bias is None or len(bias) != 1 or bias[0] is None or bias[0] != made[-1]:
        return None
    return other


def _fused(graph: ClientGraph, steps: Sequence[Node]) -> Node:
    product, last = steps[0], steps[-1]
    bias = _bias_operand(graph, product, steps[1]) if steps[1].op in _ADDITIONS else None
    op = _FUSED[product.op]
    results = {Edge(node.name, 0): at for at, node in enumerate(steps)}
    reads = [node.inputs for node in steps[1:]]
    if bias is not None:
        # An addition may have the bias first, while BiasAdd has it second.
        reads[0] = (Edge(product.name, 0), bias)
    # Operands are numbered: 0 is the product, then the additional inputs, then the results of the fused steps.
    args = dict.fromkeys(edge for edges in reads for edge in edges if edge not in results)
    values = {edge: len(args) + at if at else 0 for edge, at in results.items()}
    values |= {edge: 1 + at for at, edge in enumerate(args)}
    attrs: dict[str, object] = {name: product.attrs[name] for name in OPS.get(op).attrs if name in product.attrs}
    attrs |= {
        "num_args": len(args),
        "fused_ops": ("BiasAdd" if bias else steps[1].op, *(node.op for node in steps[2:])),
        "operands": tuple(values[edge] for edges in reads for edge in edges),
    }
    attrs |= origins(steps)
    if "_class" in last.attrs:
        attrs["_class"] = last.attrs["_class"]
    return replace(last, op=op, inputs=(*product.inputs, *args), attrs=attrs)
