"""The branch or loop that is being built, and how values from outside get into it.

A node that is made inside reads inside: what it reads from outside comes through a `Switch` into a branch, through an
`Enter` into a loop, one for each tensor. A node that would wait for nothing inside waits for the *pivot*, the node that
is alive just where the branch is taken or the body runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import scopes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.shapes import Dims
from aioflow.ops.apply import apply_op, constant

__all__ = ["CondContext", "ControlFlowContext", "WhileContext", "current_context"]


def current_context(graph: Graph) -> ControlFlowContext | None:
    """The innermost branch or loop that is being built here, or None."""
    found: Any = scopes.current_scope(graph).context
    return found  # type: ignore[no-any-return]  # the only implementation of the protocol


class ControlFlowContext:
    """A branch or a loop.

    Attributes:
        outer: The one around it, None at the top.
        pivot: What nodes without inputs wait for.
    """

    is_loop = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outer = current_context(graph)
        self.pivot: Operation | None = None
        self._captured: dict[Tensor, Tensor] = {}
        self._gates: dict[Operation, Operation] = {}

    def opened(self) -> AbstractContextManager[Any]:
        """A block whose new nodes are inside.

        What control dependencies around the block ask for, the nodes inside wait for by way of the pivot.
        """
        scope = scopes.current_scope(self.graph)
        waiting = (scopes.Controller(()),) if scope.controllers else ()  # so that variables are still read afresh
        inner = replace(scope, context=self, controllers=waiting, colocation=(), colocated_device="")
        return scopes.enter_scope(self.graph, inner)

    def is_open(self) -> bool:
        """Whether new nodes are made inside at the moment."""
        context = current_context(self.graph)
        while context is not None and context is not self:
            context = context.outer
        return context is self

    # -- the protocol of graph.scopes.Context ------------------------------------------------------------------------

    def admit(
        self, name: str, op_type: str, inputs: tuple[Tensor, ...], control: tuple[Operation, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
        """What a new node inside really reads and waits for."""
        if op_type == "Exit":
            return inputs, control
        read = tuple(self.capture(t, name) for t in inputs)
        waited = tuple(dict.fromkeys(self._capture_control(c, name) for c in control))
        if self.pivot is not None and self._is_loose([t.op for t in read], waited):
            waited = (*waited, self.pivot)
        return read, waited

    def check_readable(self, source: Operation) -> None:
        """Nodes at the top may read what is in a branch, which may be dead, but not what is in a loop."""
        context: ControlFlowContext | None = self
        while context is not None:
            if context.is_loop:
                raise self._unreadable(source)
            context = context.outer

    # -- bringing things inside --------------------------------------------------------------------------------------

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """The tensor as it is to be read inside.

        Raises:
            InvalidArgumentError: it is inside a loop that is not open here.
        """
        if self._holds(tensor.op):
            return tensor
        if tensor not in self._captured:
            if self.outer is not None:
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
        scope = scopes.current_scope(self.graph)
        prefix = reader or scope.name
        plain = replace(
            scope, name=prefix, context=self.outer, controllers=(), colocation=(), colocated_device="", devices=()
        )
        with scopes.enter_scope(self.graph, plain):
            inside = self._bring(outside)
        inside.op.control_flow_context = self
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

    def _holds(self, op: Operation) -> bool:
        """Whether the outputs of `op` are inside, at any depth of branches."""
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
            expected="what the loop returns",
            actual=op.name,
        )
        error.at(op.name, op.type, op.source)
        return error


class CondContext(ControlFlowContext):
    """One branch of a `cond`.

    Attributes:
        pred: The predicate, outside.
        branch: 0 or 1: which output of each Switch is this side's.
    """

    def __init__(self, pred: Tensor, pivot: Operation, branch: int) -> None:
        super().__init__(pred.graph)
        self.pred = pred
        self.branch = branch
        self.pivot = pivot

    def _bring(self, outside: Tensor) -> Tensor:
        inside: Tensor = apply_op("Switch", outside, self.pred)[self.branch]
        return inside

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        """A branch is in the frame of what is around it, so a node inside may wait for one outside directly."""
        if self._holds(op):
            return op
        if self.outer is not None:
            return self.outer._capture_control(op, reader)
        if op.control_flow_context is not None:
            op.control_flow_context.check_readable(op)
        return op

    def _is_loose(self, sources: list[Operation], waited: Iterable[Operation]) -> bool:
        return not sources and not any(op is self.pivot or self._holds(op) for op in waited)


class WhileContext(ControlFlowContext):
    """A while loop.

    Attributes:
        name: Of the frame.
        parallel_iterations: How many iterations may be under way at once.
        maximum_iterations: An upper bound, or None.
        enters, merges, exits: Of the loop variables, in order.
        condition: The LoopCond.
    """

    is_loop = True

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
        self.enters: list[Tensor] = []
        self.merges: list[Tensor] = []
        self.exits: list[Tensor] = []
        self.condition: Tensor | None = None

    def enter(self, outside: Tensor, is_constant: bool, dims: Dims) -> Tensor:
        """A new Enter, made among the nodes outside."""
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
        return self.enter(outside, True, outside.dims)

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        """No edge may lead into a frame but through an Enter: so a value that is made after `op` does."""
        if self._holds(op):
            return op
        gate = self._gates.get(op)
        if gate is None:
            outside = replace(scopes.current_scope(self.graph), name=reader, context=self.outer, controllers=())
            with scopes.enter_scope(self.graph, outside), self.graph.control_dependencies([op]):
                done = constant(False, name="done")
            gate = self._gates[op] = self.capture(done, reader).op
        return gate

    def _is_loose(self, sources: list[Operation], waited: Iterable[Operation]) -> bool:
        """Whether a node would run once more than the body does: it depends on nothing but loop invariants."""
        return all(
            op.type == "Enter" and op.attrs["is_constant"] and op.control_flow_context is self
            for op in (*sources, *waited)
        )
