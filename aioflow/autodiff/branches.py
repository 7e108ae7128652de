"""Gradients of branches: the gradients of nodes in a branch are made in a new branch with the same predicate.

So they run only if the branch was taken, and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from aioflow.autodiff.paths import Level
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.traits import Role
from aioflow.ops.apply import constant, convert_to_tensor, make, make_list
from aioflow.ops.control.contexts import CondContext, ControlFlowContext, placed
from aioflow.ops.core import identity
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.state import handle_dtype


class Branches:
    """The contexts in which the gradients of each branch of a level are made."""

    def __init__(self, graph: Graph, level: Level) -> None:
        self._graph = graph
        self._level = level
        self._found: dict[CondContext, CondContext] = {}

    @staticmethod
    def know(op: Operation) -> bool:
        """Return True if the Switch or Merge belongs to a loop or a `cond`, and was not made by hand."""
        if op.op_def.traits.role is Role.SWITCH:
            return _is_of_loop(op) or isinstance(op.control_flow_context, CondContext)
        return all(isinstance(t.op.control_flow_context, CondContext) for t in op.inputs)

    @staticmethod
    def where(op: Operation) -> ControlFlowContext | None:
        """Return the context of the node's inputs; that of a `cond`'s Switch is outside its branch."""
        context: ControlFlowContext | None = op.control_flow_context
        return context.outer if op.op_def.traits.role is Role.SWITCH and isinstance(context, CondContext) else context

    def around(self, context: ControlFlowContext | None) -> AbstractContextManager[object]:
        """Return a context manager within which gradients of nodes in `context` are made."""
        target = self.of(context)
        # The home is open already. Opening it again would drop the colocation of the block around.
        return nullcontext() if target is self._level.home or target is None else target.opened()

    def of(self, context: ControlFlowContext | None) -> ControlFlowContext | None:
        """Return the branch for the gradients of nodes in `context`, or the level's home if they need no branch."""
        if self._level.is_open(context) or not isinstance(context, CondContext):
            return self._level.home
        if context not in self._found:
            self._make(context)
        return self._found[context]

    def _make(self, context: CondContext) -> None:
        # The branch for gradients is nested like the forward one: in the gradient branch of the enclosing cond.
        with placed(self._graph, self.of(context.outer)):
            # In the gradient of a loop, this copy takes the predicate from a stack; the pivots and all Switches read
            # it.
            pred = identity(context.pred, name="pred")
            pivots = [identity(side, name="pivot") for side in make_list("Switch", pred, pred)]
            sides = CondContext.pair(pred, [p.op for p in pivots])
        # Both sides are made at once: `switch_gradients` needs zeros from the side that was not taken.
        for forward in (context, context.other):
            side = self._found[forward] = sides[forward.branch]
            side.forward = forward


def _is_of_loop(op: Operation) -> bool:
    return op.inputs[1].op.op_def.traits.role is Role.LOOP_CONDITION


def merge_gradients(branches: Branches, op: Operation, grad: Any) -> list[Tensor]:
    """Return the gradients of the two branches: the incoming gradient, received in each branch."""
    # A Switch takes a tensor, so slices are made dense at a Merge.
    dense = convert_to_tensor(grad)
    sides = ((t, branches.of(t.op.control_flow_context)) for t in op.inputs)
    return [side.receive(dense, t.dims) if isinstance(side, CondContext) else dense for t, side in sides]


def switch_gradients(branches: Branches, op: Operation, incoming: Sequence[Gradient | None]) -> list[Gradient | None]:
    """Return the gradients of a Switch's inputs.

    For a branch, the gradient of the branch's side is merged with zeros for the other side. For a loop, it is the
    gradient of the side on which the loop continues.
    """
    data = op.inputs[0]
    if _is_of_loop(op):
        # The first output of a loop's Switch leaves the loop; its gradient is a start value of the backward loop.
        return [incoming[1], None]
    branch = op.control_flow_context
    with branches.around(branch):
        taken = convert_to_tensor(incoming[branch.branch])
    with branches.around(branch.other):
        absent = zeros_for(data)
    # The order of a Merge's inputs is that of a Switch's outputs: false, then true.
    sides = [absent, taken] if branch.branch else [taken, absent]
    return [make_list("Merge", sides)[0], None]


def zeros_for(tensor: Tensor) -> Tensor:
    """Return zeros of the tensor's shape; for the handle of a variable, zeros of the variable's shape."""
    dtype = handle_dtype(tensor)
    if dtype is None:
        return make("ZerosLike", tensor)
    # VariableShape asks the resource, so the value of the variable need not be read.
    return make("Fill", make("VariableShape", tensor), constant(0, dtype))


def dense_shape_of(tensor: Tensor) -> Tensor:
    """Return the shape of the tensor, or of the variable whose handle it is, in the form that `IndexedSlices` need."""
    return make("Shape" if handle_dtype(tensor) is None else "VariableShape", tensor)


def as_dense(gradient: Tensor | IndexedSlices | None, like: Tensor) -> Tensor:
    """Return the gradient as one tensor, zeros if it is None."""
    return zeros_for(like) if gradient is None else convert_to_tensor(gradient)
