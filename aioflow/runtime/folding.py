"""Computation of a single node during compilation, for the compiler's constant folding.

The CPU kernel is bound to separate resources, so its effects stay in this module. A node that fails is left to the
step, where the error can name the node. A slow node is also left to the step, where it can be stopped and delays no
other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.place.cost_model import CostModel
from aioflow.concurrency.stopping import Work, current_work, doing
from aioflow.graph.costs import Operand
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.opdef import OPS, traits_of
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import BoundNode, bind_graph, gather
from aioflow.runtime.device import host

_CHEAP: Final = 5e-3  # seconds; the largest results that are folded (10 MiB) take a few milliseconds to write
_TEXT_SECONDS: Final = 1e-8  # per byte of a string
# Maximum number of strings whose lengths are read; more strings cost too much whatever their lengths.
_LOOKED_AT: Final = 1 << 16
_COSTS: Final = CostModel()  # shipped rates: only the order of magnitude matters


def fold(node: Node, graph: ClientGraph, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """Return the outputs of a node as arrays, given its input values in the form of constants' attributes.

    Return None if the node must not be computed now because it has effects or waits, or cannot be computed.
    """
    if traits_of(node.op).is_control_flow or node.op not in OPS or OPS.get(node.op).stateful:
        return None
    if _seconds(node, inputs) > _CHEAP:
        return None
    sources = dict(zip(node.inputs, inputs, strict=True))
    alone = _alone(node, graph, sources)
    try:
        # The result must not depend on the installed kernels, since plans and exported models are compared and cached.
        *constants, bound = bind_graph(alone, host(), ResourceManager(), {}, reproducible=True)
        if bound.kernel.is_async:
            return None
        values = {Edge(constant.node.name, 0): constant.call() for constant in constants}
        with np.errstate(all="ignore"):
            results = doing(_Folding(current_work()), lambda: bound.call(*gather(bound, values, frozenset())))
    except (Exception, _TooLong):  # the step runs the same node and reports the error
        return None
    return _arrays(bound, results)


def _seconds(node: Node, inputs: Sequence[Array]) -> float:
    """Return the expected duration of the node, by the shapes of its operands and the lengths of strings."""
    given = [Operand(as_dtype(value.dtype).name, value.shape, value.nbytes) for value in inputs]
    texts = sum(len(item) for value in inputs if value.dtype == object for item in value.reshape(-1)[:_LOOKED_AT])
    return _COSTS.estimate(node, given, _COSTS.operands(node), "CPU") + texts * _TEXT_SECONDS


class _TooLong(BaseException):
    """The node takes longer than expected."""


class _Folding(Work):
    """The computation of one node as a part of the compilation."""

    __slots__ = ("_compiling", "_until")

    def __init__(self, compiling: Work | None) -> None:
        super().__init__()
        self._compiling = compiling
        # The estimate may be wrong, so a running kernel gets ten times the limit before it is given up.
        self._until = perf_counter() + 10 * _CHEAP

    def check(self) -> None:
        """Raise _TooLong after the time limit, or the exception that ends the compilation."""
        if self._compiling is not None:
            self._compiling.check()
        if perf_counter() > self._until:
            raise _TooLong


def _alone(node: Node, graph: ClientGraph, sources: dict[Edge, Array]) -> ClientGraph:
    """Return a graph of the node alone, with its inputs as constants, each with a unique name."""
    renamed = {edge: Edge(f"{edge.node}:{edge.port}", 0) for edge in sources}
    nodes: dict[str, Node] = {}
    for edge, value in sources.items():
        spec: OutputSpec = graph.spec(edge)
        name = renamed[edge].node
        nodes[name] = Node(name, "Const", attrs={"value": value, "dtype": spec.dtype}, outputs=(spec,))
    nodes[node.name] = replace(node, inputs=tuple(renamed[edge] for edge in node.inputs), control=())
    return ClientGraph(nodes, 0, 0)


def _arrays(bound: BoundNode, results: Value) -> list[Array]:
    return [_array(value, spec) for value, spec in zip(bound.outputs_of(results), bound.node.outputs, strict=True)]


def _array(value: Value, spec: OutputSpec) -> Array:
    """Return a result in the form of a constant's attribute: an array, also for a single number or string."""
    if isinstance(value, np.ndarray) or not spec.dtype.np_dtype.hasobject:
        return np.asarray(value)
    made = np.empty((), object)
    made[()] = value
    return made
