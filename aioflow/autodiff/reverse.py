"""The reverse walk: visit every node between xs and ys, nearest to ys first, and compute the gradients of its inputs.

A node is visited after all its consumers on a path to ys, so that all gradients of a tensor with several readers are
available for the sum. Only the bodies of loops are visited by recursion, and each edge is followed a fixed number of
times. A loop is one step of the walk. The gradients of nodes in a branch are made in a new branch
(`branches_and_loops`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from aioflow.autodiff.branches_and_loops import Branches, loop_gradients, merge_gradients, switch_gradients
from aioflow.autodiff.paths import Level, WalkStep, find_paths, is_own
from aioflow.errors import (
    DTypeError,
    InternalError,
    InvalidArgumentError,
    NoGradientError,
    NotFoundError,
    OpError,
    UnimplementedError,
    UnknownError,
)
from aioflow.graph.gradient_registry import GRADIENTS, TAKES_SLICES, GradientFn
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import format_dims
from aioflow.graph.traits import Role
from aioflow.ops.apply import convert_to_tensor, make
from aioflow.ops.control.contexts import ControlFlowContext, WhileContext
from aioflow.ops.core import tuple_
from aioflow.ops.sparse.indexed_slices import Gradient, convert_to_tensor_or_indexed_slices, sum_gradients

# ── lookup of a node's gradient function: its own, or that of its op ──────────────────────────────────────────────────


def lookup_gradient(op: Operation) -> GradientFn | None:
    """Return the gradient function of a node; None if it is declared not differentiable.

    Raises:
        NoGradientError: no gradient function is registered. The error names the node and how to register one.
    """
    if op.gradient_function is not None:
        return op.gradient_function
    name = _gradient_name(op)
    if name not in GRADIENTS:
        OPS.find(name)  # imports the module of the op, which may register the gradient
    if name not in GRADIENTS:
        raise NoGradientError(
            f"no gradient is registered for op {name!r}; add one with @aioflow.RegisterGradient({name!r})"
        ).at(op.name, op.type, op.source)
    return GRADIENTS[name]


def takes_slices(op: Operation) -> bool:
    """Return True if the node's gradient function accepts IndexedSlices. A user's function for a node always does."""
    return op.gradient_function is not None or _gradient_name(op) in TAKES_SLICES


def _gradient_name(op: Operation) -> str:
    name: str = op.attrs.get("_gradient_op_type", op.type)
    return name


# ── the walk ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """The options of one call of `gradients`.

    Attributes:
        stop: Nodes to treat as constants.
        colocate: Put each gradient on the device of its node.
        gate: Release the gradients of a node only when all of them are computed.
    """

    stop: frozenset[Operation]
    colocate: bool = False
    gate: bool = False


class ReverseWalk:
    """A walk from `ys` to `xs` on one level: the gradients so far, and the steps that are ready.

    Attributes:
        graph: The graph.
        level: The nodes that the walk visits.
        branches: Contexts in which the gradients of branches are made.
    """

    def __init__(
        self, graph: Graph, ys: Sequence[Tensor], xs: Sequence[Tensor], level: Level, options: GradientOptions
    ) -> None:
        self.graph = graph
        self.level = level
        self.branches = Branches(graph, level)
        self._ys = ys
        self._options = options
        self._paths = find_paths([y.op for y in ys], [x.op for x in xs], options.stop, level)
        self._parts: dict[Tensor, list[Gradient]] = {}

    def inner(self, ys: Sequence[Tensor], xs: Sequence[Tensor], level: Level) -> ReverseWalk:
        """Return a walk of the same call through the body of a loop."""
        return ReverseWalk(self.graph, ys, xs, level, self._options)

    def run(self, seeds: Sequence[Gradient]) -> None:
        """Visit every step on a path, given the incoming gradients of `ys`."""
        self._flow(zip(self._ys, seeds, strict=True))
        pending = self._paths.pending
        # A y that another y depends on has gradients to wait for.
        ready = deque(step for step in self._paths.ends if pending[step] == 0)
        while ready:
            step = ready.popleft()
            self._flow(self._visit(step))
            # Count down even if no gradient flows, or the sources would wait forever.
            for tensor in self.level.sources(step):
                source = self.level.step(tensor.op)
                if source in pending:
                    pending[source] -= 1
                    if pending[source] == 0:
                        ready.append(source)
        self._check_complete()

    def _check_complete(self) -> None:
        """Raise UnimplementedError if steps are left: a loop that `while_loop` did not make depends on itself."""
        left = [step for step, owed in self._paths.pending.items() if owed]
        for op in left:
            if isinstance(op, Operation) and op.op_def.traits.role is Role.NEXT:
                raise UnimplementedError(
                    "a loop has a gradient only if `while_loop` made it",
                    expected="a loop made by while_loop",
                    actual=op.name,
                ).at(op.name, op.type, op.source)

    def gradient_of(self, x: Tensor) -> Gradient | None:
        """Return the sum of the gradients of `x`; None if it is not connected."""
        return self.summed(x) if self.leads_on(x) else None

    def leads_on(self, tensor: Tensor) -> bool:
        """Return True if the tensor depends on an x."""
        return self.level.step(tensor.op) in self._paths.pending

    def summed(self, tensor: Tensor) -> Gradient | None:
        """Return the sum of the tensor's gradients, or None."""
        parts = self._parts.get(tensor)
        if not parts:
            return None
        if len(parts) > 1:
            # Keep the sum, so that another reader does not create its nodes again.
            parts[:] = [sum_gradients(parts)]
        return parts[0]

    def _flow(self, gradients: Iterable[tuple[Tensor, Gradient]]) -> None:
        for tensor, gradient in gradients:
            self._parts.setdefault(tensor, []).append(gradient)

    def _visit(self, step: WalkStep) -> Iterable[tuple[Tensor, Gradient]]:
        """Return the gradients of the tensors that the step reads."""
        if isinstance(step, WhileContext):
            with self.branches.around(step.outer):
                found = [] if step in self._paths.stops else loop_gradients(self, step)
            return [(t, _fitted(t.op, t, g)) for t, g in found]
        # The outputs of a cond's Switch are in its branch and its input is outside, so the two sides of a node may
        # differ.
        with self._at(step, step.control_flow_context):
            incoming = [self.summed(t) for t in step.outputs]
        if step in self._paths.stops or all(g is None for g in incoming):
            return []
        with self._at(step, self.branches.where(step)), self.graph.name_scope(f"{step.name}_grad"):
            outgoing = self._outgoing(step, incoming)
            # A single gradient has nothing to wait for.
            if self._options.gate and sum(g is not None for g in outgoing) > 1:
                outgoing = _gated(outgoing)
            pairs = zip(self.level.sources(step), outgoing, strict=True)
            return [(t, _fitted(step, t, g)) for t, g in pairs if g is not None]

    @contextmanager
    def _at(self, op: Operation, context: ControlFlowContext | None) -> Iterator[None]:
        """Make nodes in the context for gradients of `context`; with the colocation option, on the device of `op`."""
        with self.branches.around(context), ExitStack() as stack:
            if self._options.colocate:
                stack.enter_context(self.graph.colocate_with(op))
            yield

    def _outgoing(self, op: Operation, incoming: list[Gradient | None]) -> list[Gradient | None]:
        """Return the gradients of inputs that depend on xs, and None for the others, which a gate would compute too."""
        found: Sequence[Gradient | None]
        # The outputs of a call are those of its expansion, one by one, and so are their gradients.
        if not is_own(op):
            found = incoming
        elif op.op_def.traits.role is Role.MERGE and self.branches.know(op):
            found = merge_gradients(self.branches, op, incoming[0])
        elif op.op_def.traits.role is Role.SWITCH and self.branches.know(op):
            found = switch_gradients(self.branches, op, incoming)
        else:
            found = _by_rule(op, incoming)
        return [g if self.leads_on(t) else None for t, g in zip(self.level.sources(op), found, strict=True)]


