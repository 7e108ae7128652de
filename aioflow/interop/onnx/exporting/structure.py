"""Branches and loops of a step as nested blocks, the form that ONNX has: If with two graphs, Loop with one.

The graph has them in primitive form (Switch, Merge and loop frames), also those made by functional ops. This module
recovers the structure that `cond` and `while_loop` gave them. A node belongs to the branch whose predicates it runs
under. A Merge ends a branch on a predicate if its inputs run under the same conditions, except for the side of that
predicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.loops import LoopFrame, frames_behind
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Memory, Role
from aioflow.memory.values import Array

_Guard: TypeAlias = frozenset[tuple[Edge, bool]]
_ALIVE: _Guard = frozenset()


@dataclass(frozen=True, slots=True)
class Irregular:
    """A control flow node in another form than `cond` and `while_loop` produce."""

    node: Node
    why: str


@dataclass(slots=True)
class Branch:
    """Merges of one predicate, and the two blocks that compute their inputs.

    Attributes:
        predicate: Output that chooses the side.
        merges: Merges that end the branch.
        sides: Blocks for false and true, whose results are those of `merges`.
    """

    predicate: Edge
    merges: list[Node]
    sides: tuple[Block, Block]


@dataclass(frozen=True, slots=True)
class Variable:
    """A loop variable: its Merge, its value before the loop, and its next value, which the body computes."""

    merge: Edge
    start: Edge
    following: Edge


@dataclass(slots=True)
class Loop:
    """The loop of one frame.

    Attributes:
        name: Name of the Exit node that it was found by.
        variables: Loop variables that the results depend on.
        exits: Exit nodes, each with the variable whose last value it returns.
        condition: Block of one result, computed from the variables.
        body: Block whose results are the next values of the variables.
    """

    name: str
    variables: list[Variable]
    exits: list[tuple[Node, Variable]]
    condition: Block
    body: Block


Item: TypeAlias = "Node | Branch | Loop | Irregular"


@dataclass(slots=True)
class Block:
    """Items in execution order, and the results that they compute.

    Attributes:
        results: Outputs that the block computes.
        items: The items.
        outside: Outputs that the block reads from enclosing blocks.
        held: Variables of its loop that the block reads.
    """

    results: list[Edge]
    items: list[Item] = field(default_factory=list)
    outside: dict[Edge, None] = field(default_factory=dict)
    held: dict[Edge, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Level:
    """The position of a block: its loop, and the predicates that it runs under."""

    frame: LoopFrame | None
    guard: _Guard


class Structure:
    """The control flow structure of a graph."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._frames = frames_behind(graph)
        self._loops: dict[LoopFrame, list[Variable]] = {}
        self._guards: dict[str, _Guard] = {}
        self._sides: dict[Edge, _Guard] = {}
        self._only: dict[Edge, Edge] = {}  # the only input of a Merge that can be alive, by the Merge's output
        for node in graph.nodes.values():
            self._guard_of(node)
        for node in graph.nodes.values():
            self._note_variable(node)
        self._merges = {v.merge for variables in self._loops.values() for v in variables}

    # -- conditions under which nodes run ------------------------------------------------------------------------------

    def _guard_of(self, node: Node) -> None:
        guards = [self._at(edge) for edge in node.inputs if edge.node in self._guards]
        guards += [self._guards.get(name, _ALIVE) for name in node.control]
        guard: _Guard = _ALIVE.union(*guards)
        if _role(node) is Role.MERGE and len(guards) == 2:
            guard = self._merged(node, guards, guard)
        self._guards[node.name] = guard
        is_control_flow = _role(node) is Role.SWITCH
        # The Switches of a loop are no branches: its condition chooses between another iteration and the exit.
        if is_control_flow and _role(self._graph.nodes[self._behind(node.inputs[1]).node]) is not Role.LOOP_CONDITION:
            predicate = self.source(node.inputs[1])
            for port in range(2):
                self._sides[Edge(node.name, port)] = guard | {(predicate, bool(port))}

    def _merged(self, node: Node, guards: Sequence[_Guard], both: _Guard) -> _Guard:
        """Return the conditions of a Merge.

        An input from a branch that its surroundings exclude is never alive.
        """
        alive = [i for i, guard in enumerate(guards) if not _is_never(guard)]
        if len(alive) == 1:
            self._only[Edge(node.name, 0)] = node.inputs[alive[0]]
            return guards[alive[0]]
        return both if _split(guards) is None else guards[0] & guards[1]

    def _at(self, edge: Edge) -> _Guard:
        return self._sides.get(edge, self._guards.get(edge.node, _ALIVE))

    def _behind(self, edge: Edge) -> Edge:
        """Return the output from which nodes pass the predicate on."""
        while traits_of(self._graph.nodes[edge.node].op).memory is Memory.PASSED:
            edge = self._graph.nodes[edge.node].inputs[0]
        return edge

    def source(self, edge: Edge) -> Edge:
        """Return the predicate itself. Other nodes may test Identities of it, some of them inside branches."""
        while self._hands_on(edge):
            edge = self._graph.nodes[edge.node].inputs[0]
        return edge

    def past(self, edge: Edge) -> Edge:
        """Return the output that the value comes from, past all nodes that pass it on."""
        while self.value(edge) != edge or self.source(edge) != edge:
            edge = self.source(self.value(edge))
        return edge

    def constant(self, edge: Edge) -> Array | None:
        """Return the value of an output, if it is that of a constant."""
        node = self._graph.nodes[self.source(self.value(edge)).node]
        value: Array | None = node.attrs["value"] if _role(node) is Role.CONSTANT else None
        return value

    def _hands_on(self, edge: Edge) -> bool:
        traits = traits_of(self._graph.nodes[edge.node].op)
        return traits.memory is Memory.PASSED or traits.role is Role.SWITCH

    def value(self, edge: Edge) -> Edge:
        """Return the output whose value an edge carries, past the nodes that are pure control flow."""
        following: Edge | None = edge
        while following is not None:
            edge, following = following, self._before(following)
        return edge

    def _before(self, edge: Edge) -> Edge | None:
        node = self._graph.nodes[edge.node]
        if _role(node) is Role.SWITCH or (_role(node) is Role.ENTER and node.attrs["is_constant"]):
            return node.inputs[0]
        return self._only.get(edge)

    def _note_variable(self, node: Node) -> None:
        sources = [self._graph.nodes[edge.node] for edge in node.inputs]
        frame = self._frames.get(node.name)
        if _role(node) is Role.MERGE and frame is not None and [_role(s) for s in sources] == [Role.ENTER, Role.NEXT]:
            start, following = (self.value(source.inputs[0]) for source in sources)
            self._loops.setdefault(frame, []).append(Variable(Edge(node.name, 0), start, following))

    # -- blocks --------------------------------------------------------------------------------------------------------

    def whole(self, results: Iterable[Edge]) -> Block:
        """Return the block that computes these outputs, which are alive in every step."""
        return self._block(_Level(None, _ALIVE), list(results))

    def _block(self, level: _Level, results: Sequence[Edge]) -> Block:
        made = _Blocks(self, level, [self.value(edge) for edge in results])
        return made.ordered()

    def level_of(self, node: Node) -> _Level:
        """Return the loop and the conditions of a node."""
        return _Level(self._frames[node.name], self._guards[node.name])

    def item(self, node: Node, level: _Level) -> tuple[Item, list[Edge]]:
        """Return the item that ends in a node, and the outputs that it reads."""
        if _role(node) is Role.MERGE:
            return self.branch([node], level)
        if _role(node) is Role.EXIT:
            return self._loop(node, level)
        if _role(node) in (Role.ENTER, Role.NEXT, Role.LOOP_CONDITION):
            return Irregular(node, "a loop that while_loop did not build"), []
        return node, [self.value(edge) for edge in node.inputs]

    def branch(self, merges: list[Node], level: _Level) -> tuple[Item, list[Edge]]:
        """Return the branch that ends in these Merges, and the outputs that it reads."""
        guards = [self._at(edge) for edge in merges[0].inputs]
        atom = _split(guards) if len(guards) == 2 else None
        if atom is None:
            return Irregular(merges[0], "a Merge that cond did not build"), []
        first = 0 if (atom, False) in guards[0] else 1  # the input that is alive when the predicate is false
        sides = [
            self._block(_Level(level.frame, level.guard | {(atom, side)}), [m.inputs[first ^ side] for m in merges])
            for side in (False, True)
        ]
        branch = Branch(atom, merges, (sides[0], sides[1]))
        return branch, [self.value(atom), *sides[0].outside, *sides[1].outside]

    def key(self, merge: Node) -> Edge | None:
        """Return the predicate that the inputs of a Merge differ in. It is common to all Merges of a branch."""
        guards = [self._at(edge) for edge in merge.inputs]
        return _split(guards) if len(guards) == 2 else None

    def _loop(self, node: Node, level: _Level) -> tuple[Item, list[Edge]]:
        """Return the loop that an Exit node leaves, and the outputs that it reads."""
        switch = self._graph.nodes[node.inputs[0].node]
        frame = self._frames[switch.name]
        variables = self._loops.get(frame, []) if frame is not None else []
        if frame is None or not frame.condition or not variables:
            return Irregular(node, "a loop that while_loop did not build"), []
        by_merge = {v.merge: v for v in variables}
        inside = _Level(frame, level.guard)
        exits = []
        for name, other in self._graph.nodes.items():
            if _role(other) is Role.EXIT and self._frames[other.inputs[0].node] is frame:
                left = self._graph.nodes[other.inputs[0].node]
                if _role(left) is not Role.SWITCH or left.inputs[0] not in by_merge:
                    return Irregular(node, "a loop that returns values other than its variables"), []
                exits.append((self._graph.nodes[name], by_merge[left.inputs[0]]))
        condition = self._block(inside, [self._graph.nodes[frame.condition].inputs[0]])
        kept = self._used(inside, condition, [v for _, v in exits], by_merge)
        body = self._block(inside, [v.following for v in kept])
        loop = Loop(node.name, kept, exits, condition, body)
        return loop, [*(v.start for v in kept), *condition.outside, *body.outside]

    def _used(
        self, level: _Level, condition: Block, left: Sequence[Variable], by_merge: dict[Edge, Variable]
    ) -> list[Variable]:
        """Return the variables on which the results of a loop depend."""
        waiting = [*(by_merge[edge] for edge in condition.held), *left]
        found: dict[Edge, None] = {}
        while waiting:
            variable = waiting.pop()
            if variable.merge not in found:
                found[variable.merge] = None
                waiting += [by_merge[edge] for edge in self._block(level, [variable.following]).held]
        return [v for merge, v in by_merge.items() if merge in found]

    def is_variable(self, edge: Edge) -> bool:
        """Return whether an output is a loop variable's value at the start of an iteration."""
        return edge in self._merges

    def node(self, edge: Edge) -> Node:
        """Return the node that computes an output."""
        return self._graph.nodes[edge.node]


