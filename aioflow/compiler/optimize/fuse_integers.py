"""Fusion of a matrix product with the conversion of its left factor from 8-bit integers.

Imported quantized models compute such products in a float dtype that represents every sum exactly: a cast, the
subtraction of a zero point, and the product with constant weights. The fused node (`_IntegerMatMul`,
`_IntegerBatchMatMulV2`) reads the integers, so that a backend may multiply them as such. The result has the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import aioflow.ops.fused  # noqa: F401  # defines the ops of kernels.fused
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.fuse_elementwise import origins
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph.traits import Role

_FUSED: Final[Mapping[str, str]] = {"MatMul": "_IntegerMatMul", "BatchMatMulV2": "_IntegerBatchMatMulV2"}
_INTEGERS: Final = frozenset({"int8", "uint8"})
_FLOATS: Final = frozenset({"float32", "float64"})
_TRANSPOSING: Final = ("transpose_a", "transpose_b", "adj_x", "adj_y")


def fuse_integers(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with the conversions of 8-bit integers fused into the products that read them."""
    fused = {node.name: made for node in graph.nodes.values() if (made := _fused(graph, node)) is not None}
    if not fused:
        return graph
    # A conversion that another node reads stays.
    return dead_code(
        replace(graph, nodes={name: fused.get(name, node) for name, node in graph.nodes.items()}), evaluate
    )


def _fused(graph: ClientGraph, product: Node) -> Node | None:
    """Return the product that reads integers; None if its left factor is not converted from them."""
    if product.op not in _FUSED or any(product.attrs.get(name) for name in _TRANSPOSING):
        return None
    (left, right), zeros = product.inputs, list[Edge]()
    dtype, dims = graph.spec(right)
    if dtype.name not in _FLOATS or dims is None or len(dims) != 2:
        return None
    subtraction = graph.nodes[left.node]
    if subtraction.op == "Sub" and _is_with(subtraction, product):
        left, zero = subtraction.inputs
        if graph.spec(zero).dims != ():
            return None
        zeros.append(zero)
    integers, weights = _integers(graph, left, product), _integers(graph, right, product) or right
    # Large constants are cast in each step.
    if integers is None or graph.nodes[weights.node].role is not Role.CONSTANT:
        return None
    attrs = {"Ta": graph.spec(integers).dtype, "Tb": graph.spec(weights).dtype, "T": dtype, "num_zeros": len(zeros)}
    attrs |= origins([product])
    if "_class" in product.attrs:
        attrs["_class"] = product.attrs["_class"]
    return replace(product, op=_FUSED[product.op], inputs=(integers, weights, *zeros), attrs=attrs)


def _integers(graph: ClientGraph, factor: Edge, product: Node) -> Edge | None:
    """Return the 8-bit integers from which a factor is cast; None if it is not."""
    cast = graph.nodes[factor.node]
    if cast.op != "Cast" or not _is_with(cast, product) or graph.spec(cast.inputs[0]).dtype.name not in _INTEGERS:
        return None
    return cast.inputs[0]


def _is_with(node: Node, product: Node) -> bool:
    """Return True if a node runs where and after what the product does."""
    is_alike = node.device == product.device and node.control == product.control
    return is_alike and node.attrs.get("_class") == product.attrs.get("_class")
