"""Constant folding: a node whose inputs are all constants is computed once, when the step is compiled.

Whitepaper 5.1 has it as part of common subexpression elimination; the limits are those of TensorFlow's grappler. The
constant has the control inputs of the node and its inputs. Inside a branch or a loop these include the pivot, without
which the constant would be alive too often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.optimize.rewrite import Evaluate, Rewriting, sweep
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import num_elements
from aioflow.memory.values import Array

MAX_BYTES: Final = 10 * 2**20  # of the outputs of one node
_ALLOWANCE: Final = 100 * 2**10  # bytes; a larger result may not exceed its inputs by more than _GROWTH
_GROWTH: Final = 8  # factor, as where bytes become floats


def folding_but_widened(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph with constants folded, except casts of small integers to larger numbers.

    An engine may compute with quantized weights directly.
    """
    return constant_folding(graph, evaluate, keeps=_is_widened)


def _is_widened(node: Node, inputs: Sequence[Array]) -> bool:
    return node.op == "Cast" and inputs[0].dtype.kind in "iu" and inputs[0].itemsize <= 2 < node.outputs[0].dtype.size


def constant_folding(
    graph: ClientGraph,
    evaluate: Evaluate,
    max_bytes: int = MAX_BYTES,
    keeps: Callable[[Node, Sequence[Array]], bool] = lambda node, inputs: False,
) -> ClientGraph:
    """Return the graph with constants folded.

    Args:
        graph: The graph.
        evaluate: Computes a node; returns None if the node may not be computed now or fails, so that it fails in the
            step.
        max_bytes: Maximum size of the outputs of one node.
        keeps: Returns whether a node with these inputs stays as it is.
    """

    def rule(node: Node, rewriting: Rewriting) -> Node | None:
        values = [rewriting.constant(edge) for edge in node.inputs]
        inputs = [v for v in values if v is not None]
        if not inputs or len(inputs) < len(values) or keeps(node, inputs):
            return None
        if not _may_be_folded(node, inputs, rewriting, max_bytes):
            return None
        results = evaluate(node, replace(graph, nodes=rewriting.nodes), inputs)
        if results is None or not _fit(node, results) or not _is_small(_size(results), inputs, max_bytes):
            return None
        return _constants(node, results, rewriting)

    return sweep(graph, rule)


def _may_be_folded(node: Node, inputs: Sequence[Array], rewriting: Rewriting, max_bytes: int) -> bool:
    if not node.outputs or not rewriting.facts.is_pure(node.op) or not rewriting.may_be_constant(node):
        return False
    counts = [num_elements(spec.dims) for spec in node.outputs]
    sizes = [count * spec.dtype.size for count, spec in zip(counts, node.outputs, strict=True) if count is not None]
    # Where a size is unknown before the node has run, the inputs must bound it.
    known = len(sizes) == len(counts) or traits_of(node.op).never_larger
    return known and _is_small(sum(sizes), inputs, max_bytes)


def _is_small(size: int, inputs: Sequence[Array], max_bytes: int) -> bool:
    return size <= min(max_bytes, max(_ALLOWANCE, _GROWTH * _size(inputs)))


def _size(values: Sequence[Array]) -> int:
    return sum(value.nbytes for value in values)


def _fit(node: Node, results: Sequence[Array]) -> bool:
    """Return whether the results match the node's declaration and are finite."""
    # A result that is not finite is left to the step, whose own check must find it.
    specs = node.outputs
    return len(results) == len(specs) and all(
        r.dtype == s.dtype.np_dtype and _is_finite(r, s.dtype) for r, s in zip(results, specs, strict=True)
    )


def _is_finite(value: Array, dtype: DType) -> bool:
    return not (dtype.is_floating or dtype.is_complex) or bool(np.isfinite(value).all())


def _constants(node: Node, results: Sequence[Array], rewriting: Rewriting) -> Node | None:
    control = dict.fromkeys(node.control)
    for edge in node.inputs:
        control.update(dict.fromkeys(rewriting.node(edge).control))
    first, *others = results
    made = rewriting.as_constant(node, first, tuple(control))
    if made is not None and others:
        rewriting.replace_outputs(node, others, tuple(control))
    return made
