"""The analysis whether callers may share a step as rows of a batch.

That is possible if each row of the fetches is computed from one row of the feeds and nothing else depends on the batch.
The rules of the ops (`graph.rows`) are applied from feeds to fetches. If there are loops, this is repeated until
nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from aioflow.compiler.ir import Edge
from aioflow.compiler.prune import needed_operations
from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.calls import resolved, waited_for
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.rows import (
    FIXED,
    NOTHING,
    OTHER,
    SIZED,
    Count,
    RowContext,
    RowDependence,
    RowRule,
    Rows,
    each_element,
    joined,
    passed,
)
from aioflow.graph.traits import Effect, Role
from aioflow.memory.values import Array

_LONGEST: Final = 4096  # elements; values that are longer are not tracked
_PASSES: Final = 100  # most passes over the nodes; a loop within a loop needs a few
_HANDED_ON: Final = frozenset({Role.ENTER, Role.SWITCH})  # control flow ops that pass a handle on
_PASSED: Final = frozenset({Role.ENTER, Role.EXIT, Role.NEXT})


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The verdict on whether the rows of a batch are independent.

    Attributes:
        kind: Whether rows are proven independent (`RowDependence.ROWS`) or dependent (`REFUTED`), or it is `UNKNOWN`.
        op: The node that decided it; None if independence is proven.
        why: What that node does.
        changes: Whether the step changes state that other steps see.
    """

    kind: RowDependence
    op: Operation | None = None
    why: str = ""
    changes: bool = False

    @property
    def is_proven(self) -> bool:
        """True if each row of the fetches depends on one row of the feeds."""
        return self.kind is RowDependence.ROWS

    @property
    def is_refuted(self) -> bool:
        """True if rows are not independent."""
        return self.kind is RowDependence.REFUTED

    def __str__(self) -> str:
        return "proven" if self.op is None else f"{self.op.name!r} ({self.op.type}) {self.why}"


