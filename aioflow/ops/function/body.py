"""The body of a function: nodes that are made once, are part of no graph, and are copied to wherever it is called.

While a function is traced, its body is a context like a branch or a loop, so builders need no special case for it.
Tensors that the body reads from outside become inputs, after the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from aioflow.concurrency.context_stack import ContextStack
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph import scopes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import FunctionArg, FunctionDef, InputRef, graph_def_of
from aioflow.graph.signature.attributes import Attrs
from aioflow.ops.apply import make, make_op
from aioflow.ops.control.contexts import ControlFlowContext


@dataclass(slots=True, weakref_slot=True)
class _Tracing:
    """A body under construction: the name of its function and the kind of its arguments."""

    name: str
    key: object


_TRACING: Final[ContextStack[_Tracing]] = ContextStack("aioflow_tracing", weak=True)


@contextmanager
def tracing(name: str, key: object = None) -> Iterator[None]:
    """Mark the body of a function as under construction.

    Raises:
        UnimplementedError: a body of the same function and `key` is under construction: the function calls itself.
    """
    under_way, mine = list(_TRACING)[::-1], _Tracing(name, key)
    if mine in under_way:
        circle = [*(body.name for body in under_way[under_way.index(mine) :]), name]
        raise UnimplementedError(
            f"function {name!r} calls itself, which would never end: calls are expanded when they are made",
            expected="a loop",
            actual=" → ".join(circle),
        )
    with _TRACING.inside(mine):
        yield


class BodyContext(ControlFlowContext, scopes.NamedNodes[Operation]):
    """The body of one function.

    Attributes:
        name: Name of the function.
        captures: Tensors that the body reads from outside, and their counterparts inside, in order.
        waits: Nodes outside that nodes inside wait for. A call waits for them.
    """

    def __init__(self, graph: Graph, name: str) -> None:
        ControlFlowContext.__init__(self, graph)
        scopes.NamedNodes.__init__(self)
        self.name = name
        # A call may be in any context, and brings the captured tensors there itself.
        self.outer = None
        self.captures: dict[Tensor, Tensor] = {}
        self.waits: dict[Operation, None] = {}
        self._constants: dict[Tensor, Tensor] = {}
        self._called: Operation | None = None
        self._at_border = False

    def opened(self) -> AbstractContextManager[object]:
        """Return a block whose new nodes are inside.

        From outside they inherit only the container and the variable scope.
        """
        # An open control-dependency block makes each read of a variable a node of the body.
        waiting = (scopes.Controller(()),)

        def inner(outer: scopes.Scope) -> scopes.Scope:
            return scopes.Scope(
                context=self, controllers=waiting, container=outer.container, variable_scope=outer.variable_scope
            )

        return scopes.enter_scope(self.graph, inner)

    def admit(
        self, name: str, op_type: str, inputs: tuple[Tensor, ...], control: tuple[Operation, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Operation, ...]]:
        """Return the inputs and control inputs of a new node inside, with outside tensors captured."""
        # A border node reads an outside tensor on purpose.
        if self._at_border or op_type == "Exit":
            return inputs, control
        # An edge cannot lead into the body, so the call waits in place of the node inside.
        outside = [op for op in control if not self.holds(op)]
        self.waits.update(dict.fromkeys(outside))
        return tuple(self.capture(t) for t in inputs), tuple(op for op in control if op not in outside)

    def check_readable(self, source: Operation) -> None:
        """Raise an error: nodes outside may not read nodes inside."""
        raise InvalidArgumentError(
            f"node {source.name!r} is inside function {self.name!r} and cannot be used outside it",
            expected="a result of a call of the function",
            actual=source.name,
        ).at(source.name, source.type, source.source)

    def capture(self, tensor: Tensor, reader: str = "") -> Tensor:
        """Return the counterpart of the tensor inside."""
        if self.holds(tensor.op):
            return tensor
        if tensor not in self.captures:
            # A constant of floats may be differentiated, so it must be an input of the call.
            if tensor.op.type == "Const" and not tensor.dtype.is_floating and not tensor.dtype.is_complex:
                return self._constant(tensor)
            self.captures[tensor] = self._border(tensor)
        return self.captures[tensor]

    def _constant(self, outside: Tensor) -> Tensor:
        """Return a copy of a constant inside the body, so that shape functions know its value. It gets no gradient."""
        if outside not in self._constants:
            with self.plain():
                attrs = {key: outside.op.attrs[key] for key in ("value", "dtype")}
                self._constants[outside] = make("Const", name="constant", **attrs)
        return self._constants[outside]

    def plain(self) -> AbstractContextManager[object]:
        """Return a block whose new nodes are inside, at the top of the body."""
        return scopes.enter_scope(self.graph, lambda _: scopes.Scope(context=self))

    def _border(self, outside: Tensor) -> Tensor:
        """Return a node that reads the outside tensor; in a call it is replaced by the call's input."""
        self._at_border = True
        try:
            with self.plain():
                # An edge to the outside, not a placeholder: gradients and shape functions see through it.
                inside = make("Identity", outside, name="captured")
        finally:
            self._at_border = False
        return inside

    def _capture_control(self, op: Operation, reader: str) -> Operation:
        """Return the node that branches and loops of the body wait for instead of `op`.

        For a node outside it is a node at the start of the call.
        """
        if self.holds(op):
            return op
        self.waits[op] = None
        if self._called is None:
            with self.plain():
                self._called = make_op("NoOp", name="called")
        return self._called


