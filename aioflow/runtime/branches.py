"""Raising of branches: nodes are rewritten without `Switch` and `Merge`, with predicates instead."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.control_flow import Guard, Predicates
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.kernels.convert import as_bool
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import Argument, BoundNode, Choice, Passing, rebound
from aioflow.runtime.frames import wrong_predicate
from aioflow.runtime.tasks import constant_values, waits_of

# ── the nodes of one frame, rewritten before the step runs ────────────────────────────────────────────────────────────
#
# The *guard* of a node is the set of predicates, each with a side, that must hold for it to be alive. So the frame
# needs no dead values. A node runs if its predicates hold, and reads past the Switches. A Merge is a choice between two
# values; `codegen` generates the code. Frames with other uses of Switch and Merge are left to the propagator.


# Names that no op can have, so that no definition is looked up.
ALIVE: Final = "/Alive"  # an identity of a value that is fetched from one side
_CHOICE: Final = "/Choice"
_CHECK: Final = "/Predicate"
STEERING: Final = frozenset({ALIVE, _CHOICE, _CHECK})  # ops of nodes that are not in the user's graph


class NotRaisableError(Exception):
    """The frame has a form that predicates cannot express."""


class Guards:
    """The nodes of one frame with their predicates.

    Args:
        graph: The graph of the frame.
        members: The names of the nodes, in topological order.
        entering: For a loop, its Enters and the Merges of its variables, which are always alive.

    Raises:
        NotRaisableError: a Merge does not end a branch, or branches are nested too deeply to be written as code.
    """

    def __init__(self, graph: ClientGraph, members: Sequence[str], entering: frozenset[str] | None = None) -> None:
        self._graph = graph
        self._predicates = Predicates(graph, members, entering)
        if self._predicates.irregular:
            raise NotRaisableError(*sorted(self._predicates.irregular))
        self._checks: dict[tuple[Edge, Guard], BoundNode] = {}
        self._passed: dict[str, Edge] = {}  # the values that control-flow nodes pass on
        self._waits: dict[str, tuple[str, ...]] = {}
        for node in (graph.nodes[name] for name in members):
            if node.role in (Role.SWITCH, Role.LOOP_CONDITION):
                self._pass(node)

    def of(self, edge: Edge) -> Guard | None:
        """Return the predicates of an output; None if it is never alive."""
        return self._predicates.of(edge)

    def predicate(self, switch: Node) -> Edge:
        """Return the output that computes the predicate of a Switch, before any nodes that pass it on."""
        return self._predicates.predicate(switch)

    def value(self, edge: Edge) -> Edge:
        """Return the output whose value an edge carries."""
        while edge.node in self._passed:
            edge = self._passed[edge.node]
        return edge

    def rewired(self, bound: Iterable[BoundNode]) -> Iterator[BoundNode]:
        """Yield the frame's nodes that can be alive, with their predicates and without control-flow nodes between."""
        for b in bound:
            guard = self._predicates.at(b.node.name)
            if guard is not None:
                yield replace(rebound(b, self._past(b.node, guard)), guard=guard)

    def made(self) -> Iterator[BoundNode]:
        """Yield the nodes that replace the Merges, and those that check predicates of unknown shape."""
        yield from self._checks.values()
        for name, (predicate, positions) in self._predicates.alternatives.items():
            guard, merge = self._predicates.at(name) or (), self._graph.nodes[name]
            inputs = tuple(merge.inputs[i] for i in positions)
            if predicate is not None:
                inputs = (predicate, *inputs)
            node = self._past(replace(merge, op=_CHOICE, inputs=inputs, attrs={}), guard)
            converters = (None,) if predicate is None else (as_bool, None, None)
            arguments = tuple(Argument((e,), False, c) for e, c in zip(node.inputs, converters, strict=True))
            yield Choice(node, _choice_kernel, _never_called, arguments, guard, tuple(map(np.int32, positions)))

    def _pass(self, node: Node) -> None:
        self._passed[node.name] = node.inputs[0]
        self._waits[node.name] = tuple(dict.fromkeys(self._through(node.predecessors())))
        guard = self._predicates.at(node.name)
        if node.role is Role.SWITCH and guard is not None:
            self._check(node, self.predicate(node), guard)

    def _through(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names, replacing each control-flow node by the nodes that it waits for."""
        for name in names:
            if name in self._waits:
                yield from self._waits[name]
            else:
                yield name

    def _check(self, switch: Node, predicate: Edge, guard: Guard) -> None:
        """Add a check of a predicate of unknown shape; all nodes after the Switch wait for it."""
        if self._graph.spec(predicate).dims == ():
            return
        if (predicate, guard) not in self._checks:
            # The name of the Switch can be reused: no edge of the new graph leads to a Switch.
            node = replace(switch, op=_CHECK, inputs=(predicate,), control=self._waits[switch.name], outputs=())
            arguments = (Argument((predicate,), False, None),)
            self._checks[predicate, guard] = Passing(node, _check_kernel, _checker(switch), arguments, guard)
        name = self._checks[predicate, guard].node.name
        self._waits[switch.name] = (*self._waits[switch.name], name)

    def _past(self, node: Node, guard: Guard) -> Node:
        """Return the node with edges past the control-flow nodes, and with control edges from its predicates."""
        steering = [s for s in node.predecessors() if s in self._waits]
        waits = dict.fromkeys(self._through((*node.control, *steering)))
        waits.update(dict.fromkeys(predicate.node for predicate, _ in guard))
        return replace(node, inputs=tuple(self.value(e) for e in node.inputs), control=tuple(waits))


def _checker(switch: Node) -> Callable[[Array], None]:
    """Return a function that raises if the predicate of a Switch is not a single value."""

    def check(predicate: Array) -> None:
        if getattr(predicate, "ndim", 0) != 0:
            raise wrong_predicate(switch, predicate)

    return check


def _never_called(*values: Value) -> Value:
    raise NotImplementedError  # generated code writes a choice as an expression


def _bind_nothing(binding: Binding) -> KernelBody:
    return _never_called


_choice_kernel: Final = KernelDef(_CHOICE, _bind_nothing)
_check_kernel: Final = KernelDef(_CHECK, _bind_nothing, fresh=True)


# ── graphs without loops and with only sync branches ──────────────────────────────────────────────────────────────────
#
# The result is nodes with predicates, ordered so that nodes with equal predicates are adjacent.


def raise_branches(graph: ClientGraph, bound: Sequence[BoundNode]) -> tuple[ClientGraph, list[BoundNode]]:
    """Return the graph without control flow and its bound nodes; unchanged if its branches cannot be raised."""
    found = {node.op for node in graph.nodes.values() if traits_of(node.op).is_control_flow}
    # Any other control-flow op belongs to a loop that was not raised, or ends deadness (ControlTrigger).
    if not found or found - {"Switch", "Merge"}:
        return graph, list(bound)
    try:
        guards = Guards(graph, tuple(graph.nodes))
        nodes = [*guards.rewired(bound), *guards.made()]
        fetches = list(_fetches(graph, guards, nodes))
    except NotRaisableError:
        return graph, list(bound)
    # A strand cannot await, and a Send must also send DEAD, so neither may be under an `if`.
    if any((b.kernel.is_async or b.kernel.sends) and b.guard for b in nodes):
        return graph, list(bound)
    position = {name: i for i, name in enumerate(graph.nodes)}
    nodes = scheduled(sorted(nodes, key=lambda b: position.get(b.node.name, len(position))))
    plain = [n for n in graph.nodes.values() if n.op == ARG]
    whole = {n.name: n for n in (*plain, *(b.node for b in nodes), *fetches)}
    return replace(graph, nodes=whole), nodes


def _fetches(graph: ClientGraph, guards: Guards, nodes: list[BoundNode]) -> Iterator[Node]:
    """Yield the fetches of the new graph.

    A value fetched from one side only gets an identity node on that side, which is appended to `nodes`.
    """
    # A constant has a value on every path, whatever its predicates. So a fetch of one on a side needs the identity
    # node.
    guarded = {b.node.name: b.guard for b in nodes if b.node.role is not Role.CONSTANT}
    for node in graph.nodes.values():
        if node.op != RETVAL:
            continue
        guard, edge = guards.of(node.inputs[0]), guards.value(node.inputs[0])
        if guard is None:
            raise NotRaisableError(node.name)  # the propagator raises the error for a fetch that is always dead
        if guard and guarded.get(edge.node, ()) != guard:
            alive = _alive(node, edge, graph, guard)
            nodes.append(alive)
            edge = Edge(alive.node.name, 0)
        yield replace(node, inputs=(edge,))


def _alive(fetch: Node, edge: Edge, graph: ClientGraph, guard: Guard) -> BoundNode:
    waits = tuple(dict.fromkeys(predicate.node for predicate, _ in guard))
    node = Node(f"{fetch.name}/alive", ALIVE, (edge,), waits, {}, (graph.spec(edge),), source=fetch.source)
    return Passing(node, _IDENTITY, _identity, (Argument((edge,), False, None),), guard)


def _identity(value: object) -> object:
    return value


_IDENTITY = KernelDef(ALIVE, lambda binding: _identity, expression="{0}")


def scheduled(bound: Sequence[BoundNode]) -> list[BoundNode]:
    """Return the nodes in a topological order that keeps nodes with equal predicates adjacent where it can."""
    waits = waits_of(bound, constant_values(bound))
    position = {b.node.name: i for i, b in enumerate(bound)}
    pending = [0] * len(bound)
    readers: list[list[int]] = [[] for _ in bound]
    for i, b in enumerate(bound):
        sources = [position[s] for s in waits[b.node.name] if s in position]
        pending[i] = len(sources)
        for source in sources:
            readers[source].append(i)
    ready: dict[Guard, list[int]] = {}
    for i, count in enumerate(pending):
        if not count:
            ready.setdefault(bound[i].guard, []).append(i)
    order: list[BoundNode] = []
    block: Guard = ()
    while ready:
        block = block if block in ready else _nearest(block, ready)
        index = heapq.heappop(ready[block])
        if not ready[block]:
            del ready[block]
        order.append(bound[index])
        for reader in readers[index]:
            pending[reader] -= 1
            if not pending[reader]:
                heapq.heappush(ready.setdefault(bound[reader].guard, []), reader)
    return order


def _nearest(block: Guard, ready: dict[Guard, list[int]]) -> Guard:
    """Return the predicates of the next block: the one that closes the fewest `if`s, preferably with an `else`."""
    best, rank = block, (-1, False, 0)
    for guard, indices in ready.items():
        depth = common_depth(block, guard)
        other = depth < min(len(block), len(guard)) and block[depth][0] == guard[depth][0]
        candidate = (depth, other, -indices[0])
        if candidate > rank:
            best, rank = guard, candidate
    return best


def common_depth(one: Guard, other: Guard) -> int:
    """Return the number of outer predicates that two guards share."""
    depth = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        depth += 1
    return depth
