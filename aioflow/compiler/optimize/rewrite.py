"""The framework of the optimizations: an analysis of shared buffers, and a sweep that applies rules.

`Aliasing` is the analysis. `sweep` applies a rule to each node in topological order, and `Rewriting` is its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.facts import Facts, reads_rounded_by_constants
from aioflow.concurrency.stopping import batches
from aioflow.graph import dtypes
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role
from aioflow.kernels.registry import ANY_DEVICE, KERNELS
from aioflow.memory.collector import let_go
from aioflow.memory.values import Array

# Computes a node from the values of its inputs, as its device would; None if it cannot be computed now.
Evaluate: TypeAlias = Callable[[Node, ClientGraph, Sequence[Array]], Sequence[Array] | None]


# ── values that must not come to share memory ─────────────────────────────────────────────────────────────────────────
#
# BLAS computes the product of a matrix with its own transpose by another routine (syrk) than the product of two equal
# matrices (gemm), with different rounding. So a rewrite that merges two values checks this analysis first. The *roots*
# of a value are the nodes whose buffer it may be a view of, as in `runtime/liveness.py`.


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


# ── sweeps ────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The sweep visits each node once, with its inputs already rewritten. A rule may change the node, replace it by
# constants, or leave it out in favor of an earlier value.
#
# A node and its replacement must be alive in the same iterations and branches, and effects must still come before the
# nodes that waited for them. So a node may always be replaced by an `Identity` with the node's control inputs. That
# `Identity` is left out only if its removal is not observable.


_OPAQUE: Final = (dtypes.resource, dtypes.variant)


class Rewriting:
    """A graph while it is being rewritten.

    Attributes:
        nodes: The nodes that the sweep has made so far.
        facts: Properties of these nodes.
    """

    def __init__(self, graph: ClientGraph) -> None:
        self.nodes: dict[str, Node] = {}
        self.facts = Facts(self.nodes)
        self._before = graph
        self._moved: dict[Edge, Edge] = {}
        self._waits: dict[str, tuple[str, ...]] = {}  # replacements for control inputs from nodes that were left out
        self._changed = False
        self._fetched: set[str] = set()
        self._named: set[str] = set()  # nodes that others are colocated with
        self._known_aliasing: Aliasing | None = None
        self._held: set[str] = set()  # nodes that must not become constants
        for node in graph.nodes.values():
            self._note(node)

    def _note(self, node: Node) -> None:
        if node.op == RETVAL:
            self._fetched.add(node.inputs[0].node)
        self._named.update(group.removeprefix("loc:@") for group in node.attrs.get("_class", ()))
        held = reads_rounded_by_constants(node)
        if held is not None:
            self._held.add(held.node)

    @property
    def _aliasing(self) -> Aliasing:
        # Computed on demand: most sweeps never ask whether buffers may be shared.
        if self._known_aliasing is None:
            self._known_aliasing = Aliasing(self._before)
        return self._known_aliasing

    # -- queries of rules --------------------------------------------------------------------------------------------

    def node(self, edge: Edge) -> Node:
        """Return the node that makes an output, in its current form."""
        found = self.nodes.get(edge.node)
        # Along the edge that closes a loop, the source comes later in the sweep.
        return self._before.nodes[edge.node] if found is None else found

    def spec(self, edge: Edge) -> OutputSpec:
        """Return dtype and static shape of an output."""
        return self.node(edge).outputs[edge.port]

    def constant(self, edge: Edge) -> Array | None:
        """Return the value of an output if it is a constant's. Do not modify it."""
        node = self.node(edge)
        value: Array | None = node.attrs["value"] if node.role is Role.CONSTANT else None
        return value

    def may_be_constant(self, node: Node) -> bool:
        """Return whether readers would compute bit-identical results if the node were a constant."""
        return node.name not in self._held

    def anchors(self, edges: Iterable[Edge]) -> tuple[str, ...] | None:
        """Return control inputs equivalent to reading these outputs, or None if only reading is equivalent."""
        found: dict[str, None] = {}
        for edge in edges:
            if self.node(edge).role is Role.SWITCH:  # a control edge from it would be alive on both sides
                return None
            found.update(dict.fromkeys(self.facts.anchors(edge.node)))
        return tuple(found)

    # -- changes by rules --------------------------------------------------------------------------------------------

    def remade(self, node: Node, op: str, inputs: Sequence[Edge], **attrs: object) -> Node | None:
        """Return the node with another op or other inputs, taken from its own inputs or from theirs.

        The new node waits for whatever the inputs that it no longer reads waited for. None if control edges cannot
        express that.

        Args:
            node: The node to change.
            op: The op of the new node.
            inputs: The inputs of the new node.
            attrs: The attributes of the new node, besides its colocation.
        """
        waits, left = list(node.control), []
        for edge in node.inputs:
            source = self.node(edge)
            if edge in inputs:
                continue
            # A pure node between this node and a new input is bypassed: keep its control inputs and its other reads.
            if self.facts.is_pure(source.op) and any(e in inputs for e in source.inputs):
                waits += source.control
                left += [e for e in source.inputs if e not in inputs]
            else:
                left.append(edge)
        anchors = self.anchors(left)
        if anchors is None:
            return None
        control = self._needed((*waits, *anchors), inputs)
        return replace(node, op=op, inputs=tuple(inputs), control=control, attrs=_placed(node, attrs))

    def passed_on(self, node: Node, edge: Edge) -> Node | None:
        """Return the node as an `Identity` of `edge`, one of its inputs or of theirs, or None if that is impossible.

        For ops that return their input with its layout in memory. If the op copies, use `copied`.
        """
        return self.remade(node, "Identity", (edge,), T=self.spec(edge).dtype)

    def copied(self, node: Node, edge: Edge, keeps_order: bool = False) -> Node | None:
        """Return the same as `passed_on`, for an op that makes a new array.

        None also if the new array could have another memory layout than `edge`, or must not share its memory.

        Args:
            node: The node to replace.
            edge: The value to pass on.
            keeps_order: Whether the new array has the axis order of `edge` in memory rather than row-major order.
        """
        has_layout = self.facts.is_compact if keeps_order else self.facts.is_row_major
        if edge.node not in self.nodes or not has_layout(edge) or not self._aliasing.may_join(node.name, edge.node):
            return None
        made = self.passed_on(node, edge)
        if made is not None:
            self._aliasing.join(node.name, edge.node)
        return made

    def as_constant(self, node: Node, value: Array, control: Sequence[str]) -> Node | None:
        """Return the node as a constant with the control inputs `control`, or None if it must not be a constant."""
        if not self.may_be_constant(node):
            return None
        attrs = _placed(node, {"value": value, "dtype": node.outputs[0].dtype})
        waits = tuple(dict.fromkeys(control))
        return replace(node, op="Const", inputs=(), control=waits, attrs=attrs, outputs=node.outputs[:1])

    def beside(self, node: Node, name: str, value: Array, dtype: DType, control: Sequence[str]) -> Edge:
        """Add a constant for a node to read, named after the node, and return its output."""
        unique = self._free(f"{node.name}/{name}")
        self._changed = True
        outputs = (OutputSpec(dtype, value.shape),)
        attrs = {"value": value, "dtype": dtype}
        self.nodes[unique] = Node(unique, "Const", (), tuple(control), attrs, outputs, node.device, node.source)
        return Edge(unique, 0)

    def follow(
        self,
        node: Node,
        port: int,
        name: str,
        op: str,
        others: Sequence[Edge],
        attrs: Attrs,
        spec: OutputSpec,
    ) -> None:
        """Add a node that reads an output of `node` and `others`; later nodes read it instead of that output."""
        unique = self._free(f"{node.name}/{name}")
        inputs = (Edge(node.name, port), *others)
        self._changed = True
        self.nodes[unique] = Node(unique, op, inputs, (), attrs, (spec,), node.device, node.source)
        self._moved[Edge(node.name, port)] = Edge(unique, 0)

    def replace_outputs(self, node: Node, values: Sequence[Array], control: Sequence[str]) -> None:
        """Replace the node's outputs from the second on by constants; the node itself becomes the first output."""
        for port, value in enumerate(values, 1):
            edge = self.beside(node, f"output_{port}", value, node.outputs[port].dtype, control)
            self._moved[Edge(node.name, port)] = edge

    def merge(self, node: Node, kept: Node) -> bool:
        """Leave out a node that does the same as an earlier one, and return whether that was possible.

        Nodes that others are colocated with stay.
        """
        if node.name in self._named or not self._aliasing.may_join(node.name, kept.name):
            return False
        self._aliasing.join(node.name, kept.name)
        self._changed = True
        self._moved.update((Edge(node.name, p), Edge(kept.name, p)) for p in range(len(node.outputs)))
        self._waits[node.name] = (kept.name,)
        return True

    def _free(self, name: str) -> str:
        unique, count = name, 0
        while unique in self.nodes or unique in self._before.nodes:
            unique, count = f"{name}_{count}", count + 1
        return unique

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def renamed(self, node: Node) -> Node:
        """Return the node with inputs and control inputs redirected to their replacements."""
        moved, waits = self._moved, self._waits
        if any(e in moved for e in node.inputs):
            node = replace(node, inputs=tuple(moved.get(e, e) for e in node.inputs))
        if any(c in waits for c in node.control):
            node = replace(node, control=self._waited(node.control))
        return node

    def record(self, node: Node, made: Node | None) -> None:
        """Record that the node became `made`; None if it is unchanged."""
        if made is not None and made.op == "Identity" and self._is_redundant(made):
            self._leave_out(made)
        elif made is None or _compared_fields(made) == _compared_fields(node):
            # The node may have renamed inputs. Then an earlier node has been replaced, and `_changed` is set already.
            self.nodes[node.name] = node
        else:
            self._changed = True
            self.nodes[node.name] = made

    def finished(self) -> ClientGraph:
        """Return the graph at the end of the sweep."""
        if self._known_aliasing is not None:
            self._known_aliasing.let_go()
            self._known_aliasing = None
        if not self._changed:
            return self._before
        targets = self._waited(self._before.targets)
        return replace(self._before, nodes=self.nodes, targets=targets)

    def _waited(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(w for name in names for w in self._waits.get(name, (name,))))

    def _leave_out(self, identity: Node) -> None:
        (edge,) = identity.inputs
        self._changed = True
        self._moved[Edge(identity.name, 0)] = edge
        # A feed is available before any node runs, so no node has to wait for it.
        self._waits[identity.name] = () if self.node(edge).op == ARG else (edge.node,)

    def _is_redundant(self, identity: Node) -> bool:
        """Return whether an Identity can be removed unobserved by the user, its readers and its waiters."""
        (edge,) = identity.inputs
        source = self.node(edge)
        if traits_of(source.op).is_control_flow or source.name not in self.nodes or identity.name in self._named:
            # Past a Switch, an Enter or an Exit the value is another one.
            return False
        if source.op == ARG and identity.name in self._fetched:
            # A fetched feed is returned as it is, while the value of a node belongs to the caller.
            return False
        if source.role is Role.CONSTANT and identity.name in self._held:
            return False
        spec = self.spec(edge)
        if spec != identity.outputs[0] or spec.dtype in _OPAQUE or identity.device not in ("", source.device):
            return False
        return not self._needed(identity.control, (edge,))

    def _needed(self, control: Iterable[str], edges: Iterable[Edge]) -> tuple[str, ...]:
        """Return the members of `control` that a reader of `edges` does not wait for already."""
        known: set[str] = set()
        for edge in edges:
            source = self.nodes.get(edge.node)
            if source is not None and not traits_of(source.op).is_control_flow:
                # A reader waits for its source and for everything that the source waits for.
                known.update((source.name, *source.control, *self.facts.anchors(source.name)))
        return tuple(
            c for c in dict.fromkeys(control) if c not in known and not known.issuperset(self.facts.anchors(c))
        )


def _compared_fields(node: Node) -> tuple[object, ...]:
    """Return the fields that tell whether a node has changed, without its attributes, which follow from them."""
    return node.op, node.inputs, node.control, node.outputs


RewriteRule: TypeAlias = Callable[[Node, Rewriting], Node | None]


def sweep(graph: ClientGraph, rule: RewriteRule) -> ClientGraph:
    """Rewrite each node by `rule`, which returns the new node, or None to keep it.

    An `Identity` that the rule returns is left out if its removal is not observable.
    """
    rewriting = Rewriting(graph)
    for origin in batches(graph.nodes.values(), 64):
        node = rewriting.renamed(origin)
        rewriting.record(node, rule(node, rewriting))
    return rewriting.finished()


def _placed(node: Node, attrs: Attrs) -> Attrs:
    """Return attributes for another op in the place of a node, with the node's colocation."""
    kept = {"_class": node.attrs["_class"]} if "_class" in node.attrs else {}
    return {**attrs, **kept}
