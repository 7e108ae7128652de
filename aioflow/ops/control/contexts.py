"""The branch or loop under construction, and the paths by which outside values reach it.

A node made inside reads only tensors inside. An outside tensor enters a branch through a `Switch` and a loop through
an `Enter`, one per tensor. A node that would depend on nothing inside waits for the *pivot*, the node that is alive
exactly when the branch is taken or the body runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from aioflow.errors import InvalidArgumentError
from aioflow.graph import scopes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.array.tensor_list import empty_list, hole, push
from aioflow.ops.core import identity

_Context = TypeVar("_Context", bound="ControlFlowContext | None")


def current_context(graph: Graph) -> ControlFlowContext | None:
    """Return the innermost branch or loop under construction, or None."""
    found: Any = scopes.current_scope(graph).context
    return found  # type: ignore[no-any-return]  # the only implementation of the protocol


def placed(graph: Graph, context: ControlFlowContext | None, name: str = "") -> AbstractContextManager[object]:
    """Return a block whose new nodes are in `context` (None: at the top), in the name scope `name` if it is given.

    The nodes inherit no control dependencies, devices or colocation from around the block.
    """

    return scopes.enter_scope(graph, lambda outer: outer.bare(context)._replace(name=name or outer.name))


class Copies(Protocol):
    """A mapping from originals to their copies, used while nodes with contexts are copied.

    An item that is not copied maps to itself.
    """

    def name(self, name: str) -> str:
        """Return the name in the name scope that the copy is made under."""

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor."""

    def operation(self, op: Operation) -> Operation:
        """Return the copy of a node."""

    def context(self, context: _Context) -> _Context:
        """Return the copy of a branch or a loop, or None for None."""

    def variable(self, variable: LoopVariable) -> LoopVariable:
        """Return the copy of a loop variable."""


