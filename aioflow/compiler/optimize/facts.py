"""Facts that an optimization needs before it may drop a node: effects, waits, and memory layout.

The layout matters because results must stay equal to the last bit. Kernels of sums and products choose their method by
the layout of their inputs, and add in another order for another layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from aioflow.compiler.ir import Edge, Node
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG
from aioflow.graph.opdef import OPS, traits_of
from aioflow.graph.signature.arguments import per_argument
from aioflow.graph.traits import Effect, Memory, Role
from aioflow.kernels.registry import ANY_DEVICE, HOST, KERNELS

T = TypeVar("T")

_OPAQUE: Final = (dtypes.resource, dtypes.variant)
_MANY: Final = 4  # anchors of one node; with more, the node itself is the anchor


def is_pure_op(op: str) -> bool:
    """Return whether nodes of an op only compute, so that they may be merged, folded, or dropped if unread.

    False for an op that is not registered.
    """
    if op not in OPS:
        return False
    definition = OPS.get(op)
    if definition.traits.effect is not Effect.NONE or any(
        a.dtype in _OPAQUE for a in (*definition.inputs, *definition.outputs)
    ):
        return False
    # A kernel that waits depends on more than its inputs.
    return not any(kernel.is_async for kernel in KERNELS.for_op(op))


def reads_rounded_by_constants(node: Node) -> Edge | None:
    """Return the input that must not become a constant, because the result would be rounded differently, or None."""
    name = traits_of(node.op).rounded_by
    if not name or not (node.outputs[0].dtype.is_floating or node.outputs[0].dtype.is_complex):
        return None
    return next(
        edges[0] for arg, edges in per_argument(OPS.get(node.op).inputs, node.attrs, node.inputs) if arg.name == name
    )


def is_elementwise(op: str) -> bool:
    """Return whether all CPU kernels compute an output from the inputs at its index, and may write over an input."""
    kernels = [k for k in KERNELS.for_op(op) if k.device_type in (ANY_DEVICE, HOST)]
    return bool(kernels) and all(k.takes_out for k in kernels)


def may_overwrite(op: str) -> bool:
    """Return whether the kernels that the CPU prefers (its own before portable ones) may write over an input."""
    kernels = KERNELS.for_op(op)
    preferred = [k for k in kernels if k.device_type == HOST] or [k for k in kernels if k.device_type == ANY_DEVICE]
    return bool(preferred) and all(k.takes_out for k in preferred)


class Facts:
    """Facts about the nodes of a graph, computed on demand.

    Args:
        nodes: The nodes. Nodes may be added, but a node must not change after the first query about it.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._pure: dict[str, bool] = {}
        self._elementwise: dict[str, bool] = {}
        self._anchors: dict[str, tuple[str, ...]] = {}
        self._row_major: dict[str, bool] = {}
        self._compact: dict[str, bool] = {}

    def is_pure(self, op: str) -> bool:
        """Return `is_pure_op` of an op, cached."""
        if op not in self._pure:
            self._pure[op] = is_pure_op(op)
        return self._pure[op]

    def anchors(self, name: str) -> tuple[str, ...]:
        """Return nodes to wait for instead of this one, with the same effect except for time and errors of pure nodes.

        They are alive if this node is, they come before it, and all the effects that come before it come before them. A
        node that no longer reads this node must still wait for them. Empty if this node depends only on feeds and
        constants.
        """
        return self._derived(self._anchors, name, self._find_anchors)

    def _find_anchors(self, node: Node) -> tuple[str, ...]:
        if node.op == ARG:
            return ()
        if not self.is_pure(node.op):
            return (node.name,)
        found: dict[str, None] = {}
        for edge in node.inputs:
            if self._nodes[edge.node].role is Role.SWITCH:  # a control edge cannot distinguish its sides
                return (node.name,)
            found.update(dict.fromkeys(self._anchors[edge.node]))
        for name in node.control:
            found.update(dict.fromkeys(self._anchors[name]))
        return tuple(found) if len(found) <= _MANY else (node.name,)

    def is_row_major(self, edge: Edge) -> bool:
        """Return whether a value certainly is in row-major order without gaps, as a copy of it would be.

        A feed and the value of a variable may have another layout.
        """
        if self._nodes[edge.node].outputs[edge.port].dims == ():
            return True
        return self._derived(self._row_major, edge.node, self._find_row_major)

    def _find_row_major(self, node: Node) -> bool:
        if node.role is Role.CONSTANT:
            return bool(node.attrs["value"].flags.c_contiguous)
        traits = traits_of(node.op)
        if traits.row_major:
            return True
        if traits.memory is Memory.PASSED and self.is_pure(node.op):
            # A fact about a node holds for all its outputs.
            return all(self._known_row_major(edge) for edge in node.inputs)
        if traits.memory is Memory.SAME_ORDER and self.is_pure(node.op):
            return self._known_row_major(node.inputs[traits.shares])
        keeps = self.is_pure(node.op) and (traits.keeps_row_major or self._is_elementwise(node.op))
        return keeps and all(self._known_row_major(edge) for edge in node.inputs)

    def is_compact(self, edge: Edge) -> bool:
        """Return whether a value certainly has no gaps and positive strides, in any order of axes.

        An elementwise function of this value alone has the same layout.
        """
        return self.is_row_major(edge) or self._derived(self._compact, edge.node, self._find_compact)

    def _find_compact(self, node: Node) -> bool:
        if traits_of(node.op).memory is Memory.PASSED and self.is_pure(node.op):
            # `_derived` has computed the facts of all inputs before.
            return all(self._compact[edge.node] for edge in node.inputs)
        return self.is_pure(node.op) and self._is_elementwise(node.op)

    def _known_row_major(self, edge: Edge) -> bool:
        return self._row_major[edge.node] or self._nodes[edge.node].outputs[edge.port].dims == ()

    def _is_elementwise(self, op: str) -> bool:
        if op not in self._elementwise:
            self._elementwise[op] = is_elementwise(op)
        return self._elementwise[op]

    def _derived(self, known: dict[str, T], name: str, find: Callable[[Node], T]) -> T:
        """Return `find` of a node, after that of all nodes that it depends on, up to nodes that are not pure."""
        # A stack instead of recursion: graphs may be deeper than Python's recursion limit.
        stack = [] if name in known else [name]
        while stack:
            node = self._nodes[stack[-1]]
            missing = [p for p in node.predecessors() if p not in known] if self.is_pure(node.op) else ()
            if missing:
                stack.extend(missing)
            else:
                known[stack.pop()] = find(node)
        return known[name]
