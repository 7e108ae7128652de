"""Branches and loops of a step as nested blocks, the form that ONNX has: If with two graphs, Loop with one.

The graph has them in primitive form (Switch, Merge and loop frames), also those made by functional ops. This module
recovers the structure that `cond` and `while_loop` gave them. A node belongs to the branch whose predicates it runs
under; see `Predicates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aioflow.compiler.control_flow import Guard, LoopFrame, Predicates, frames_behind, loop_variable
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Memory, Role
from aioflow.memory.values import Array


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
class ExportedVariable:
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
    variables: list[ExportedVariable]
    exits: list[tuple[Node, ExportedVariable]]
    condition: Block
    body: Block


BlockItem: TypeAlias = "Node | Branch | Loop | Irregular"


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
    items: list[BlockItem] = field(default_factory=list)
    outside: dict[Edge, None] = field(default_factory=dict)
    held: dict[Edge, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Level:
    """The position of a block: its loop, and the predicates that it runs under; None if it never runs."""

    frame: LoopFrame | None
    guard: Guard | None

    def is_around(self, other: _Level) -> bool:
        """Return whether the predicates of `other` include all of this block."""
        return self.guard is not None and other.guard is not None and set(self.guard) <= set(other.guard)


class Structure:
    """The control flow structure of a graph."""

    def __init__(self, graph: ClientGraph) -> None:
        self._graph = graph
        self._frames = frames_behind(graph)
        self._loops: dict[LoopFrame, list[ExportedVariable]] = {}
        self._predicates = Predicates(graph)
        for node in graph.nodes.values():
            self._note_variable(node)
        self._merges = {v.merge for variables in self._loops.values() for v in variables}

    # -- values --------------------------------------------------------------------------------------------------------

    def source(self, edge: Edge) -> Edge:
        """Return the output that the value comes from, past the nodes that pass it on."""
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
        value: Array | None = node.attrs["value"] if node.role is Role.CONSTANT else None
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
        if node.role is Role.SWITCH or (node.role is Role.ENTER and node.attrs["is_constant"]):
            return node.inputs[0]
        only = self._predicates.alternatives.get(edge.node)
        if only is None or only.predicate is not None or edge.port:
            return None
        return node.inputs[only.positions[0]]

    def _note_variable(self, node: Node) -> None:
        frame, variable = self._frames[node.name], loop_variable(self._graph, node)
        if frame is not None and variable is not None:
            start, following = (self.value(self._graph.nodes[n].inputs[0]) for n in (variable.enter, variable.next))
            self._loops.setdefault(frame, []).append(ExportedVariable(Edge(node.name, 0), start, following))

    # -- blocks --------------------------------------------------------------------------------------------------------

    def whole(self, results: Iterable[Edge]) -> Block:
        """Return the block that computes these outputs, which are alive in every step."""
        return self._block(_Level(None, ()), list(results))

    def _block(self, level: _Level, results: Sequence[Edge]) -> Block:
        made = _Blocks(self, level, [self.value(edge) for edge in results])
        return made.ordered()

    def level_of(self, node: Node) -> _Level:
        """Return the loop and the conditions of a node."""
        return _Level(self._frames[node.name], self._predicates.at(node.name))

    def item(self, node: Node, level: _Level) -> tuple[BlockItem, list[Edge]]:
        """Return the item that ends in a node, and the outputs that it reads."""
        if node.role is Role.MERGE:
            return self.branch([node], level)
        if node.role is Role.EXIT:
            return self._loop(node, level)
        if node.role in (Role.ENTER, Role.NEXT, Role.LOOP_CONDITION):
            return Irregular(node, "a loop that while_loop did not build"), []
        return node, [self.value(edge) for edge in node.inputs]

    def branch(self, merges: list[Node], level: _Level) -> tuple[BlockItem, list[Edge]]:
        """Return the branch that ends in these Merges, and the outputs that it reads."""
        found = self._predicates.alternatives.get(merges[0].name)
        if found is None or found.predicate is None:
            return Irregular(merges[0], "a Merge that cond did not build"), []
        predicate = found.predicate
        if_false, if_true = (
            self._block(
                _Level(level.frame, self._predicates.under(level.guard, predicate, side)),
                [m.inputs[self._predicates.alternatives[m.name].positions[side]] for m in merges],
            )
            for side in (False, True)
        )
        branch = Branch(predicate, merges, (if_false, if_true))
        return branch, [self.value(predicate), *if_false.outside, *if_true.outside]

    def key(self, merge: Node) -> Edge | None:
        """Return the predicate that the inputs of a Merge differ in. It is common to all Merges of a branch."""
        return self._predicates.alternatives[merge.name].predicate

    def _loop(self, node: Node, level: _Level) -> tuple[BlockItem, list[Edge]]:
        """Return the loop that an Exit node leaves, and the outputs that it reads."""
        switch = self._graph.nodes[node.inputs[0].node]
        frame = self._frames[switch.name]
        variables = self._loops.get(frame, []) if frame is not None else []
        if frame is None or not frame.condition or not variables:
            return Irregular(node, "a loop that while_loop did not build"), []
        by_merge = {v.merge: v for v in variables}
        # A loop runs under the same predicates as its surroundings.
        inside = _Level(frame, level.guard)
        exits = []
        for name, other in self._graph.nodes.items():
            if other.role is Role.EXIT and self._frames[other.inputs[0].node] is frame:
                left = self._graph.nodes[other.inputs[0].node]
                if left.role is not Role.SWITCH or left.inputs[0] not in by_merge:
                    return Irregular(node, "a loop that returns values other than its variables"), []
                exits.append((self._graph.nodes[name], by_merge[left.inputs[0]]))
        # The condition may need variables that no result does, so it is built before the variables are chosen.
        condition = self._block(inside, [self._graph.nodes[frame.condition].inputs[0]])
        kept = self._used(inside, condition, [v for _, v in exits], by_merge)
        body = self._block(inside, [v.following for v in kept])
        loop = Loop(node.name, kept, exits, condition, body)
        return loop, [*(v.start for v in kept), *condition.outside, *body.outside]

    def _used(
        self, level: _Level, condition: Block, left: Sequence[ExportedVariable], by_merge: dict[Edge, ExportedVariable]
    ) -> list[ExportedVariable]:
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
        self._items: dict[str, BlockItem] = {}
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
        # A stack of its own instead of recursion: graphs are deeper than Python's recursion limit.
        stack: list[tuple[Edge, bool]] = [(edge, False) for edge in reversed(wanted)]
        while stack:
            edge, ready = stack.pop()
            name = self._unit.get(edge.node, edge.node)
            if ready:
                self._order.append(name)
                depths = [self._depth.get(e.node, 0) for e in self._reads[name]]
                # Branches of equal depth cannot depend on one another, so `_group` may join them.
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
        # A value of a block that is not around this one may be missing when it is read: `_look` reports it.
        if level == self._level or not level.is_around(self._level):
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
        # `ordered` visits items by these names, some of which it has not seen before.
        for first in set(self._unit.values()):
            self._look(first)
