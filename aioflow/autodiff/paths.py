"""The nodes on paths from xs to ys: the part of the graph that the reverse walk visits, and its order."""

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

_HANDLES: Final = (dtypes.resource, dtypes.variant)

WalkStep: TypeAlias = "Operation | WhileContext"  # one step of the walk: a node, or a loop as a whole


def is_trainable(dtype: DType) -> bool:
    """Return True if gradients flow through tensors of this dtype: floating but not narrow, complex, or a handle."""
    return (dtype.is_floating and not dtype.is_narrow) or dtype.is_complex or dtype in _HANDLES


def _may_have_gradient(tensor: Tensor) -> bool:
    """Return True if the tensor is trainable and not a list of handles."""
    return is_trainable(tensor.dtype) and tensor.op.attrs.get("element_dtype") is not dtypes.resource


def is_own(op: Operation) -> bool:
    """Return True if the node is differentiated itself, and not through the nodes of its expansion."""
    return op.expansion is None or op.gradient_function is not None


class Level:
    """The nodes of one walk: those outside of all loops, or those in the body of one.

    A loop on the level is one step, from the tensors that it returns to those that enter it.

    Args:
        body: The loop whose body the level is; None outside of loops.
        home: Context in which the gradients are made: the open branch or loop; None at the top.
        around: Follow the back edges of the loop: a variable in one iteration depends on the iteration before.
    """

    def __init__(self, body: WhileContext | None, home: ControlFlowContext | None, around: bool = False) -> None:
        self.body = body
        self.home = home
        self._around = around
        # The top of the graph encloses every level.
        self._open: set[ControlFlowContext | None] = {None, body}
        # Nodes at which a walk on this level stops. With `around`, it continues at a variable's value of the iteration
        # before.
        self._starts: dict[Operation, Tensor | None] = {}
        while home is not None:
            self._open.add(home)
            if isinstance(home, WhileContext):
                # A gradient that is taken inside the body of a loop ends at the values of this iteration.
                self._starts |= {v.merge.op: None for v in home.variables}
            home = home.outer
        if body is not None:
            self._starts |= {v.merge.op: v.following for v in body.variables}
            self._starts |= {t.op: None for t in body.invariants}

    def is_open(self, context: ControlFlowContext | None) -> bool:
        """Return True if the level is inside that branch or loop."""
        return context in self._open

    def step(self, op: Operation) -> WalkStep:
        """Return the step that contains the node: the node itself, or the outermost loop around it on this level."""
        found: WalkStep = op
        context = op.control_flow_context
        while context not in self._open:
            # The last loop on the way out is the outermost one.
            if context.is_loop:
                found = context
            context = context.outer
        return found

    def sources(self, step: WalkStep) -> Sequence[Tensor]:
        """Return the tensors that the step reads."""
        if isinstance(step, WhileContext):
            entering = [*(v.enter for v in step.variables), *step.invariants]
            # The Enters belong to the loop; the step reads what they bring in.
            return [t.op.inputs[0] for t in entering]
        if step in self._starts:
            following = self._starts[step]
            return () if following is None or not self._around else (following,)
        # A call without a gradient function of its own is differentiated through its expansion.
        return step.inputs if is_own(step) else step.expansion or ()

    @staticmethod
    def results(step: WalkStep) -> Sequence[Tensor]:
        """Return the tensors that the step produces."""
        # The Exits are steps of their own: they lie outside of the loop.
        return [v.leaving for v in step.variables] if isinstance(step, WhileContext) else step.outputs


@dataclass(frozen=True, slots=True)
class Paths:
    """The steps between xs and ys.

    Attributes:
        pending: For each step on a path, the number of gradients that its consumers on paths have not yet produced.
        ends: The steps of ys that xs can reach.
        stops: Steps whose sources get no gradient: those of `stop_gradients`, and xs with no other x upstream.
    """

    pending: dict[WalkStep, int]
    ends: list[WalkStep]
    stops: set[WalkStep]


def find_paths(ys: Iterable[Operation], xs: Iterable[Operation], stop: Iterable[Operation], level: Level) -> Paths:
    """Return the steps between `xs` and `ys`, in time linear in the number of nodes that `ys` depend on."""
    ends = list(dict.fromkeys(level.step(op) for op in ys))
    starts = list(dict.fromkeys(level.step(op) for op in xs))
    reached = _reachable(starts, _consumers(ends, level), level)
    # Count only consumers on a path: the walk never visits others, and a step would wait for their gradients forever.
    between = _backward([step for step in ends if step in reached], reached, level)
    pending = dict.fromkeys(between, 0)
    for step in between:
        # A step that reads a tensor twice counts twice, because it yields two gradients.
        for tensor in level.sources(step):
            source = level.step(tensor.op)
            if source in pending:
                pending[source] += 1
    # An x with another x behind it must pass its gradients on; any other x is an end of the walk.
    stops = {s for s in starts if not any(pending.get(level.step(t.op), 0) > 0 for t in level.sources(s))}
    return Paths(pending, [step for step in ends if step in pending], stops | set(stop))


def _consumers(ends: list[WalkStep], level: Level) -> dict[Tensor, list[WalkStep]]:
    """Return the readers of each tensor, among the steps that `ends` depend on."""
    found: dict[Tensor, list[WalkStep]] = {}
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


def _reachable(starts: list[WalkStep], consumers: dict[Tensor, list[WalkStep]], level: Level) -> set[WalkStep]:
    reached = set(starts)
    queue = deque(starts)
    while queue:
        # Gradients do not flow through integers, bools and strings, so the search does not cross them.
        for tensor in filter(_may_have_gradient, level.results(queue.popleft())):
            for step in consumers.get(tensor, ()):
                if step not in reached:
                    reached.add(step)
                    queue.append(step)
    return reached


def _backward(ends: list[WalkStep], reached: set[WalkStep], level: Level) -> list[WalkStep]:
    """Return the reached steps from which `ends` can be reached, nearest to `ends` first."""
    found = dict.fromkeys(ends)
    queue = deque(ends)
    while queue:
        for tensor in filter(_may_have_gradient, level.sources(queue.popleft())):
            source = level.step(tensor.op)
            if source in reached and source not in found:
                found[source] = None
                queue.append(source)
    return list(found)
