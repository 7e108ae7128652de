"""Analysis of values that must not come to share memory.

BLAS computes the product of a matrix with its own transpose by another routine (syrk) than the product of two equal
matrices (gemm), with different rounding. So a rewrite that merges two values checks this analysis first. The *roots* of
a value are the nodes whose buffer it may be a view of, as in `runtime/liveness.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Final

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.opdef import traits_of
from aioflow.kernels.registry import ANY_DEVICE, KERNELS
from aioflow.memory.letting_go import let_go

_MANY: Final = 64  # roots: a chain of hundreds of branches that pass values on is not followed to its start
_NONE: Final[frozenset[str]] = frozenset()


class Aliasing:
    """The roots of the values of a graph, and the pairs of roots that a product reads as its operands."""

    def __init__(self, graph: ClientGraph) -> None:
        self._fresh: dict[str, bool] = {}
        self._roots: dict[str, frozenset[str]] = {}
        self._apart: dict[str, set[str]] = {}
        self._joined: dict[str, frozenset[str]] = {}  # roots that have been replaced by those of other values
        for node in graph.nodes.values():
            self._roots[node.name] = self._find_roots(node)
            if traits_of(node.op).multiplies and not graph.spec(node.inputs[0]).dtype.is_integer:
                self._keep_apart(node)

    def let_go(self) -> None:
        """Release all data in batches, so that other threads can run."""
        let_go(self._roots, self._apart, self._joined)

    def may_join(self, name: str, other: str) -> bool:
        """Return whether the value of a node may be replaced by that of another one."""
        mine, theirs = self._current(name), self._current(other)
        partners = self._resolved(p for root in mine for p in self._apart.get(root, ()))
        return partners.isdisjoint(theirs - mine)

    def join(self, name: str, other: str) -> None:
        """Record that the value of a node is replaced by that of another one."""
        mine, theirs = self._current(name), self._current(other)
        for root in mine - theirs:
            self._joined[root] = theirs
            for kept in theirs:
                self._apart.setdefault(kept, set()).update(self._apart.get(root, ()))

    def _find_roots(self, node: Node) -> frozenset[str]:
        if not node.inputs or self._is_fresh(node.op):
            return frozenset((node.name,))
        # In a loop, the values from NextIteration are not known yet.
        found = _NONE.union(*(self._roots.get(edge.node, _NONE) for edge in node.inputs))
        return found if 0 < len(found) <= _MANY else frozenset((node.name,))

    def _is_fresh(self, op: str) -> bool:
        if op not in self._fresh:
            kernels = [k for k in KERNELS.for_op(op) if k.device_type in (ANY_DEVICE, "CPU")]
            self._fresh[op] = not traits_of(op).is_control_flow and bool(kernels) and all(k.fresh for k in kernels)
        return self._fresh[op]

    def _keep_apart(self, node: Node) -> None:
        operands = [self._roots[edge.node] for edge in node.inputs]
        for first, second in combinations(operands, 2):
            for root in first:
                self._apart.setdefault(root, set()).update(second - {root})
            for root in second:
                self._apart.setdefault(root, set()).update(first - {root})

    def _current(self, name: str) -> frozenset[str]:
        return self._resolved(self._roots.get(name, frozenset((name,))))

    def _resolved(self, roots: Iterable[str]) -> frozenset[str]:
        found: set[str] = set()
        waiting = list(roots)
        while waiting:
            root = waiting.pop()
            # The values that have replaced a root may have been replaced themselves.
            if root in self._joined:
                waiting.extend(self._joined[root])
            else:
                found.add(root)
        return frozenset(found)
