"""Predicates of the nodes of one frame: the meaning of `Switch` and `Merge`, resolved before the step runs.

The *guard* of a node is the set of predicates, each with a side, that must hold for it to be alive. A Switch adds a
predicate. A node needs the predicates of all its inputs and control inputs. A Merge drops the predicate in which its
two inputs differ. So the frame needs no dead values. A node runs if its predicates hold, and reads past the
Switches. A Merge is a choice between two values; `codegen` generates the code. Frames with other uses of Switch and
Merge are left to the propagator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.kernels.convert import as_bool
from aioflow.kernels.registry import KernelDef
from aioflow.runtime.bind import Argument, BoundNode, Choice, Guard, Passing, rebound
from aioflow.runtime.frames import wrong_predicate

# Names that no op can have, so that no definition is looked up.
ALIVE: Final = "/Alive"  # an identity of a value that is fetched from one side
_CHOICE: Final = "/Choice"
_CHECK: Final = "/Predicate"
_DEEPEST: Final = 80  # nested blocks: Python's limit is 100, and a loop or a form of the strand needs some of them
STEERING: Final = frozenset({ALIVE, _CHOICE, _CHECK})  # ops of nodes that are not in the user's graph


class NotRaisableError(Exception):
    """The frame has a form that predicates cannot express."""


class Guards:
    """The predicates of the nodes of one frame.

    Args:
        graph: The graph of the frame.
        members: The names of the nodes, in topological order.
        sources: The nodes through which values enter the frame, which are always alive.

    Raises:
        NotRaisableError: a Merge does not end a branch, or branches are nested too deeply to be written as code.
    """

    def __init__(self, graph: ClientGraph, members: Sequence[str], sources: frozenset[str] = frozenset()) -> None:
        self._graph = graph
        self._of: dict[str, Guard | None] = dict.fromkeys(sources, ())
        self._sides: dict[Edge, Guard | None] = {}
        self._ordered: dict[frozenset[tuple[Edge, bool]], Guard] = {}
        self._choices: dict[str, tuple[tuple[Edge, ...], tuple[Any, ...]]] = {}
        self._checks: dict[tuple[Edge, Guard], BoundNode] = {}
        self._passed: dict[str, Edge] = {}  # the values that control-flow nodes pass on
        self._waits: dict[str, tuple[str, ...]] = {}
        for name in members:
            if name not in self._of:
                self._visit(graph.nodes[name])

    def of(self, edge: Edge) -> Guard | None:
        """Return the predicates of an output; None if it is never alive."""
        found = self._sides.get(edge)
        return self._of[edge.node] if found is None and edge not in self._sides else found

    def value(self, edge: Edge) -> Edge:
        """Return the output whose value an edge carries."""
        while edge.node in self._passed:
            edge = self._passed[edge.node]
        return edge

    def predicate(self, switch: Node) -> Edge:
        """Return the output that computes the predicate of a Switch, before any Identity nodes."""
        edge = self.value(switch.inputs[1])
        # Switches on copies of one predicate must have equal guards. Some copies are inside branches.
        while edge.node in self._of and self._graph.nodes[edge.node].op == "Identity":
            edge = self.value(self._graph.nodes[edge.node].inputs[0])
        return edge

    def rewired(self, bound: Iterable[BoundNode]) -> Iterator[BoundNode]:
        """Yield the frame's nodes that can be alive, with their predicates and without control-flow nodes between."""
        for b in bound:
            guard = self._of[b.node.name]
            if guard is not None:
                yield replace(rebound(b, self._past(b.node, guard)), guard=guard)

    def made(self) -> Iterator[BoundNode]:
        """Yield the nodes that replace the Merges, and those that check predicates of unknown shape."""
        yield from self._checks.values()
        for name, (inputs, indices) in self._choices.items():
            guard = self._of[name]
            if guard is not None:
                merge = self._graph.nodes[name]
                node = self._past(replace(merge, op=_CHOICE, inputs=inputs, attrs={}), guard)
                converters = (as_bool, None, None) if len(inputs) == 3 else (None,)
                arguments = tuple(Argument((e,), False, c) for e, c in zip(node.inputs, converters, strict=True))
                yield Choice(node, _choice_kernel, _never_called, arguments, guard, indices)

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _visit(self, node: Node) -> None:
        if node.op == "Merge":
            self._of[node.name] = self._merge(node)
            return
        guard = self._join([*(self.of(e) for e in node.inputs), *(self._of.get(c, ()) for c in node.control)])
        self._of[node.name] = guard
        if node.op == "Switch":
            self._switch(node, guard)
        elif node.op == "LoopCond":
            self._pass(node, node.inputs[0])

    def _switch(self, node: Node, guard: Guard | None) -> None:
        self._pass(node, node.inputs[0])
        predicate = self.predicate(node)
        if guard is not None:
            self._check(node, predicate, guard)
        for port in range(2):
            side = None if guard is None else self._join([guard, ((predicate, bool(port)),)])
            self._sides[Edge(node.name, port)] = side

    def _pass(self, node: Node, data: Edge) -> None:
        self._passed[node.name] = data
        self._waits[node.name] = tuple(dict.fromkeys(self._through(node.predecessors())))

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

    def _merge(self, node: Node) -> Guard | None:
        alive = [(i, e, g) for i, e in enumerate(node.inputs) if (g := self.of(e)) is not None]
        if not alive:
            return None
        if len(alive) == 1:
            index, edge, guard = alive[0]
            self._choices[node.name] = ((edge,), (np.int32(index),))
            return guard
        if len(alive) > 2:
            raise NotRaisableError(node.name)
        (i, first, guard), (j, second, other) = alive
        # The two inputs must differ in exactly one predicate, on opposite sides.
        differing = set(guard) - set(other)
        if len(differing) != 1:
            raise NotRaisableError(node.name)
        ((predicate, side),) = differing
        if set(other) - set(guard) != {(predicate, not side)}:
            raise NotRaisableError(node.name)
        if side:
            # `Choice` expects the value for a false predicate first.
            (i, first), (j, second) = (j, second), (i, first)
        self._choices[node.name] = ((predicate, first, second), (np.int32(i), np.int32(j)))
        return self._join([tuple(atom for atom in guard if atom[0] != predicate)])

    def _join(self, guards: Sequence[Guard | None]) -> Guard | None:
        """Return the union of the guards, or None if they contradict each other."""
        longest: Guard = ()
        for guard in guards:
            if guard is None:
                return None
            if len(guard) > len(longest):
                longest = guard
        atoms = dict.fromkeys(longest)
        for guard in guards:
            atoms.update(dict.fromkeys(guard or ()))
        if any((predicate, not side) in atoms for predicate, side in atoms):
            return None
        if len(atoms) > _DEEPEST:
            raise NotRaisableError(f"{len(atoms)} blocks deep")
        # Equal sets get the same order, so that their blocks nest.
        return self._ordered.setdefault(frozenset(atoms), tuple(atoms))

    def _past(self, node: Node, guard: Guard) -> Node:
        """Return the node with edges past the control-flow nodes, and with control edges from its predicates."""
        steering = [s for s in node.predecessors() if s in self._waits]
        waits = dict.fromkeys(self._through((*node.control, *steering)))
        waits.update(dict.fromkeys(predicate.node for predicate, _ in guard))
        return replace(node, inputs=tuple(self.value(e) for e in node.inputs), control=tuple(waits))


def _checker(switch: Node) -> Callable[[Any], Any]:
    """Return a function that raises if the predicate of a Switch is not a single value."""

    def check(predicate: Any) -> None:
        if getattr(predicate, "ndim", 0) != 0:
            raise wrong_predicate(switch, predicate)

    return check


def _never_called(*values: Any) -> Any:
    raise NotImplementedError  # generated code writes a choice as an expression


def _bind_nothing(binding: Any) -> Any:
    return _never_called


_choice_kernel: Final = KernelDef(_CHOICE, _bind_nothing)
_check_kernel: Final = KernelDef(_CHECK, _bind_nothing, fresh=True)
