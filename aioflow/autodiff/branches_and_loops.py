"""Gradients of branches and loops.

The gradients of nodes in a branch are made in a new branch with the same predicate. The gradient of a while loop is a
loop that runs the iterations backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Protocol, Self

from aioflow.autodiff.paths import Level, find_paths, is_trainable
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import traits_of
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role
from aioflow.ops.apply import constant, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import known_dims
from aioflow.ops.array.tensor_list import empty_list, joined, pop, push
from aioflow.ops.control.contexts import CondContext, ControlFlowContext, Copies, LoopVariable, WhileContext, placed
from aioflow.ops.core import identity
from aioflow.ops.sparse.indexed_slices import Gradient
from aioflow.ops.variables.state import handle_dtype

# ── branches ──────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Gradients of nodes in a branch are made in a branch with the same predicate, so they run only if it was taken, and can
# be differentiated again.


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


# ── loops ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The forward loop pushes the values that the backward body needs on stacks, which are additional loop variables; the
# backward loop pops them. A tensor that the loop only reads from outside gets the sum of its gradients over all
# iterations. Both loops are ordinary loops, so a gradient can be differentiated again, and nested loops need no special
# case.


_FILLS: Final[Mapping[str, int]] = {"ZerosLike": 0, "OnesLike": 1}


class LoopWalk(Protocol):
    """The part of the reverse walk that a loop uses: see `reverse.ReverseWalk`."""

    graph: Graph

    def inner(self, ys: Sequence[Tensor], xs: Sequence[Tensor], level: Level) -> LoopWalk:
        """Return a walk of the same call through the body of a loop."""

    def run(self, seeds: Sequence[Gradient]) -> None:
        """Visit every step on a path, given the incoming gradients of `ys`."""

    def gradient_of(self, x: Tensor) -> Gradient | None:
        """Return the gradient of x, or None."""

    def leads_on(self, tensor: Tensor) -> bool:
        """Return True if the tensor depends on an x."""

    def summed(self, tensor: Tensor) -> Gradient | None:
        """Return the sum of the tensor's gradients, or None."""


