"""`Operation`: a node of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import aioflow
from aioflow.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, SourceLine, UnknownNameError
from aioflow.graph.default_session import session_for
from aioflow.graph.lookup_errors import of_another_graph
from aioflow.graph.opdef import OpDef
from aioflow.graph.shapes import TensorShape
from aioflow.graph.tensor import Tensor


class Operation:
    """A node of the graph.

    Attributes:
        name, type: The node's unique name and its op.
        inputs, waits_for, outputs: Tensors read, nodes waited for, tensors produced.
        attrs: Attribute values in canonical form.
        source: The user's line that created the node.
        device: The requested device, "" for any.
        gradient_function: The gradient of this node, if it differs from that of its op (`custom_gradient`).
        control_flow_context: The branch or loop that contains the outputs, None at the top level.
        expansion: For a function call, the tensors that its outputs stand for; None for every other node.
        finish: For a function call, the nodes that must have run before the call is complete.
        call: The call whose expansion contains this node, None for a node that the user created.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "call",
        "control_flow_context",
        "device",
        "expansion",
        "finish",
        "gradient_function",
        "graph",
        "id",
        "inputs",
        "name",
        "op_def",
        "outputs",
        "source",
        "type",
        "waits_for",
    )

    if TYPE_CHECKING:
        _fetched: None  # see Fetchable

    def __init__(
        self, graph: aioflow.Graph, op_def: OpDef, name: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any]
    ) -> None:
        self.graph = graph
        self.op_def = op_def
        self.type = op_def.name
        self.name = name
        self.inputs = inputs
        self.waits_for: tuple[Operation, ...] = ()
        self.attrs = attrs
        self.device = ""
        self.gradient_function: Callable[..., Any] | None = None
        self.control_flow_context: Any = None
        self.expansion: tuple[Tensor, ...] | None = None
        self.finish: tuple[Operation, ...] = ()
        self.call: Operation | None = None
        self.source: SourceLine | None = None
        self.outputs: list[Tensor] = []
        self.id = -1

    @property
    def control_inputs(self) -> list[Operation]:
        """The nodes that this node waits for without reading their outputs."""
        return list(self.waits_for)

    def values(self) -> tuple[Tensor, ...]:
        """Return the outputs."""
        return tuple(self.outputs)

    def get_attr(self, name: str) -> Any:
        """Return one attribute in TensorFlow's form: text as bytes, a list as a list, a shape as a `TensorShape`.

        Raises:
            UnknownNameError: the node has no such attribute.
        """
        if name not in self.attrs:
            raise UnknownNameError(f"no attribute {name!r}", expected=f"one of {sorted(self.attrs)}", actual=name).at(
                self.name, self.type, self.source
            )
        known = self.op_def.attrs.get(name)
        return _public(self.attrs[name], "" if known is None else known.kind)

    @property
    def colocated_with(self) -> tuple[str, ...]:
        """Names of the nodes that share a device with this node; its own name if it has no constraint."""
        found: tuple[str, ...] = self.attrs.get("_class", ())
        return tuple(g.removeprefix("loc:@") for g in found if g.startswith("loc:@")) or (self.name,)

    def colocation_groups(self) -> list[bytes]:
        """Return the colocation groups of this node, each b"loc:@" followed by the name of a node."""
        return [f"loc:@{name}".encode() for name in self.colocated_with]

    def add_control_input(self, op: Operation) -> None:
        """Make this node wait for `op` as well.

        Raises:
            InvalidArgumentError: `op` belongs to another graph.
            FailedPreconditionError: the graph is finalized, or this node is a function call.
        """
        if op.graph is not self.graph:
            raise of_another_graph(self.graph, op, f"node {op.name!r}")
        if op not in self.waits_for:
            self._check_not_expanded()
            self.graph.note_mutation()
            self.waits_for = (*self.waits_for, op)

    def update_input(self, index: int, tensor: Tensor) -> None:
        """Replace input `index` by `tensor`. A loop's Merge gets its back edge this way.

        Raises:
            InvalidArgumentError: there is no such input, or the tensor belongs to another graph.
            DTypeError: the tensor has a different dtype.
            FailedPreconditionError: the graph is finalized, or this node is a function call.
        """
        if not 0 <= index < len(self.inputs):
            wanted = f"an index below {len(self.inputs)}"
            raise InvalidArgumentError("no such input", expected=wanted, actual=index).at(
                self.name, self.type, self.source
            )
        if tensor.op.graph is not self.graph:
            raise of_another_graph(self.graph, tensor.op, f"tensor {tensor.name!r}")
        if tensor.dtype is not self.inputs[index].dtype:
            raise DTypeError(
                f"input {index} has the wrong dtype", expected=self.inputs[index].dtype.name, actual=repr(tensor)
            ).at(self.name, self.type, self.source)
        self._check_not_expanded()
        self.graph.note_mutation()
        self.inputs = (*self.inputs[:index], tensor, *self.inputs[index + 1 :])

    def _check_not_expanded(self) -> None:
        """Raise FailedPreconditionError if this node is a function call."""
        # The expansion was built from the inputs that the call had at that time.
        if self.expansion is not None:
            raise FailedPreconditionError(
                "a call of a function keeps its inputs: put it into control_dependencies when it is made"
            ).at(self.name, self.type, self.source)

    async def run(self, feed_dict: Mapping[Any, Any] | None = None, session: aioflow.Session | None = None) -> None:
        """Run this node and the nodes that it depends on in `session`, or in the default session.

        Raises:
            NoSessionError: `session` is None and there is no default session.
        """
        await session_for(session, self.graph).run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<aioflow.Operation {self.name!r} type={self.type}>"


def _public(value: Any, kind: str) -> Any:
    """Return the public form of an attribute's value; internal values are hashable."""
    if kind == "shape":
        return TensorShape(value)
    if isinstance(value, tuple):
        return [_public(item, kind.removeprefix("list(").removesuffix(")")) for item in value]
    return value.encode() if isinstance(value, str) else value