class Function:
    """A function of a graph: a body, and which of its tensors are inputs and results.

    Attributes:
        name: Name that calls refer to, unique in the graph.
        captured: The outside tensors that follow the arguments in a call.
        arguments: The tensors inside for the arguments.
        inputs: `arguments`, followed by the tensors inside for the captured ones.
        outputs: Tensors inside.
        effects: Nodes inside that run whenever the function is called.
        gradient: Replacement for the gradient of the body, or None: a Function of the arguments and the gradients of
            the outputs, or a Python function of the node and those gradients.
    """

    def __init__(
        self,
        body: BodyContext,
        name: str,
        arguments: Sequence[Tensor],
        outputs: Sequence[Tensor],
        effects: Sequence[Operation],
        captured: Sequence[Tensor] | None = None,
        definition: FunctionDef | None = None,
    ) -> None:
        self.body = body
        self.graph = body.graph
        self.name = name
        self.arguments = list(arguments)
        self.captured = list(body.captures if captured is None else captured)
        self.inputs = [*arguments, *(body.captures[t] for t in self.captured)]
        self.outputs = list(outputs)
        self.effects = list(effects)
        self.gradient: Any = None
        self._definition = definition

    @property
    def stateful(self) -> bool:
        """True if a call has effects."""
        return bool(self.effects)

    @property
    def signature(self) -> str:
        """Name, inputs and outputs with their dtypes."""
        return self.definition.signature

    @property
    def definition(self) -> FunctionDef:
        """The function as plain data."""
        if self._definition is None:
            self._definition = self._define()
        return self._definition

    def _define(self) -> FunctionDef:
        # Arguments and captured tensors are inputs of the definition, not nodes.
        border = {t.op for t in (*self.arguments, *self.body.captures.values())}
        plain = graph_def_of([op for op in self.body.nodes.values() if op not in border], 0, False, {}).nodes
        nodes = tuple(replace(node, attrs=self._own_groups(node.attrs)) for node in plain)
        return FunctionDef(
            self.name,
            tuple(FunctionArg(t.op.name, t.dtype, t.dims) for t in self.inputs),
            tuple(FunctionArg(f"output_{i}", t.dtype, t.dims) for i, t in enumerate(self.outputs)),
            nodes,
            tuple(str(InputRef(t.op.name, t.value_index)) for t in self.outputs),
            tuple(op.name for op in self.effects),
            self.gradient.name if isinstance(self.gradient, Function) else "",
        )

    def _own_groups(self, attrs: Attrs) -> Attrs:
        """Return the attributes without colocation with nodes outside, which a definition cannot name."""
        kept = tuple(g for g in attrs.get("_class", ()) if g.removeprefix("loc:@") in self.body.nodes)
        rest = {key: value for key, value in attrs.items() if key != "_class"}
        return {**rest, "_class": kept} if kept else rest

    def __repr__(self) -> str:
        return f"<aioflow.Function {self.signature}>"


class StoredFunction:
    """A function of an imported library that has not been called yet."""

    def __init__(self, definition: FunctionDef) -> None:
        self.definition = definition