def _by_rule(op: Operation, incoming: list[Gradient | None]) -> list[Gradient | None]:
    """Return the result of the node's own gradient function, or of its op's."""
    function = lookup_gradient(op)
    if function is None:
        return [None] * len(op.inputs)
    if not takes_slices(op):
        incoming = [convert_to_tensor(g) if isinstance(g, IndexedSlices) else g for g in incoming]
    # As in TensorFlow, a gradient function gets zeros where no gradient arrives. Other dtypes have no gradients at
    # all.
    for i, tensor in enumerate(op.outputs):
        if incoming[i] is None and (tensor.dtype.is_floating or tensor.dtype.is_complex):
            incoming[i] = make("ZerosLike", tensor)
    with _named(op):
        return _as_gradients(op, function(op, *incoming))


# Exceptions of gradient functions, and the OpError that is also of that type; the first match applies.
_MEANINGS: Final[tuple[tuple[type[Exception], type[OpError]], ...]] = (
    (KeyError, NotFoundError),
    (TypeError, DTypeError),
    (ValueError, InvalidArgumentError),
    (NotImplementedError, UnimplementedError),
)


@contextmanager
def _named(op: Operation) -> Iterator[None]:
    """Attach the node to every error that its gradient function raises."""
    try:
        yield
    except OpError as error:
        error.at(op.name, op.type, op.source)
        raise
    except Exception as error:
        kind = next((to for foreign, to in _MEANINGS if isinstance(error, foreign)), UnknownError)
        message = f"the gradient function of op {op.type!r} raised {type(error).__name__}: {error}"
        raise kind(message).at(op.name, op.type, op.source) from error