def unrepeatable(feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> Operation | None:
    """Return a node because of which two steps with equal feeds may differ, or None.

    Such a node changes state, keeps state of its own, as generators do, or reads files. Reading variables is allowed.
    """
    for op in _step(feeds, fetches)[1]:
        traits = op.op_def.traits
        if (
            traits.effect is Effect.CHANGES
            or (traits.effect is Effect.KEEPS and traits.kind != "handle")
            or (traits.effect is Effect.READS and not op.inputs)
            or traits.kind == "files"
        ):
            return op
    return None


def _step(feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> tuple[list[Tensor], list[Operation]]:
    """Return the fetches, resolved, and the nodes of the step."""
    fed = {tensor: Edge(f"_arg_{i}", 0) for i, tensor in enumerate(feeds)}
    sources = [tensor if tensor in fed else resolved(tensor) for tensor in fetches]
    return sources, needed_operations([t.op for t in sources if t not in fed], fed, {t.op for t in feeds})


def row_verdict(feeds: Sequence[Tensor], fetches: Sequence[Tensor]) -> RowVerdict:
    """Return whether each row of `fetches` depends on the same row of `feeds` alone, all of them along axis 0."""
    sources, operations = _step(feeds, fetches)
    analysis = _Analysis(feeds)
    analysis.run(operations)
    found = [_verdict(tensor, analysis.state(tensor)) for tensor in sources]
    found += [
        RowVerdict(RowDependence.REFUTED, op, "changes state depending on the rows") for op in analysis.changes_by_rows
    ]
    # The kinds are ordered, with the one that forbids most at the end.
    worst = max(found, key=lambda each: each.kind, default=RowVerdict(RowDependence.UNKNOWN))
    if worst.is_proven:
        if (reader := analysis.reader_of_nothing(operations)) is not None:
            worst = RowVerdict(RowDependence.UNKNOWN, reader, "reads an empty list")
        elif (reader := analysis.reader_of_others(operations)) is not None:
            worst = RowVerdict(RowDependence.UNKNOWN, reader, "may read writes of nodes that it only waits for")
    return replace(worst, changes=any(op.op_def.traits.effect is Effect.CHANGES for op in operations))


def _verdict(tensor: Tensor, state: Rows) -> RowVerdict:
    """Return the verdict on one fetch."""
    if state.kind >= RowDependence.UNKNOWN:
        return RowVerdict(state.kind, state.op, state.why)
    if not state.is_rows:
        return RowVerdict(RowDependence.UNKNOWN, tensor.op, "does not depend on the rows")
    if state.axis:
        return RowVerdict(RowDependence.REFUTED, tensor.op, f"has its rows along axis {state.axis}")
    if state.each is None:
        return RowVerdict(RowDependence.UNKNOWN, tensor.op, "may return several rows per input row")
    if state.each != 1:
        return RowVerdict(RowDependence.REFUTED, tensor.op, f"returns {state.each} rows per input row")
    return RowVerdict(RowDependence.ROWS)


class _Analysis:
    """The positions of the rows, and the values of small tensors, in a step.

    Attributes:
        changes_by_rows: The nodes that change state depending on the rows: with a batch the change would be another.
    """

    def __init__(self, feeds: Sequence[Tensor]) -> None:
        self.changes_by_rows: dict[Operation, None] = {}
        self._changed: set[Hashable] = set()  # the resources that the step changes
        self._states: dict[Tensor, Rows] = {}
        self._values: dict[Tensor, Array | None] = {}
        self._feeds = frozenset(feeds)
        # By node: the predicates that decide whether it runs, or which input a Merge passes on.
        self._deciding: dict[Operation, list[Tensor]] = {}
        for tensor in feeds:
            # Only a feed with an unknown first size can be a batch of any number of rows.
            known = bool(tensor.dims) and tensor.dims is not None and tensor.dims[0] is None
            why = (
                "is fed, but its rank is unknown"
                if tensor.dims is None
                else "is fed, but its first dimension is not open"
            )
            self._states[tensor] = (
                Rows(RowDependence.ROWS) if known else Rows(RowDependence.UNKNOWN, op=tensor.op, why=why)
            )

    def state(self, tensor: Tensor) -> Rows:
        """Return the positions of the rows in a tensor."""
        return self._states.get(self._source(tensor), NOTHING)

    def _source(self, tensor: Tensor) -> Tensor:
        return tensor if tensor in self._feeds else resolved(tensor)

    def run(self, operations: Sequence[Operation]) -> None:
        """Apply the rules to `operations`, which are in topological order, until nothing changes."""
        self._changed = {
            self._resource(tensor)
            for op in operations
            if op.op_def.traits.effect is Effect.CHANGES
            for tensor in op.inputs
            if tensor.dtype is dtypes.resource
        }
        self._deciding = _predicates(operations, self._source)
        # Without loops one pass suffices, since the operations are in topological order.
        loops = any(op.op_def.traits.role is Role.NEXT for op in operations)
        for _ in range(_PASSES):
            if not (self._pass(operations) and loops):
                return
        for op in operations:  # the rules are not monotonic, so without a fixed point nothing is known
            self._states.update((t, Rows(RowDependence.UNKNOWN, op=op, why="is in a loop")) for t in op.outputs)

    def _resource(self, handle: Tensor) -> Hashable:
        """Return a key that identifies the resource of a handle."""
        op = self._source(handle).op
        while op.inputs and (op.op_def.traits.kind == "passes_on" or op.op_def.traits.role in _HANDED_ON):
            op = self._source(op.inputs[0]).op
        name = op.attrs.get("shared_name")
        return (op.type, op.attrs.get("container"), name) if name else op

    def _pass(self, operations: Sequence[Operation]) -> bool:
        changed = False
        for op in operations:
            for tensor, state in zip(op.outputs, self._outputs(op), strict=True):
                if tensor not in self._feeds and self._states.get(tensor) != state:
                    self._states[tensor] = state
                    changed = True
        return changed

    def _outputs(self, op: Operation) -> list[Rows]:
        sources = [self._source(tensor) for tensor in op.inputs]
        inputs = [self._states.get(tensor, NOTHING) for tensor in sources]
        count, role = len(op.outputs), op.op_def.traits.role
        if role in _PASSED:
            # A loop invariant keeps its value; other loop variables may change in every iteration.
            if role is Role.ENTER and op.attrs["is_constant"]:
                self._values[op.outputs[0]] = self._values.get(sources[0])
            return inputs[:1]
        if role is Role.MERGE:
            found = joined(inputs, op)
            for predicate in self._deciding.get(op, ()):
                found = _decided_by(op, self._states.get(predicate, NOTHING), found)
            # The second output of a Merge is the number of the live input.
            return [found, found if found.kind >= RowDependence.UNKNOWN else FIXED]
        if role is Role.SWITCH:
            return [_decided_by(op, inputs[1], inputs[0])] * count
        context = RowContext(op, inputs, [self._values.get(tensor) for tensor in sources])
        rule = _rule_of(op)
        if stateful := self._by_state(op, context):
            return [stateful] * count
        try:
            self._follow_values(op, context, rule)
            states = _through(context, rule)
        except (OpError, IndexError, ValueError, TypeError):  # the step itself reports what is wrong
            states = [context.unknown("has incompatible inputs")] * count
        return [self._seen(t, state) for t, state in zip(op.outputs, states, strict=True)]

    def _by_state(self, op: Operation, context: RowContext) -> Rows | None:
        """Return the state of the outputs of a node that changes state or reads changed state, else None."""
        traits = op.op_def.traits
        if traits.effect is Effect.CHANGES:
            deciding = [self._states.get(predicate, NOTHING) for predicate in self._deciding.get(op, ())]
            if any(state.kind > RowDependence.FIXED for state in (*context.inputs, *deciding)):
                self.changes_by_rows[op] = None
            return context.refuted("changes shared state or waits for other steps")
        if traits.effect is Effect.READS and op.inputs and self._resource(op.inputs[0]) in self._changed:
            return context.refuted("reads state that the step changes")
        if traits.draws:
            return context.unknown("draws new random numbers in each step")
        if traits.effect is Effect.KEEPS and traits.kind != "handle" and op.inputs and op.op_def.rows is None:
            return context.unknown("may return values that other nodes have stored")
        return None

    def _seen(self, tensor: Tensor, state: Rows) -> Rows:
        """Narrow the state of an output: by its static shape if it has rows, otherwise by its value."""
        value, dims = self._values.get(tensor), tensor.dims
        if state.is_rows and dims and dims[state.axis : state.axis + 1] not in ((), (None,)):
            return Rows(RowDependence.UNKNOWN, op=tensor.op, why="has a fixed size along the axis of the rows")
        if state.kind is not RowDependence.SIZED or value is None:
            return state
        elements = value.reshape(-1).tolist()
        return SIZED if any(each is OTHER or isinstance(each, Count) for each in elements) else FIXED

    def _follow_values(self, op: Operation, context: RowContext, rule: RowRule | None) -> None:
        """Store the known values of the outputs."""
        found = _worked_out(op, [context.value(i) for i in range(len(op.inputs))])
        if rule is not None and rule.values is not None and all(value is None for value in found):
            found = rule.values(context)
        self._values.update((t, value) for t, value in zip(op.outputs, found, strict=True) if t not in self._feeds)

    def reader_of_nothing(self, operations: Sequence[Operation]) -> Operation | None:
        """Return a node that reads an element of a list without known elements, or None. Its output is unknown.

        The rules hold for such a node only as long as elements may still be found.
        """
        for op in operations:
            rule = _rule_of(op)
            if op.op_def.traits.role is not Role.KERNEL or rule is passed or (rule and rule.makes_list):
                continue
            if any(self._states.get(tensor) == NOTHING for tensor in op.outputs):
                return op
        return None

    def reader_of_others(self, operations: Sequence[Operation]) -> Operation | None:
        """Return a node that reads a tensor array whose elements do not all reach it by data flow, or None.

        A write changes the array for every node that has its handle.
        """
        written: dict[Hashable, list[Rows]] = {}
        readers = []
        for op in operations:
            rule = _rule_of(op)
            if op.op_def.traits.effect is not Effect.KEEPS or len(op.inputs) < 2 or not op.outputs:
                continue
            if rule is None or rule.makes_list:
                written.setdefault(self._resource(op.inputs[0]), []).append(self.state(op.outputs[0]))
            else:
                readers.append(op)
        for op in readers:
            array = self._resource(op.inputs[0])
            found = joined(written.get(array, ()), op)
            is_known = isinstance(array, Operation) and array.op_def.traits.role is Role.KERNEL
            if not is_known or (found.kind > RowDependence.FIXED and self.state(op.inputs[-1]) != found):
                return op
        return None


_Gates = frozenset[tuple[Tensor, int]]  # predicates, each with the live output of its Switch


def _predicates(operations: Sequence[Operation], source: Callable[[Tensor], Tensor]) -> dict[Operation, list[Tensor]]:
    """Return the predicates that select the live input of each Merge.

    The Merge's output depends on them, even if only control inputs of its sources do. For each node that changes state,
    the predicates are those that decide whether it runs.
    """
    gates: dict[Operation, _Gates] = {}
    none: _Gates = frozenset()
    found: dict[Operation, list[Tensor]] = {}

    def of(tensor: Tensor) -> _Gates:
        tensor = source(tensor)
        known = gates.get(tensor.op, none)
        if tensor.op in gates and tensor.op.op_def.traits.role is Role.SWITCH:
            return known | {(source(tensor.op.inputs[1]), tensor.value_index)}
        return known

    for op in operations:
        role = op.op_def.traits.role
        if role is Role.MERGE:
            around = [of(tensor) for tensor in op.inputs if source(tensor).op in gates]  # without back edges of loops
            # Predicates common to all inputs decide whether the Merge runs; the others select its input.
            gates[op] = none.union(*around[:1]).intersection(*around[1:])
            if len(around) == len(op.inputs):
                found[op] = list({predicate for predicate, _ in none.union(*around) - gates[op]})
        elif role is Role.EXIT:
            gates[op] = gates.get(source(op.inputs[0]).op, none)  # the same as around the loop
        else:
            waited = (inner for each in op.waits_for for inner in waited_for(each))
            parts = [part for part in (*map(of, op.inputs), *(gates.get(each, none) for each in waited)) if part]
            gates[op] = none.union(*parts) if len(parts) > 1 else parts[0] if parts else none
            if gates[op] and op.op_def.traits.effect is Effect.CHANGES:
                found[op] = [predicate for predicate, _ in gates[op]]
    return found


def _worked_out(op: Operation, inputs: Sequence[Array | None]) -> Sequence[Array | None]:
    """Return the known values of the outputs, by the static value rule of the op."""
    nothing, known = [None] * len(op.outputs), op.op_def.value
    if known is None:
        return nothing
    if not inputs and known.fact is not None:
        return [_short(known.fact(tensor)) for tensor in op.outputs]  # of a constant
    given = [value for value in inputs if value is not None]
    if known.rule is None or len(given) < len(inputs):
        return nothing
    try:
        with np.errstate(all="ignore"):
            result = known.rule(op, given)
    except (OpError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return nothing  # the rule does not support partly known values
    found = result if isinstance(result, list) else [result]
    return [None if value is None else _short(np.asarray(value)) for value in found]


def _short(value: Array | None) -> Array | None:
    return value if value is not None and value.size <= _LONGEST else None


def _decided_by(op: Operation, predicate: Rows, value: Rows) -> Rows:
    """Return the state of a value that a predicate selects."""
    if predicate.kind <= RowDependence.FIXED or value.kind >= max(predicate.kind, RowDependence.UNKNOWN):
        return value
    if predicate.kind >= RowDependence.UNKNOWN:
        return predicate
    return Rows(RowDependence.UNKNOWN, op=op, why="is selected by the number of rows")


def _rule_of(op: Operation) -> RowRule | None:
    """Return the rule of an op: its own, or that of its kind."""
    if op.op_def.rows is not None:
        return op.op_def.rows
    return {"elementwise": each_element, "passes_on": passed}.get(op.op_def.traits.kind)


def _through(context: RowContext, rule: RowRule | None) -> list[Rows]:
    """Return the positions of the rows in the outputs of an op."""
    inputs, count = context.inputs, len(context.op.outputs)
    if (
        rule is not None
        and rule.always
        and (rule.values is not None or max(inputs, key=_kind).kind < RowDependence.UNKNOWN)
    ):
        return _as_list(rule.rule(context), count)
    worst = max(inputs, key=_kind, default=FIXED)
    if worst.kind >= RowDependence.UNKNOWN and rule is not passed:
        return [worst] * count
    if any(state.kind is RowDependence.NOTHING for state in inputs) and rule is not passed:
        return [NOTHING] * count
    if worst.kind is RowDependence.FIXED:
        return [FIXED] * count
    if rule is None:
        return [context.unknown("has no rule for rows")] * count if context.rows else [SIZED] * count
    if not rule.reads_sizes and rule is not passed and any(state.kind is RowDependence.SIZED for state in inputs):
        return [context.unknown("computes with the number of rows")] * count if context.rows else [SIZED] * count
    return _as_list(rule.rule(context), count)


def _kind(state: Rows) -> RowDependence:
    return state.kind


def _as_list(found: Rows | list[Rows], count: int) -> list[Rows]:
    return found if isinstance(found, list) else [found] * count
