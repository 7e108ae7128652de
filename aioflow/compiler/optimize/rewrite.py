"""The one way in which optimizations change a graph: a sweep in topological order, where each node is seen once, with
its inputs as they are by then, and may be changed, replaced by constants, or left out in favour of an earlier value.

What is left out, and what takes its place, must be alive in the same iterations and branches, and what has effects must
still come before what waited for it. So a node may always be replaced by an `Identity` that waits for what the node
waited for; that is left out in its turn only where nothing at all can be told from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.aliasing import Aliasing
from aioflow.compiler.optimize.facts import Facts, reads_rounded_by_constants
from aioflow.graph import dtypes
from aioflow.graph.arrays import Array
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.work.stopping import batches

__all__ = ["Rewriting", "Rule", "sweep"]

_OPAQUE: Final = (dtypes.resource, dtypes.variant)


class Rewriting:
    """A graph while it is being rewritten.

    Attributes:
        nodes: What the sweep has made so far.
        facts: What is known of them.
    """

    def __init__(self, graph: ClientGraph) -> None:
        self.nodes: dict[str, Node] = {}
        self.facts = Facts(self.nodes)
        self._before = graph
        self._moved: dict[Edge, Edge] = {}
        self._waits: dict[str, tuple[str, ...]] = {}  # what to wait for in the place of a node that was left out
        self._changed = False
        self._fetched: set[str] = set()
        self._named: set[str] = set()  # others are colocated with them
        self._known_aliasing: Aliasing | None = None
        self._held: set[str] = set()  # they must not become constants
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
        if self._known_aliasing is None:
            self._known_aliasing = Aliasing(self._before)
        return self._known_aliasing

    # -- what rules ask ----------------------------------------------------------------------------------------------

    def node(self, edge: Edge) -> Node:
        """The node that makes an output, as it is by now."""
        found = self.nodes.get(edge.node)
        return self._before.nodes[edge.node] if found is None else found  # along the edge that closes a loop

    def spec(self, edge: Edge) -> OutputSpec:
        """Dtype and static shape of an output."""
        return self.node(edge).outputs[edge.port]

    def constant(self, edge: Edge) -> Array | None:
        """The value of an output, if it is that of a constant. Do not modify it."""
        node = self.node(edge)
        value: Array | None = node.attrs["value"] if node.op == "Const" else None
        return value

    def may_be_constant(self, node: Node) -> bool:
        """Whether readers of the node would compute the same to the last bit, if it was a constant."""
        return node.name not in self._held

    def anchors(self, edges: Iterable[Edge]) -> tuple[str, ...] | None:
        """What to wait for in the place of reading these outputs; None where only reading does."""
        found: dict[str, None] = {}
        for edge in edges:
            if self.node(edge).op == "Switch":  # a control edge from it is alive on both sides
                return None
            found.update(dict.fromkeys(self.facts.anchors(edge.node)))
        return tuple(found)

    # -- what rules make ---------------------------------------------------------------------------------------------

    def remade(self, node: Node, op: str, inputs: Sequence[Edge], **attrs: Any) -> Node | None:
        """The node as one of another op or with other inputs, from its own inputs or theirs.

        It waits for what the inputs that it no longer reads waited for. None where no control edge can say that.
        """
        waits, left = list(node.control), []
        for edge in node.inputs:
            source = self.node(edge)
            if edge in inputs:
                continue
            if self.facts.is_pure(source.op) and any(e in inputs for e in source.inputs):  # between this and an input
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
        """The node as one that only hands on `edge`, one of its inputs or of theirs; None where that cannot be.

        For ops that give what they read as it lies. Where the op copies, use `copied`.
        """
        return self.remade(node, "Identity", (edge,), T=self.spec(edge).dtype)

    def copied(self, node: Node, edge: Edge, keeps_order: bool = False) -> Node | None:
        """As `passed_on`, for an op that makes a new array: None also where that could lie in memory otherwise than
        `edge`, or must not be the same memory.

        Args:
            keeps_order: Whether the order of axes in memory is that of `edge` rather than row-major.
        """
        lies_so = self.facts.is_compact if keeps_order else self.facts.is_row_major
        if edge.node not in self.nodes or not lies_so(edge) or not self._aliasing.may_join(node.name, edge.node):
            return None
        made = self.passed_on(node, edge)
        if made is not None:
            self._aliasing.join(node.name, edge.node)
        return made

    def as_constant(self, node: Node, value: Array, control: Sequence[str]) -> Node | None:
        """The node as a constant that waits for `control`; None where it must not be one."""
        if not self.may_be_constant(node):
            return None
        attrs = _placed(node, {"value": value, "dtype": node.outputs[0].dtype})
        waits = tuple(dict.fromkeys(control))
        return replace(node, op="Const", inputs=(), control=waits, attrs=attrs, outputs=node.outputs[:1])

    def beside(self, node: Node, name: str, value: Array, dtype: Any, control: Sequence[str]) -> Edge:
        """A new constant for a node to read, under the node's name."""
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
        attrs: Mapping[str, Any],
        spec: OutputSpec,
    ) -> None:
        """Let those who come after read a new node instead of an output of `node`: it reads that, and `others`."""
        unique = self._free(f"{node.name}/{name}")
        inputs = (Edge(node.name, port), *others)
        self._changed = True
        self.nodes[unique] = Node(unique, op, inputs, (), attrs, (spec,), node.device, node.source)
        self._moved[Edge(node.name, port)] = Edge(unique, 0)

    def replace_outputs(self, node: Node, values: Sequence[Array], control: Sequence[str]) -> None:
        """Make the outputs of a node from the second on constants of their own; the node itself becomes the first."""
        for port, value in enumerate(values, 1):
            edge = self.beside(node, f"output_{port}", value, node.outputs[port].dtype, control)
            self._moved[Edge(node.name, port)] = edge

    def merge(self, node: Node, kept: Node) -> bool:
        """Leave out a node that does the same as an earlier one, unless it is needed under its name."""
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
        """The node, reading and waiting for what there is by now."""
        moved, waits = self._moved, self._waits
        if any(e in moved for e in node.inputs):
            node = replace(node, inputs=tuple(moved.get(e, e) for e in node.inputs))
        if any(c in waits for c in node.control):
            node = replace(node, control=self._waited(node.control))
        return node

    def put(self, node: Node, made: Node | None) -> None:
        """Go on after a node that became `made`; None where it stays."""
        if made is not None and made.op == "Identity" and self._says_nothing(made):
            self._leave_out(made)
        elif made is None or _what(made) == _what(node):
            self.nodes[node.name] = node
        else:
            self._changed = True
            self.nodes[node.name] = made

    def finished(self) -> ClientGraph:
        """The graph as it is now, at the end of the sweep."""
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
        self._waits[identity.name] = () if self.node(edge).op == ARG else (edge.node,)

    def _says_nothing(self, identity: Node) -> bool:
        """Whether nothing can be told from an Identity: neither to the user nor to what reads or waits for it."""
        (edge,) = identity.inputs
        source = self.node(edge)
        if traits_of(source.op).steers or source.name not in self.nodes or identity.name in self._named:
            return False  # what is read past a Switch, an Enter or an Exit is another value
        if source.op == ARG and identity.name in self._fetched:
            return False  # a feed that is fetched is handed back as it is; the value of a node is the caller's own
        if source.op == "Const" and identity.name in self._held:
            return False
        spec = self.spec(edge)
        if spec != identity.outputs[0] or spec.dtype in _OPAQUE or identity.device not in ("", source.device):
            return False
        return not self._needed(identity.control, (edge,))

    def _needed(self, control: Iterable[str], edges: Iterable[Edge]) -> tuple[str, ...]:
        """Those of `control` that one who reads `edges` does not wait for anyway."""
        known: set[str] = set()
        for edge in edges:
            source = self.nodes.get(edge.node)
            if source is not None and not traits_of(source.op).steers:
                known.update((source.name, *source.control, *self.facts.anchors(source.name)))
        return tuple(
            c for c in dict.fromkeys(control) if c not in known and not known.issuperset(self.facts.anchors(c))
        )


def _what(node: Node) -> tuple[Any, ...]:
    """What makes it another node; attributes follow."""
    return node.op, node.inputs, node.control, node.outputs


Rule: TypeAlias = Callable[[Node, Rewriting], Node | None]


def sweep(graph: ClientGraph, rule: Rule) -> ClientGraph:
    """Give each node to `rule`, which returns what it becomes, or None where it stays.

    An `Identity` that is returned is left out where nothing can be told from it.
    """
    rewriting = Rewriting(graph)
    for origin in batches(graph.nodes.values(), 64):
        node = rewriting.renamed(origin)
        rewriting.put(node, rule(node, rewriting))
    return rewriting.finished()


def _placed(node: Node, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes for another op in the place of a node: colocation stays."""
    kept = {"_class": node.attrs["_class"]} if "_class" in node.attrs else {}
    return {**attrs, **kept}