class ControlFlowContext:
    """A branch or a loop.

    Attributes:
        outer: The enclosing context, None at the top.
        pivot: The node that nodes without inputs wait for.
    """

    is_loop = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outer = current_context(graph)
        self.pivot: Operation | None = None
        self._captured: dict[Tensor, Tensor] = {}
        self._gates: dict[Operation, Operation] = {}

    def opened(self) -> AbstractContextManager[object]:
        """Return a block whose new nodes are inside.

        Control dependencies around the block apply to the nodes inside through the pivot.
        """
        inside = scopes.Controller(())

        def inner(outer: scopes.Scope) -> scopes.Scope:
            # An open control-dependency block, even an empty one, makes each read of a variable a node of its own.
            waiting = (inside,) if outer.controllers else ()
            return outer._replace(context=self, controllers=waiting, colocation=(), colocated_device="")

        return scopes.enter_scope(self.graph, inner)

    # -- the protocol of graph.scopes.Context ------------------------------------------------------------------------

    def admit(
        self, name: str, op_type: str, inputs: tuple[Tensor, ...], control: tuple[Operation, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
        """Return the inputs and control inputs of a new node inside, each brought inside."""
        # An Exit is made outside of its loop and reads a value inside, which `capture` would reject.
        if op_type == "Exit":
            # Its control inputs stay as well: `leave` has removed those of surrounding blocks.
            return inputs, control
        read = tuple(self.capture(t, name) for t in inputs)
        waited = tuple(dict.fromkeys(self._capture_control(c, name) for c in control))
        if self.pivot is not None and self._is_loose([t.op for t in read], waited):
            # Without this edge the node would run even if the branch is not taken.
            waited = (*waited, self.pivot)
        return read, waited

    def stand_in(self, op_type: str, inputs: Sequence[object], attrs: Attrs) -> Tensor | None:
        """Return a replacement for the output of a node with these properties, or None if the node is needed.

        Contexts of loop gradients override this.
        """
        return None if self.outer is None else self.outer.stand_in(op_type, inputs, attrs)

    def check_readable(self, source: Operation) -> None:
        """Raise an error if `source` is in a loop: nodes at the top may read a branch, whose values may be dead."""
        context: ControlFlowContext | None = self
        while context is not None:
            if context.is_loop:
                raise self._unreadable(source)
            context = context.outer

    # -- copying -------------------------------------------------------------------------------------------------------

    def begin_copy(self, made: Self, copies: Copies) -> None:
        """Set the place of `made`, a shallow copy of this context, before the nodes inside are copied."""
        made.outer = copies.context(self.outer)
        made.pivot = None
        made._captured, made._gates = {}, {}

    def end_copy(self, made: Self, copies: Copies) -> None:
        """Set the nodes of the copy when all are copied. Call again after this context has grown."""
        made.pivot = None if self.pivot is None else copies.operation(self.pivot)
        made._captured.update((copies.tensor(t), copies.tensor(inside)) for t, inside in self._captured.items())
        made._gates.update((copies.operation(op), copies.operation(gate)) for op, gate in self._gates.items())

    # -- capturing ---------------------------------------------------------------------------------------------------

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """Return the tensor to read inside in the place of `tensor`.

        Raises:
            InvalidArgumentError: `tensor` is inside a loop that is not open here.
        """
        if self.holds(tensor.op):
            return tensor
        if tensor not in self._captured:
            if self.outer is not None:
                # An outer context brings the tensor in first, so that it crosses one boundary at a time.
                outside = self.outer.capture(tensor, reader)
            else:
                outside = tensor
                if tensor.op.control_flow_context is not None:
                    tensor.op.control_flow_context.check_readable(tensor.op)
            self._captured[tensor] = self._inside(outside, reader)
        return self._captured[tensor]

    def _inside(self, outside: Tensor, reader: str) -> Tensor:
        if outside in self._captured:
            return self._captured[outside]
        # The new node reads tensors outside, so it is made outside and moved inside afterwards.
        with placed(self.graph, self.outer, reader):
            inside = self._bring(outside)
        inside.op.control_flow_context = self
        # Its value is dead if the branch is not taken, or belongs to one iteration: no step may ask for it.
        self.graph.prevent_fetching(inside.op)
        for tensor in inside.op.outputs:
            self.graph.prevent_feeding(tensor)
        self._captured[outside] = inside
        return inside

    def _bring(self, outside: Tensor) -> Tensor:
        raise NotImplementedError

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        raise NotImplementedError

    def _is_loose(self, sources: list[Operation], waited: Iterable[Operation]) -> bool:
        raise NotImplementedError

    def holds(self, op: Operation) -> bool:
        """Return whether the outputs of `op` are inside, at any depth of branches.

        Raises:
            InvalidArgumentError: `op` is in a loop inside, so that its outputs cannot be read here.
        """
        # Walk outwards. A loop that is crossed on the way has many values of this output, one for each iteration.
        context = op.control_flow_context
        crossed = False
        while context is not None and context is not self:
            crossed = crossed or context.is_loop
            context = context.outer
        if context is self and crossed:
            raise self._unreadable(op)
        return context is self

    def _unreadable(self, op: Operation) -> InvalidArgumentError:
        error = InvalidArgumentError(
            f"node {op.name!r} is inside a while loop and cannot be used outside it",
            expected="a result of the loop",
            actual=op.name,
        )
        error.at(op.name, op.type, op.source)
        return error


class CondContext(ControlFlowContext):
    """One branch of a `cond`.

    Attributes:
        pred: The predicate, outside.
        branch: Index of this branch's output of each Switch: 0 or 1.
        other: The other branch.
        forward: The branch whose gradients are in this one, or None.
    """

    other: CondContext

    def __init__(self, pred: Tensor, pivot: Operation, branch: int, forward: CondContext | None = None) -> None:
        super().__init__(pred.graph)
        self.pred = pred
        self.branch = branch
        self.pivot = pivot
        self.forward = forward

    @classmethod
    def pair(cls, pred: Tensor, pivots: Sequence[Operation]) -> tuple[CondContext, CondContext]:
        """Return the two branches of a new cond: the one for false and the one for true."""
        sides = cls(pred, pivots[0], 0), cls(pred, pivots[1], 1)
        sides[0].other, sides[1].other = sides[1], sides[0]
        return sides

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """Return the tensor to read inside. Tensors of the branch that is differentiated are alive here, too."""
        forward = self.forward
        # Both branches have the same predicate, and no frame lies between them: no Switch is needed.
        if forward is not None and enclosing_loop(forward) is enclosing_loop(self) and forward.holds(tensor.op):
            return tensor
        inside = super().capture(tensor, reader)
        if forward is not None and tensor.op.control_flow_context is forward:
            # From a stack of the loop, where a hole may have any shape.
            inside.set_shape(tensor.dims)
        return inside

    def receive(self, outside: Tensor, dims: Dims) -> Tensor:
        """Bring `outside` inside with the static shape `dims`, which may differ in the other branch."""
        with placed(self.graph, self.outer):
            # Both outputs get this shape although the other one is never read: a Switch has one spec per output.
            specs = [(outside.dtype, dims)] * 2
            op = self.graph.create_op("Switch", [outside, self.pred], {"T": outside.dtype}, specs, name="Switch")
        op.control_flow_context = self
        return op.outputs[self.branch]

    def begin_copy(self, made: Self, copies: Copies) -> None:
        """Extend the copy by the other branch and by the branch that this one has the gradients of."""
        super().begin_copy(made, copies)
        made.other = copies.context(self.other)
        made.forward = copies.context(self.forward)

    def end_copy(self, made: Self, copies: Copies) -> None:
        """Extend the copy by the predicate."""
        super().end_copy(made, copies)
        made.pred = copies.tensor(self.pred)

    def _bring(self, outside: Tensor) -> Tensor:
        return make_list("Switch", outside, self.pred)[self.branch]

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        """Return the node to wait for inside: `op` itself, because a branch is in the frame of its surroundings."""
        if self.holds(op):
            return op
        if self.outer is not None:
            return self.outer._capture_control(op, reader)
        if op.control_flow_context is not None:
            op.control_flow_context.check_readable(op)
        return op

    def _is_loose(self, sources: list[Operation], waited: Iterable[Operation]) -> bool:
        return not sources and not any(op is self.pivot or self.holds(op) for op in waited)


# Compared by identity: variables are keys of dicts while their fields are still unset.
@dataclass(slots=True, eq=False)
class LoopVariable:
    """A value that a loop carries from one iteration to the next.

    Attributes:
        enter: The value before the first iteration.
        merge: The value at the start of each iteration.
        inside: The value in the body.
        leaving: The value when the predicate is false.
        exit: The value after the loop.
        following: The new value that the body computes.
    """

    enter: Tensor
    merge: Tensor
    inside: Tensor
    leaving: Tensor
    exit: Tensor
    following: Tensor

    def __init__(self, enter: Tensor) -> None:
        self.enter = enter

    def copied(self, copies: Copies) -> LoopVariable:
        """Return the variable of a complete copy of the loop."""
        made = LoopVariable(copies.tensor(self.enter))
        made.merge, made.inside = copies.tensor(self.merge), copies.tensor(self.inside)
        made.leaving, made.exit = copies.tensor(self.leaving), copies.tensor(self.exit)
        made.following = copies.tensor(self.following)
        return made


class WhileContext(ControlFlowContext):
    """A while loop.

    Attributes:
        name: Name of the frame.
        parallel_iterations: Maximum number of iterations in progress at once.
        maximum_iterations: An upper bound, or None. If it is set, the first variable counts iterations.
        variables: The loop variables, in order.
        invariants: The outside tensors that the loop reads, as they are inside.
        condition: The output of the LoopCond.
    """

    is_loop = True
    condition: Tensor

    def __init__(
        self,
        graph: Graph,
        name: str,
        parallel_iterations: int = 10,
        back_prop: bool = True,
        swap_memory: bool = False,
        maximum_iterations: Tensor | None = None,
    ) -> None:
        super().__init__(graph)
        self.name = name
        self.parallel_iterations = parallel_iterations
        self.back_prop = back_prop
        self.swap_memory = swap_memory
        self.maximum_iterations = maximum_iterations
        self.variables: list[LoopVariable] = []
        self.invariants: list[Tensor] = []
        self._count: Tensor | None = None
        self._stacks: dict[Tensor, Tensor] = {}

    # -- copying -------------------------------------------------------------------------------------------------------

    def begin_copy(self, made: Self, copies: Copies) -> None:
        """Give the copy a name of its own and no variables yet: a copy of a loop is a separate loop."""
        super().begin_copy(made, copies)
        made.name = copies.name(self.name)
        made.variables, made.invariants = [], []
        made._count, made._stacks = None, {}

    def end_copy(self, made: Self, copies: Copies) -> None:
        """Extend the copy by the loop variables, the invariants and the values kept for gradients."""
        super().end_copy(made, copies)
        made.condition = copies.tensor(self.condition)
        if self.maximum_iterations is not None:
            made.maximum_iterations = copies.tensor(self.maximum_iterations)
        if self._count is not None:
            made._count = copies.tensor(self._count)
        made.variables += [v for v in map(copies.variable, self.variables) if v not in made.variables]
        made.invariants += [t for t in map(copies.tensor, self.invariants) if t not in made.invariants]
        made._stacks.update((copies.tensor(t), copies.tensor(kept)) for t, kept in self._stacks.items())

    # -- building ----------------------------------------------------------------------------------------------------

    def begin(self, starts: Sequence[Tensor], shapes: Sequence[Dims]) -> list[LoopVariable]:
        """Make the variables up to the Merge that the predicate reads. Call outside of the loop."""
        made = [LoopVariable(self._enter(t, False, dims)) for t, dims in zip(starts, shapes, strict=True)]
        with self.opened():
            # The second input of a Merge is a placeholder at first: `close` replaces it by the back edge.
            # The Merge makes its shape from its inputs, so the start value twice gives it the shape invariant.
            for variable in made:
                variable.merge = make_list("Merge", [variable.enter] * 2)[0]
        # While the predicate is built, its nodes wait for the first Merge: it is alive once per iteration and once
        # more.
        self.pivot = made[0].merge.op
        self.variables += made
        return made

    def decide(self, wanted: Tensor) -> None:
        """Make `wanted` the predicate: the body runs as long as it holds. Call inside the loop."""
        self.condition = make("LoopCond", wanted, name="LoopCond")
        switches = [make_list("Switch", v.merge, self.condition) for v in self.variables]
        for variable, switch in zip(self.variables, switches, strict=True):
            self._divide(variable, switch)
        # The predicate's nodes run once more than the body's: nodes made from now on wait for a value of the body.
        self.pivot = self.variables[0].inside.op

    def _divide(self, variable: LoopVariable, switch: list[Tensor]) -> None:
        variable.leaving, inside = switch
        # A control edge from the Switch itself would be alive on both sides, so the pivot must be a node after it.
        variable.inside = identity(inside)

    def close(self, variable: LoopVariable, following: Tensor) -> None:
        """Carry `following` to the next iteration. Call inside the loop."""
        variable.following = following
        # The cycle of the graph is closed only here; until then the nodes form an acyclic graph.
        variable.merge.op.update_input(1, make("NextIteration", following))

    def leave(self, variables: Sequence[LoopVariable]) -> None:
        """Make the values after the loop. Call outside of the loop."""
        # Control inputs of a block around the loop are of another frame than an Exit. The Enters wait for them.
        with scopes.enter_scope(self.graph, lambda outer: outer._replace(controllers=())):
            for variable in variables:
                variable.exit = make("Exit", variable.leaving, name="Exit")

    def carry(self, start: Tensor, step: Callable[[Tensor], Tensor]) -> LoopVariable:
        """Add a variable to a loop whose predicate is known: it starts as `start`, and `step` computes each next value.

        The loop may be complete and may have been run. Steps that do not need the new variable are not affected.
        """
        with self.outside():
            variable = LoopVariable(self._enter(start, False, start.dims))
        with self.outside(), self.opened():
            variable.merge = make_list("Merge", [variable.enter] * 2)[0]
            self._divide(variable, make_list("Switch", variable.merge, self.condition))
            # `following` is inside for every variable, so an outside tensor that `step` returns is captured first.
            self.close(variable, self.capture(step(variable.inside)))
        with self.outside():
            variable.exit = make("Exit", variable.leaving, name="Exit")
        self.variables.append(variable)
        return variable

    def outside(self) -> AbstractContextManager[object]:
        """Return a block whose new nodes are in the context of the loop itself, under the loop's name."""
        return placed(self.graph, self.outer, self.name)

    def _enter(self, outside: Tensor, is_constant: bool, dims: Dims) -> Tensor:
        """Return the output of a new Enter, a node that is made among the nodes outside."""
        # A frame is identified by its name, so all Enters of a loop have the same one.
        attrs = {
            "T": outside.dtype,
            "frame_name": self.name,
            "is_constant": is_constant,
            "parallel_iterations": self.parallel_iterations,
        }
        op = self.graph.create_op("Enter", [outside], attrs, [(outside.dtype, dims)], name="Enter")
        op.control_flow_context = self
        self.graph.prevent_fetching(op)
        self.graph.prevent_feeding(op.outputs[0])
        return op.outputs[0]

    def _bring(self, outside: Tensor) -> Tensor:
        # A constant Enter delivers its value to every iteration, not only to the first one.
        invariant = self._enter(outside, True, outside.dims)
        self.invariants.append(invariant)
        return invariant

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        """Return the node to wait for inside.

        No edge may lead into a frame except through an Enter, so a constant that is made after `op` enters the loop.
        """
        if self.holds(op):
            return op
        gate = self._gates.get(op)
        if gate is None:
            with placed(self.graph, self.outer, reader), self.graph.control_dependencies([op]):
                done = constant(False, name="done")
            gate = self._gates[op] = self.capture(done, reader).op
        return gate

    def _is_loose(self, sources: list[Operation], waited: Iterable[Operation]) -> bool:
        """Return whether a node depends on loop invariants only, and so would run once more than the body."""
        return all(
            op.type == "Enter" and op.attrs["is_constant"] and op.control_flow_context is self
            for op in (*sources, *waited)
        )

    # -- for the gradient ----------------------------------------------------------------------------------------------

    def trip_count(self) -> Tensor:
        """Return the number of runs of the body, after the loop.

        It is an int32 scalar, or has the dtype of `maximum_iterations`.
        """
        if self._count is None:
            if self.maximum_iterations is not None:
                # The first variable of a bounded loop is its counter, so no other count is needed.
                self._count = self.variables[0].exit
            else:
                # Nothing counted so far: the loop gets another variable, although it is complete.
                with self.outside():
                    zero = constant(0, name="count")
                self._count = self.carry(zero, lambda count: make("AddV2", count, constant(1))).exit
        return self._count

    def stack(self, tensor: Tensor) -> Tensor:
        """Return a list, after the loop, of the values that a tensor of the body had in each iteration."""
        if tensor not in self._stacks:
            with self.outside():
                empty = empty_list(tensor.dtype)
            self._stacks[tensor] = self.carry(empty, lambda items: push(items, self._always_alive(tensor))).exit
        return self._stacks[tensor]

    def _always_alive(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a hole in an iteration that did not take the tensor's branch."""
        # Go outwards through the branches between the tensor and the loop body, with one Merge for each.
        branch = tensor.op.control_flow_context
        while branch is not self:
            with placed(self.graph, branch.outer):
                # A dead item would make the list itself dead, and with it the items of all other iterations.
                absent = branch.other.capture(hole(tensor.dtype))
                tensor = make_list("Merge", [absent, tensor] if branch.branch else [tensor, absent])[0]
            branch = branch.outer
        return tensor


def enclosing_loop(context: ControlFlowContext | None) -> ControlFlowContext | None:
    """Return the innermost loop that the context is in, or the context itself if it is a loop; None at the top."""
    while context is not None and not context.is_loop:
        context = context.outer
    return context
