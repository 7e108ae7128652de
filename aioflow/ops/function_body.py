"""The body of a function: nodes that are traced once, are part of no graph, and are copied to wherever it is called.

While a function is traced, its body is a context like a branch or a loop, so the builders need not know of it. What the
body reads from outside becomes an input behind its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph import scopes
from aioflow.graph.dtypes import resource
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import FunctionArg, FunctionDef, InputRef, graph_def_of
from aioflow.graph.scopes import Body, Scope
from aioflow.graph.shapes import dims_of
from aioflow.ops.apply import apply_op
from aioflow.ops.control_flow_contexts import ControlFlowContext

__all__ = ["BodyContext", "Function", "effects", "in_trace_of"]

# Ops that are stateful by definition, and yet nobody misses them where their results are not read.
_READS: Final = frozenset({"VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "VariableShape", "ResourceGather"})
_RANDOM: Final = ("Random", "Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal")
_HANDLES: Final = ("VarHandleOp", "QueueV2", "ReaderV2", "ConditionalAccumulator")

_TRACING: Final[ContextVar[tuple[str, ...]]] = ContextVar("aioflow_tracing", default=())


@contextmanager
def in_trace_of(name: str) -> Iterator[None]:
    """Around the tracing of a function. Raises UnimplementedError where it is being traced already: it calls itself."""
    names = _TRACING.get()
    if name in names:
        raise UnimplementedError(
            f"function {name!r} calls itself, which has no end: a call is expanded where it is made",
            expected="a loop",
            actual=" → ".join((*names[names.index(name) :], name)),
        )
    token = _TRACING.set((*names, name))
    try:
        yield
    finally:
        _TRACING.reset(token)


def reads(op: Operation) -> bool:
    """Whether a stateful node changes nothing that anybody else sees."""
    return op.type in _READS or op.type.startswith(_RANDOM) or op.type.endswith(_HANDLES)


def effects(operations: Iterable[Operation]) -> list[Operation]:
    """The nodes that must run whenever the function is called, whoever reads their results."""
    return [op for op in operations if op.op_def.stateful and not reads(op) and not op.control_flow_context.outer]


class BodyContext(ControlFlowContext, Body):
    """The body of one function.

    Attributes:
        name: The function's.
        arguments: What stands for the arguments.
        captures: What the body reads from outside, and what stands for it inside, in order.
        waits: Nodes outside for which nodes inside wait.
    """

    def __init__(self, graph: Graph, name: str) -> None:
        ControlFlowContext.__init__(self, graph)
        Body.__init__(self)
        self.name = name
        self.outer = None  # a call may be anywhere: what is captured is brought there by the call
        self.arguments: list[Tensor] = []
        self.captures: dict[Tensor, Tensor] = {}
        self.waits: dict[Operation, None] = {}
        self._at_border = False

    def opened(self) -> AbstractContextManager[Any]:
        """A block whose new nodes are inside."""
        around = scopes.current_scope(self.graph)
        inner = Scope(context=self, container=around.container, variable_scope=around.variable_scope)
        return scopes.enter_scope(self.graph, inner)

    def admit(
        self, name: str, op_type: str, inputs: tuple[Tensor, ...], control: tuple[Operation, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
        """What a new node inside really reads and waits for."""
        if self._at_border:
            return inputs, control
        waited = [op for op in dict.fromkeys(control) if self.holds(op)]
        self.waits.update(dict.fromkeys(op for op in control if not self.holds(op)))
        return tuple(self.capture(t, name) for t in inputs), tuple(waited)

    def check_readable(self, source: Operation) -> None:
        """Nobody outside may read what is inside."""
        raise InvalidArgumentError(
            f"node {source.name!r} is inside function {self.name!r} and cannot be used outside it",
            expected="what a call of the function returns",
            actual=source.name,
        ).at(source.name, source.type, source.source)

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """What stands for the tensor inside."""
        if self.holds(tensor.op):
            return tensor
        if tensor not in self.captures:
            with self._plain():
                self.captures[tensor] = self._border(tensor)
        return self.captures[tensor]

    def _plain(self) -> AbstractContextManager[Any]:
        return scopes.enter_scope(self.graph, Scope(context=self))

    def _border(self, outside: Tensor) -> Tensor:
        """A node inside that reads the tensor outside, which the reverse walk and the shape functions look through.

        A call reads its own input in its place.
        """
        self._at_border = True
        try:
            inside: Tensor = apply_op("Identity", outside, name="captured")
        finally:
            self._at_border = False
        return inside

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        if not self.holds(op):
            self.waits[op] = None
            found = self.pivot or self._anchor()
            return found
        return op

    def _anchor(self) -> Operation:
        with self._plain():
            self.pivot_node: Operation = apply_op("NoOp", name="called")
        return self.pivot_node

    def add_argument(self, argument: FunctionArg) -> Tensor:
        """One argument more."""
        with self._plain():
            tensor: Tensor = apply_op("Placeholder", dtype=argument.dtype, shape=argument.dims, name=argument.name)
        self.arguments.append(tensor)
        return tensor
