"""Which nodes lie on a path from xs to ys: the part of the graph that the reverse walk visits, and in what order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from aioflow.graph import dtypes
from aioflow.graph.graph import Operation
from aioflow.ops.control.contexts import ControlFlowContext, WhileContext

if TYPE_CHECKING:
    from aioflow.graph.dtypes import DType
    from aioflow.graph.graph import Tensor

__all__ = ["Level", "Paths", "Step", "find_paths", "is_own", "is_trainable"]

_HANDLES: Final = (dtypes.resource, dtypes.variant)

Step: TypeAlias = "Operation | WhileContext"  # what the walk takes in one step: a node, or a loop as a whole


def is_trainable(dtype: DType) -> bool:
    """Whether gradients flow through tensors of this dtype: floating, complex, and the handles of variables."""
    return (dtype.is_floating and not dtype.is_narrow) or dtype.is_complex or dtype in _HANDLES


def _may_have_gradient(tensor: Tensor) -> bool:
    """Whether it is trainable, and not a list of handles."""
    return is_trainable(tensor.dtype) and tensor.op.attrs.get("element_dtype") is not dtypes.resource


def is_own(op: Operation) -> bool:
    """Whether its gradient is its own affair, and not that of the nodes that a call stands for."""
    return op.expansion is None or op.gradient_function is not None


class Level:
    """The nodes among which a walk goes: those outside of all loops, or those in the body of one.

    A loop in their midst is one step, from what it returns to what enters it.

    Args:
        body: The loop whose body it is, None outside of loops.
        home: Where the gradients are made: the branch or loop that is open there, None at the top.
        around: Go around the loop: what a variable is in one iteration depends on what it was in the one before.
    """

    def __init__(self, body: WhileContext | None, home: ControlFlowContext | None, around: bool = False) -> None:
        self.body = body
        self.home = home
        self._around = around
        self._open: set[ControlFlowContext | None] = {None, body}
        self._starts: dict[Operation, Tensor | None] = {}
        while home is not None:
            self._open.add(home)
            if isinstance(home, WhileContext):
                self._starts |= {v.merge.op: None for v in home.variables}
            home = home.outer
        if body is not None:
            self._starts |= {v.merge.op: v.following for v in body.variables}
            self._starts |= {t.op: None for t in body.invariants}

    def is_open(self, context: ControlFlowContext | None) -> bool:
        """Whether the level is inside of that branch or loop."""
        return context in self._open

    def step(self, op: Operation) -> Step:
        """The step that takes the node: itself, or the outermost loop of this level that it is in."""
        found: Step = op
        context = op.control_flow_context
        while context not in self._open:
            if context.is_loop:
                found = context
            context = context.outer
        return found

    def sources(self, step: Step) -> Sequence[Tensor]:
        """What it reads."""
        if isinstance(step, WhileContext):
            entering = [*(v.enter for v in step.variables), *step.invariants]
            return [t.op.inputs[0] for t in entering]
        if step in self._starts:
            following = self._starts[step]
            return () if following is None or not self._around else (following,)
        return step.inputs if is_own(step) else step.expansion or ()

    @staticmethod
    def results(step: Step) -> Sequence[Tensor]:
        """What it makes."""
        return [v.leaving for v in step.variables] if isinstance(step, WhileContext) else step.outputs


@dataclass(frozen=True, slots=True)
class Paths:
    """The steps between xs and ys.

    Attributes:
        pending: For each step on a path, how many gradients its consumers on paths still owe it.
        ends: The steps of ys that xs can reach.
        stops: Steps whose sources get nothing: those of `stop_gradients`, and the xs with no further x upstream.
    """

    pending: dict[Step, int]
    ends: list[Step]
    stops: set[Step]


def find_paths(ys: Iterable[Operation], xs: Iterable[Operation], stop: Iterable[Operation], level: Level) -> Paths:
    """The steps between `xs` and `ys`, found in time linear in what `ys` depend on."""
    ends = list(dict.fromkeys(level.step(op) for op in ys))
    starts = list(dict.fromkeys(level.step(op) for op in xs))
    reached = _reachable(starts, _consumers(ends, level), level)
    between = _backward([step for step in ends if step in reached], reached, level)
    pending = dict.fromkeys(between, 0)
    for step in between:
        for tensor in level.sources(step):
            source = level.step(tensor.op)
            if source in pending:
                pending[source] += 1
    stops = {s for s in starts if not any(pending.get(level.step(t.op), 0) > 0 for t in level.sources(s))}
    return Paths(pending, [step for step in ends if step in pending], stops | set(stop))


def _consumers(ends: list[Step], level: Level) -> dict[Tensor, list[Step]]:
    """Who reads each tensor, among the steps that `ends` depend on."""
    found: dict[Tensor, list[Step]] = {}
    seen = set(ends)
    queue = deque(ends)
    while queue:
        step = queue.popleft()
        for tensor in level.sources(step):
            found.setdefault(tensor, []).append(step)
            source = level.step(tensor.op)
            if source not in seen:
                seen.add(source)
                queue.append(source)
    return found


def _reachable(starts: list[Step], consumers: dict[Tensor, list[Step]], level: Level) -> set[Step]:
    reached = set(starts)
    queue = deque(starts)
    while queue:
        for tensor in filter(_may_have_gradient, level.results(queue.popleft())):
            for step in consumers.get(tensor, ()):
                if step not in reached:
                    reached.add(step)
                    queue.append(step)
    return reached


def _backward(ends: list[Step], reached: set[Step], level: Level) -> list[Step]:
    """The reached steps from which `ends` can be reached, nearest to `ends` first."""
    found = dict.fromkeys(ends)
    queue = deque(ends)
    while queue:
        for tensor in filter(_may_have_gradient, level.sources(queue.popleft())):
            source = level.step(tensor.op)
            if source in reached and source not in found:
                found[source] = None
                queue.append(source)
    return list(found)