class GradientLoop(WhileContext):
    """The loop that computes the gradients of another one.

    Iteration k of n here belongs to iteration n - k of the forward loop. So values of the forward body come from a
    stack.
    """

    def __init__(self, graph: Graph, name: str, forward: WhileContext) -> None:
        super().__init__(graph, name, forward.parallel_iterations, swap_memory=forward.swap_memory)
        self._forward = forward
        self._recalled: dict[Tensor, Tensor] = {}
        self._shapes: dict[tuple[str, Tensor, object], Tensor] = {}

    def begin_copy(self, made: Self, copies: Copies) -> None:
        """Copy the reference to the forward loop, besides what every loop copies."""
        super().begin_copy(made, copies)
        made._forward = copies.context(self._forward)
        made._recalled, made._shapes = {}, {}

    def end_copy(self, made: Self, copies: Copies) -> None:
        """Copy the recalled tensors and shapes of the forward loop, besides what every loop copies."""
        super().end_copy(made, copies)
        made._recalled.update((copies.tensor(t), copies.tensor(inside)) for t, inside in self._recalled.items())
        made._shapes.update(
            ((op_type, copies.tensor(t), out), copies.tensor(shape))
            for (op_type, t, out), shape in self._shapes.items()
        )

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """Return the tensor for use in this loop's body."""
        if not self._forward.holds(tensor.op):
            return super().capture(tensor, reader)
        # One stack per tensor, however many nodes read it.
        if tensor not in self._recalled:
            self._recalled[tensor] = self._recall(tensor)
        return self._recalled[tensor]

    def _recall(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the forward body with its value in the forward iteration that corresponds to this one."""
        if tensor.op.op_def.traits.role is Role.ENTER:  # an invariant has the same value in every iteration
            return self.capture(tensor.op.inputs[0])
        if tensor.op.op_def.traits.role is Role.CONSTANT:  # a copy of the constant is cheaper than a stack
            # At the top, so that the copy enters this loop as an invariant.
            with placed(self.graph, None):
                copy = constant(tensor.op.attrs["value"], tensor.dtype)
            return super().capture(copy)
        # `carry` calls `take` once, and the popped tensor leaves it through this list.
        found: list[Tensor] = []

        def take(items: Tensor) -> Tensor:
            # A tensor of a branch has its shape where the branch is taken; elsewhere the item is a hole.
            in_branch = tensor.op.control_flow_context is not self._forward
            rest, last = pop(items, tensor.dtype, None if in_branch else tensor.dims)
            found.append(last)
            return rest

        # The loop carries the stack: iteration k pops the value that the forward loop pushed in iteration n - k.
        self.carry(self._forward.stack(tensor), take)
        return found[0]

    def stand_in(self, op_type: str, inputs: Sequence[object], attrs: Attrs) -> Tensor | None:
        """Replace a node that depends only on a forward tensor's shape: the stack then holds shapes, not tensors."""
        tensor = inputs[0] if inputs else None
        if not traits_of(op_type).only_shapes:
            return None
        if not isinstance(tensor, Tensor) or tensor.dtype is dtypes.variant or not self._forward.holds(tensor.op):
            return super().stand_in(op_type, inputs, attrs)
        # ZerosLike and OnesLike need only the shape, so a Fill takes their place.
        if op_type in _FILLS:
            return make("Fill", self._shape("Shape", tensor, {}), constant(_FILLS[op_type], tensor.dtype))
        return self._shape(op_type, tensor, attrs)

    def _shape(self, op_type: str, tensor: Tensor, attrs: Attrs) -> Tensor:
        key = op_type, tensor, attrs.get("out_type")
        if key not in self._shapes:
            sizes = known_dims(tensor)
            if op_type == "Shape" and sizes is not None:
                return constant(sizes, attrs.get("out_type", dtypes.int32))
            # The shape is computed next to the tensor, in the forward body; its reader here recalls it from a stack.
            with placed(self.graph, tensor.op.control_flow_context):
                self._shapes[key] = make(op_type, tensor, **attrs)
        return self._shapes[key]


def loop_gradients(walk: LoopWalk, loop: WhileContext) -> list[tuple[Tensor, Gradient]]:
    """Return the gradients of the tensors that enter the loop, given those of the tensors that leave it."""
    given = {v: g for v in loop.variables if (g := walk.summed(v.leaving)) is not None}
    carried, invariants = _between(walk, loop, given)
    if not carried or not loop.back_prop:
        return []
    graph = walk.graph
    with graph.name_scope(f"{loop.name.rpartition('/')[2]}_grad"):
        back = GradientLoop(graph, graph.get_name_scope(), loop)
        # The first variable of the backward loop counts its remaining iterations.
        starts = [loop.trip_count(), *(as_dense(given.get(v), v.exit) for v in carried)]
        # A gradient has the shape that its variable keeps in all iterations.
        count, *grads = back.begin(starts, [(), *(v.merge.dims for v in carried)])
        with back.opened():
            # The body runs once for each iteration of the forward loop.
            back.decide(make("Greater", count.merge, constant(0, count.merge.dtype)))
            back.close(count, make("Sub", count.inside, constant(1, count.inside.dtype)))
            body = walk.inner(
                [v.following for v in carried], [*(v.merge for v in carried), *invariants], Level(loop, back)
            )
            body.run([g.inside for g in grads])
            for variable, grad in zip(carried, grads, strict=True):
                # The iteration before needs a gradient of every variable, if only zeros.
                back.close(grad, back.capture(as_dense(body.gradient_of(variable.merge), variable.merge)))
            sums = [_sum(back, t.op.inputs[0], body.gradient_of(t)) for t in invariants]
        back.leave([count, *grads])
    flows: list[tuple[Tensor, Gradient]] = [(v.enter.op.inputs[0], g.exit) for v, g in zip(carried, grads, strict=True)]
    flows += [(t.op.inputs[0], g) for t, g in zip(invariants, sums, strict=True) if g is not None]
    return [(t, g) for t, g in flows if walk.leads_on(t)]


def _between(
    walk: LoopWalk, loop: WhileContext, given: Mapping[LoopVariable, object]
) -> tuple[list[LoopVariable], list[Tensor]]:
    """Return the variables and invariants on a path from tensors that depend on xs to variables with a gradient."""

    def leads_on(entering: Tensor) -> bool:
        return is_trainable(entering.dtype) and walk.leads_on(entering.op.inputs[0])

    wanted = [v.merge.op for v in loop.variables if leads_on(v.enter)] + [t.op for t in loop.invariants if leads_on(t)]
    paths = find_paths([v.merge.op for v in given], wanted, (), Level(loop, None, around=True))
    carried = [v for v in loop.variables if v.merge.op in paths.pending and v.merge.dtype is not dtypes.resource]
    return carried, [t for t in loop.invariants if t.op in paths.pending and leads_on(t)]


def _sum(back: GradientLoop, outside: Tensor, gradient: Gradient | None) -> Gradient | None:
    """Return the sum over all iterations of the gradients of a tensor that the loop only reads.

    Must be called within the body.
    """
    if gradient is None:
        return None
    if isinstance(gradient, IndexedSlices):
        return _collected(back, outside, gradient)
    with back.outside():
        zeros = zeros_for(outside)
    if outside.dtype is not dtypes.resource:
        zeros.set_shape(outside.dims)
    # AddV2 takes only numbers; AddN also adds lists.
    if outside.dtype is dtypes.variant:
        return back.carry(zeros, lambda total: _sum_of_lists(total, gradient)).exit
    return back.carry(zeros, partial(make, "AddV2", gradient)).exit


def _sum_of_lists(total: Tensor, gradient: Gradient) -> Tensor:
    return make("AddN", [total, gradient])


def _collected(back: GradientLoop, outside: Tensor, slices: IndexedSlices) -> IndexedSlices:
    """Return the slices of all iterations."""
    # The number of slices may differ between iterations, so their parts go into lists that are joined at the end.
    parts = []
    for part in (slices.values, slices.indices):
        with back.outside():
            empty = empty_list(part.dtype)
        items = back.carry(empty, partial(push, tensor=part)).exit
        with back.outside():
            parts.append(joined(items, part.dtype, part.dims))
    with back.outside():
        return IndexedSlices(parts[0], parts[1], dense_shape_of(outside))