class _Blocks:
    """The construction of one block."""

    def __init__(self, structure: Structure, level: _Level, results: list[Edge]) -> None:
        self._structure = structure
        self._level = level
        self._block = Block(results)
        self._reads: dict[str, list[Edge]] = {}
        self._items: dict[str, Item] = {}
        self._order: list[str] = []
        self._depth: dict[str, int] = {}
        self._unit: dict[str, str] = {}  # the first of several Merges or Exits that end the same item

    def ordered(self) -> Block:
        """Return the block, with its items after those that they read."""
        self._visit(self._block.results)
        # Grouping Merges into branches changes what items read, so the order is computed again afterwards.
        self._group()
        self._order.clear()
        self._visit(self._block.results)
        done: set[int] = set()
        for name in self._order:
            item = self._items[name]
            if id(item) not in done:
                done.add(id(item))
                self._block.items.append(item)
        return self._block

    def _visit(self, wanted: Sequence[Edge]) -> None:
        """Put the items needed for `wanted` in order, each after those that it reads."""
        seen: set[str] = set()
        stack: list[tuple[Edge, bool]] = [(edge, False) for edge in reversed(wanted)]
        while stack:
            edge, ready = stack.pop()
            name = self._unit.get(edge.node, edge.node)
            if ready:
                self._order.append(name)
                depths = [self._depth.get(e.node, 0) for e in self._reads[name]]
                self._depth[name] = max(depths, default=0) + isinstance(self._items[name], Branch | Loop)
            elif name not in seen and self._is_here(edge):
                seen.add(name)
                stack.append((edge, True))
                stack += [(e, False) for e in reversed(self._look(name))]

    def _is_here(self, edge: Edge) -> bool:
        if self._structure.is_variable(edge):
            self._block.held[edge] = None
            return False
        level = self._structure.level_of(self._structure.node(edge))
        if level == self._level or not level.guard <= self._level.guard:
            return True
        self._block.outside[edge] = None
        return False

    def _look(self, name: str) -> list[Edge]:
        if name not in self._items:
            node = self._structure.node(Edge(name, 0))
            if self._structure.level_of(node) != self._level:
                self._items[name], self._reads[name] = Irregular(node, "it is read where it may not be computed"), []
            else:
                self._items[name], self._reads[name] = self._structure.item(node, self._level)
        return self._reads[name]

    def _group(self) -> None:
        """Merge branches on the same predicate that do not depend on one another into one."""
        groups: dict[tuple[Edge | None, int], list[Node]] = {}
        for name, item in self._items.items():
            if isinstance(item, Branch):
                merge = item.merges[0]
                groups.setdefault((self._structure.key(merge), self._depth[name]), []).append(merge)
            elif isinstance(item, Loop):
                self._unit.update((node.name, item.exits[0][0].name) for node, _ in item.exits)
        for merges in groups.values():
            if len(merges) > 1:
                item, reads = self._structure.branch(merges, self._level)
                for merge in merges:
                    self._unit[merge.name] = merges[0].name
                    self._items[merge.name], self._reads[merge.name] = item, reads
        for first in set(self._unit.values()):
            self._look(first)


def _role(node: Node) -> Role:
    return traits_of(node.op).role


def _is_never(guard: _Guard) -> bool:
    """Return whether the conditions include both sides of a predicate."""
    return any((predicate, not side) in guard for predicate, side in guard)


def _split(guards: Sequence[_Guard]) -> Edge | None:
    """Return the predicate, if two sets of conditions differ only in its side."""
    first, second = guards[0] - guards[1], guards[1] - guards[0]
    if len(first) != 1 or len(second) != 1:
        return None
    ((predicate, side),), ((other, opposite),) = first, second
    return predicate if predicate == other and side != opposite else None
