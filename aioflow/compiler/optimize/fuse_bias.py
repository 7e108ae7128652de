"""Fuse a matrix product or convolution with the bias, the activation, or both, that follow it, which are then applied
in the product's own buffer while it is in cache (Grappler's remapper: `_FusedMatMul`, `_FusedConv2D`).

What lies between must be read by the next of them alone, and must not be fetched, waited for or placed with: then
nobody can tell that it is gone. The fused node has the name of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import aioflow.ops.fused  # noqa: F401  # defines what kernels.fused registers kernels of
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.evaluate import Evaluate
from aioflow.compiler.optimize.fuse_elementwise import named_elsewhere, origins
from aioflow.graph.opdef import OPS
from aioflow.kernels.fused import implied_attrs

__all__ = ["fuse_bias"]

_FUSED: Final[Mapping[str, str]] = {
    "MatMul": "_FusedMatMul",
    "Conv2D": "_FusedConv2D",
    "DepthwiseConv2dNative": "_FusedDepthwiseConv2dNative",
}
_ADDITIONS: Final = frozenset({"BiasAdd", "BiasAddV1", "Add", "AddV2"})
_ACTIVATIONS: Final = frozenset({"Relu", "Relu6", "Tanh", "Sigmoid", "Elu"})
_DTYPES: Final = frozenset({"float32", "float64"})
# Attributes of products that no kernel looks at.
_HINTS: Final = frozenset({"use_cudnn_on_gpu", "grad_a", "grad_b"})
# Attributes that are no part of what a node computes.
_ASIDE: Final = frozenset({"_class", "_output_shapes", "_gradient_op_type"})


def fuse_bias(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """The graph with products, biases and activations fused."""
    if not any(node.op in _FUSED for node in graph.nodes.values()):
        return graph
    pattern = _Pattern(graph)
    found = [steps for node in graph.nodes.values() if len(steps := pattern.after(node)) > 1]
    fused = {steps[-1].name: _fused(graph, steps) for steps in found}
    gone = {node.name for steps in found for node in steps[:-1]}
    return replace(graph, nodes={n: fused.get(n, node) for n, node in graph.nodes.items() if n not in gone})


class _Pattern:
    """What follows a product in a graph."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._consumers = graph.consumers()
        self._named = named_elsewhere(graph)

    def after(self, product: Node) -> list[Node]:
        """The product, a bias and an activation, those that are there; empty for a node that is not a product."""
        if product.op not in _FUSED or not self._is_plain(product):
            return []
        steps = [product]
        bias = self._next(product)
        if bias is not None and bias.op in _ADDITIONS and _bias_operand(self._graph, product, bias) is not None:
            steps.append(bias)
        activation = self._next(steps[-1])
        if activation is not None and activation.op in _ACTIVATIONS and _has_defaults(self._graph, activation):
            steps.append(activation)
        return steps

    def _is_plain(self, product: Node) -> bool:
        known = OPS.get(_FUSED[product.op]).attrs
        channels_last = product.attrs.get("data_format", "NHWC") == "NHWC"
        own = set(product.attrs) - _ASIDE - _HINTS
        return channels_last and product.outputs[0].dtype.name in _DTYPES and own <= set(known)

    def _next(self, node: Node) -> Node | None:
        """The one node that reads this one, if the two may become one."""
        readers = self._consumers[node.name]
        if len(readers) != 1 or node.name in self._named:
            return None
        reader = readers[0]
        alike = (
            reader.device == node.device
            and reader.control == node.control
            and reader.attrs.get("_class") == node.attrs.get("_class")
        )
        return reader if alike else None


def _has_defaults(graph: ClientGraph, node: Node) -> bool:
    own = {name: value for name, value in node.attrs.items() if name not in _ASIDE}
    dtypes = [graph.spec(edge).dtype for edge in node.inputs]
    return own == implied_attrs(node.op, dtypes, node.outputs[0].dtype)


def _bias_operand(graph: ClientGraph, product: Node, node: Node) -> Edge | None:
    """The bias that an addition adds to the product: one number per channel; None where it is something else."""
    if not _has_defaults(graph, node):
        return None
    at = node.inputs.index(Edge(product.name, 0))
    other = node.inputs[1 - at]
    if node.op in ("BiasAdd", "BiasAddV1"):
        return other if at == 0 else None
    made, bias = product.outputs[0].dims, graph.spec(other).dims
    if made is None or bias is None or len(bias) != 1 or bias[0] is None or bias[0] != made[-1]:
        return None
    return other


def _fused(graph: ClientGraph, steps: Sequence[Node]) -> Node:
    product, last = steps[0], steps[-1]
    operand = _bias_operand(graph, product, steps[1]) if steps[1].op in _ADDITIONS else None
    op = _FUSED[product.op]
    attrs: dict[str, Any] = {name: product.attrs[name] for name in OPS.get(op).attrs if name in product.attrs}
    attrs |= {
        "num_args": int(operand is not None),
        "fused_ops": tuple(_EPILOGUE_OPS.get(node.op, node.op) for node in steps[1:]),
    }
    attrs |= origins(steps)
    if "_class" in last.attrs:
        attrs["_class"] = last.attrs["_class"]
    inputs = product.inputs if operand is None else (*product.inputs, operand)
    return replace(last, op=op, inputs=inputs, attrs=attrs)


# All additions of a bias are the same, where shapes are known to fit; BiasAdd checks those that are not.
_EPILOGUE_OPS: Final[Mapping[str, str]] = {"BiasAddV1": "BiasAdd", "Add": "BiasAdd", "AddV2": "BiasAdd"}