def _as_gradients(op: Operation, result: Any) -> list[Gradient | None]:
    """Return the result of a gradient function as one gradient per input."""
    listed = list(result) if isinstance(result, list | tuple) else [result]
    # A lone None means that no input has a gradient, however many inputs there are.
    if len(listed) == 1 and listed[0] is None:
        return [None] * len(op.inputs)
    if len(listed) != len(op.inputs):
        raise InternalError(
            f"the gradient of op {op.type!r} does not fit its inputs",
            expected=f"{len(op.inputs)} gradients",
            actual=f"{len(listed)} gradients",
        ).at(op.name, op.type, op.source)
    return [None if g is None else convert_to_tensor_or_indexed_slices(g) for g in listed]


def _fitted(op: Operation, tensor: Tensor, gradient: Gradient) -> Gradient:
    """Check the gradient against its input and return it, with the known sizes of the input's shape."""
    # The gradient by a handle is that of the variable's value, whose dtype and shape are not those of the handle.
    if isinstance(gradient, IndexedSlices) or tensor.dtype.name in ("resource", "variant"):
        return gradient
    if gradient.dtype != tensor.dtype:
        raise DTypeError(
            f"the gradient of op {op.type!r} by {tensor.name!r} has the wrong dtype; convert it with aioflow.cast",
            expected=tensor.dtype.name,
            actual=gradient.dtype.name,
        ).at(op.name, op.type, op.source)
    try:
        # set_shape fails if the sizes contradict each other, so it checks the shape as well.
        gradient.set_shape(tensor.dims)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the gradient of op {op.type!r} by {tensor.name!r} has the wrong shape",
            expected=format_dims(tensor.dims),
            actual=format_dims(gradient.dims),
        ).at(op.name, op.type, op.source) from error
    return gradient


def _gated(outgoing: Sequence[Gradient | None]) -> list[Gradient | None]:
    """Return the same gradients, each available only when all are."""
    dense = tuple_([g.values if isinstance(g, IndexedSlices) else g for g in outgoing])
    return [
        IndexedSlices(t, g.indices, g.dense_shape) if isinstance(g, IndexedSlices) else t
        for g, t in zip(outgoing, dense, strict=True)
    ]
