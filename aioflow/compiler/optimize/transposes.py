"""Merging of consecutive transposes and reshapes, and folding of transposes into matrix products.

These are the cancellations of grappler's layout optimizer and of XLA's algebraic simplifier. A transpose is a view, and
a product implements its transpose flags as views too. So the product gets operands with the same bytes and strides, and
its rounding cannot change. Of two reshapes the first is removed only if it neither copies nor can fail. `sinking` moves
transposes past elementwise nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.rewrite import Evaluate, RewriteRule, Rewriting, sweep
from aioflow.compiler.optimize.sinking import AxisOrder, permutation, sunk
from aioflow.graph.shapes import Dims
from aioflow.memory.values import Array


def transposes(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with one node wherever several rearrange the same value."""
    graph = sweep(graph, _simplified)
    carried = sunk(graph)
    # Transposes that sinking has brought together are merged now.
    return graph if carried is graph else sweep(carried, _simplified)


def _simplified(node: Node, rewriting: Rewriting) -> Node | None:
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node, rewriting)


def _permutation(node: Node, rewriting: Rewriting) -> AxisOrder | None:
    """Return the constant permutation of a Transpose."""
    return permutation(rewriting.constant(node.inputs[1])) if node.op == "Transpose" else None


def _transpose(node: Node, rewriting: Rewriting) -> Node | None:
    """Merge two Transposes into one with the product of the permutations, or into none."""
    inner = rewriting.node(node.inputs[0])
    first, second = _permutation(inner, rewriting), _permutation(node, rewriting)
    if first is None or second is None or len(first) != len(second):
        return None
    # Axis i of the result is axis second[i] of the inner result, and so axis first[second[i]] of the value.
    both = tuple(first[axis] for axis in second)
    if both == tuple(range(len(both))):
        return rewriting.passed_on(node, inner.inputs[0])
    return _reordered(node, inner, both, rewriting)


def _reordered(node: Node, inner: Node, order: AxisOrder, rewriting: Rewriting) -> Node | None:
    """Return the node as a Transpose of what `inner` transposes.

    The new permutation has the control inputs of the old one.
    """
    read = rewriting.remade(node, node.op, (inner.inputs[0], node.inputs[1]), **node.attrs)
    if read is None:
        return None
    dtype = rewriting.spec(node.inputs[1]).dtype
    control = rewriting.node(node.inputs[1]).control
    combined = rewriting.beside(node, "perm", np.array(order, dtype.np_dtype), dtype, control)
    return replace(read, inputs=(read.inputs[0], combined))


def _reshape(node: Node, rewriting: Rewriting) -> Node | None:
    """Merge two Reshapes into the last one."""
    inner = rewriting.node(node.inputs[0])
    if inner.op != "Reshape" or inner.name not in rewriting.nodes:
        return None
    edge, sizes = inner.inputs[0], rewriting.constant(inner.inputs[1])
    if sizes is None or not _always_fits(rewriting.spec(edge).dims, sizes) or not rewriting.facts.is_row_major(edge):
        return None
    return rewriting.remade(node, node.op, (edge, node.inputs[1]), **node.attrs)


def _always_fits(dims: Dims, sizes: Array) -> bool:
    """Return whether a tensor can be reshaped to `sizes` whatever its unknown dimensions are."""
    if dims is None or (sizes < -1).any() or (sizes == -1).sum() > 1:
        return False
    rest = math.prod(size for size in sizes.reshape(-1).tolist() if size != -1)
    known = math.prod(d for d in dims if d is not None)
    if None in dims:
        # Whatever the unknown sizes are, the number of elements is a multiple of `known`, and so of `rest`.
        return bool((sizes == -1).sum() == 1 and rest > 0 and known % rest == 0)
    return bool(rest > 0 and (known % rest == 0 if (sizes == -1).any() else known == rest))


# The flags of a product for its first and second operand. The batched ones also conjugate, so they must not be complex.
_FLAGS: Final[Mapping[str, tuple[str, str]]] = {
    "BatchMatMul": ("adj_x", "adj_y"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "MatMul": ("transpose_a", "transpose_b"),
}


def _product(node: Node, rewriting: Rewriting) -> Node | None:
    """Fold transposes of the operands into the product's flags."""
    if node.op != "MatMul" and node.outputs[0].dtype.is_complex:
        return None
    inputs, attrs = list(node.inputs), dict(node.attrs)
    for position, flag in enumerate(_FLAGS[node.op]):
        source = _untransposed(node.inputs[position], rewriting)
        if source is not None:
            inputs[position] = source
            attrs[flag] = not attrs[flag]
    return rewriting.remade(node, node.op, inputs, **attrs) if tuple(inputs) != node.inputs else None


def _untransposed(edge: Edge, rewriting: Rewriting) -> Edge | None:
    """Return the input of a Transpose of the last two axes, or None for any other node."""
    node = rewriting.node(edge)
    order = _permutation(node, rewriting)
    rank = 0 if order is None else len(order)
    return node.inputs[0] if rank > 1 and order == (*range(rank - 2), rank - 1, rank - 2) else None


_RULES: Final[Mapping[str, RewriteRule]] = {
    **dict.fromkeys(_FLAGS, _product),
    "Reshape": _reshape,
    "Transpose": _transpose,
}
