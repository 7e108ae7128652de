"""Rewriting of the nodes of one frame without `Switch` and `Merge`, before the step runs.

The *guard* of a node is the set of predicates, each with a side, that must hold for it to be alive. So the frame needs
no dead values. A node runs if its predicates hold, and reads past the Switches. A Merge is a choice between two values;
`codegen` generates the code. Frames with other uses of Switch and Merge are left to the propagator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from aioflow.compiler.control_flow import Guard, Predicates
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.graph.traits import Role
from aioflow.kernels.convert import as_bool
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import Argument, BoundNode, Choice, Passing, rebound
from aioflow.runtime.frames import wrong_predicate

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
