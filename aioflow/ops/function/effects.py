"""The nodes of a function's body that always run, and the order of nodes that change or read state.

Nodes that change state run in the order in which they were made, as in a program. A node that only reads a variable
runs after all changes made before it. A branch or loop takes its place in that order as a whole, and has an order of
its own inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aioflow.graph.calls import calls_around
from aioflow.graph.graph import Operation
from aioflow.graph.traits import Effect
from aioflow.ops.control.contexts import CondContext, ControlFlowContext, WhileContext
from aioflow.ops.function.body import BodyContext


def made_in(op: Operation) -> Any:
    """Return the context that was open when the node was made."""
    # The Enter or Switch that brings a value into a context belongs to it, but was made in the outer context.
    context = op.control_flow_context
    if op.type in ("Enter", "Switch") and not any(t.op.control_flow_context is context for t in op.inputs):
        return context if isinstance(context, BodyContext) else context.outer
    return context


@dataclass(slots=True)
class _Chain:
    """The order in one context: the last item with an effect, and the reads since."""

    last: Operation | ControlFlowContext | None = None
    reads: list[Operation] = field(default_factory=list)


class _Order:
    def __init__(self, body: BodyContext) -> None:
        self._body = body
        self._nodes = list(body.nodes.values())
        self._chains: dict[object, _Chain] = {}
        self.effects: list[Operation | ControlFlowContext] = []

    def add(self, op: Operation) -> None:
        if op.op_def.traits.effect is Effect.CHANGES:
            self._changes(op.control_flow_context, op)
        elif op.op_def.traits.effect is Effect.READS:
            # Reads may run in any order, but after the change before them.
            chain = self._chain(op.control_flow_context)
            self._wait([op], chain.last)
            chain.reads.append(op)
            self._pass_on(op.control_flow_context)

    def _chain(self, context: ControlFlowContext) -> _Chain:
        return self._chains.setdefault(context, _Chain())

    def _changes(self, context: ControlFlowContext, unit: Operation | ControlFlowContext) -> None:
        chain = self._chain(context)
        # A branch or loop has several nodes with effects, but is one item of the order.
        if chain.last is not unit:
            entries = self._entries(unit)
            self._wait(entries, chain.last)
            # The reads before a change must not see it.
            for read in chain.reads:
                self._wait(entries, read)
            chain.last, chain.reads = unit, []
            if context is self._body:
                self.effects.append(unit)
        self._pass_on(context)

    def _pass_on(self, context: ControlFlowContext) -> None:
        """Add a branch or loop with an effect or read to the outer order. Both branches of a cond are one item."""
        if context is not self._body and context.outer is not None:
            # The branch for true stands for the whole cond.
            first = context.other if isinstance(context, CondContext) and not context.branch else context
            self._changes(context.outer, first)

    def _entries(self, unit: Operation | ControlFlowContext) -> Sequence[Operation]:
        """Return the nodes without which no node of the item runs."""
        if isinstance(unit, CondContext):
            return [unit.pred.op, *(p for p in (unit.pivot, unit.other.pivot) if p is not None)]
        if isinstance(unit, WhileContext):
            return [v.enter.op for v in unit.variables]
        if isinstance(unit, Operation) and unit.expansion is not None:
            place = unit.control_flow_context
            return [unit, *(op for op in self._nodes if unit in calls_around(op) and made_in(op) is place)]
        return [unit] if isinstance(unit, Operation) else []

    def ends(self, unit: Operation | ControlFlowContext) -> list[Operation]:
        """Return the nodes to wait for in order to wait for the whole item."""
        if isinstance(unit, CondContext):
            sides = (unit, unit.other)
            merges = (op for op in self._nodes if op.type == "Merge" and op.control_flow_context is unit.outer)
            return [op for op in merges if any(t.op.control_flow_context in sides for t in op.inputs)]
        if isinstance(unit, WhileContext):
            return [v.exit.op for v in unit.variables]
        return [unit] if isinstance(unit, Operation) else []

    def _wait(self, entries: Iterable[Operation], before: Operation | ControlFlowContext | None) -> None:
        if before is None:
            return
        ends = self.ends(before)
        for op in entries:
            sources = {t.op for t in op.inputs}
            # A node waits for the nodes that it reads anyway.
            added = [b for b in ends if b not in sources and b not in op.waits_for and b is not op]
            op.waits_for = (*op.waits_for, *added)


def ordered_effects(body: BodyContext) -> list[Operation]:
    """Put the nodes of a traced body in order. Return those that must run whenever it is called."""
    order = _Order(body)
    for op in list(body.nodes.values()):
        # Nodes of an expansion have the place of their call, which is an item itself.
        if op.op_def.stateful and op.call is None:
            order.add(op)
    return [op for unit in order.effects for op in order.ends(unit)]


def effects_of_definition(nodes: Iterable[Operation]) -> list[Operation]:
    """Return the nodes of an imported body that must run whenever it is called.

    The branches and loops of a definition are not known as such, so nodes in them run only if a result needs them.
    """
    inside: set[Operation] = set()
    found: list[Operation] = []
    for op in nodes:
        sources = (*(t.op for t in op.inputs), *op.waits_for)
        # Nodes behind a Switch or an Enter may not run, until a Merge or an Exit ends the branch or loop.
        if op.type in ("Switch", "Enter") or (op.type not in ("Merge", "Exit") and not inside.isdisjoint(sources)):
            inside.add(op)
        elif op.call is None and op.op_def.traits.effect is Effect.CHANGES:
            found.append(op)
    return found
