"""`GraphDef`: a graph as plain data, which is saved, sent, compared and imported; and how one is made of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aioflow import protos
from aioflow.errors import DataLossError, FailedPreconditionError, OpError
from aioflow.graph import encoding
from aioflow.graph.calls import visible
from aioflow.graph.definitions import FunctionArg as FunctionArg
from aioflow.graph.definitions import FunctionDef as FunctionDef
from aioflow.graph.definitions import FunctionRef as FunctionRef
from aioflow.graph.definitions import InputRef as InputRef
from aioflow.graph.definitions import NodeDef as NodeDef
from aioflow.graph.definitions import TensorData as TensorData
from aioflow.graph.definitions import require
from aioflow.graph.documents import VERSION, from_document, to_document
from aioflow.graph.dtypes import DType
from aioflow.graph.foreign import refuse_foreign
from aioflow.graph.published.graphs import definition_of, message_of

if TYPE_CHECKING:
    from aioflow.graph.operation import Operation

__all__ = [
    "VERSION",
    "FunctionArg",
    "FunctionDef",
    "FunctionRef",
    "GraphDef",
    "InputRef",
    "NodeDef",
    "TensorData",
    "functions_of",
    "graph_def_of",
    "node_def_of",
]


@dataclass(frozen=True, slots=True)
class GraphDef:
    """A graph: its nodes in any order.

    Attributes:
        nodes: The nodes.
        version: The version of the ops that the nodes were written for.
        functions: What its nodes, and those of one another, call.
    """

    nodes: tuple[NodeDef, ...] = ()
    version: int = VERSION
    functions: tuple[FunctionDef, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.nodes, tuple), "tuple of nodes", self.nodes)
        for node in self.nodes:
            require(isinstance(node, NodeDef), "node", node)
        require(type(self.version) is int and 0 < self.version <= 2**31, "version", self.version)
        require(isinstance(self.functions, tuple), "tuple of functions", self.functions)
        names = [function.name for function in self.functions]
        require(len(set(names)) == len(names), "library: a function occurs twice", names)

    @property
    def node(self) -> tuple[NodeDef, ...]:
        """`nodes`, under the name that they have in TensorFlow."""
        return self.nodes

    # -- as TensorFlow publishes it ---------------------------------------------------------------------------------

    def SerializeToString(self) -> bytes:
        """The bytes of the published message, the same for equal definitions."""
        return protos.to_bytes(message_of(self.nodes, self.functions))

    def to_text(self) -> str:
        """The published message as text (.pbtxt)."""
        return protos.to_text(message_of(self.nodes, self.functions))

    @classmethod
    def FromString(cls, data: bytes) -> GraphDef:
        """Decode a definition, as bytes or as text, as TensorFlow or aioflow wrote it. The data may come from anywhere:
        nothing in it is ever executed.

        Raises:
            DataLossError: the data is truncated, altered, or something else.
            InvalidArgumentError: it is well formed, but a part of it is not valid, which the error names.
            DTypeError, UnimplementedError: something in it has no form here.
            ResourceExhaustedError: its constants are much larger than what is written.
        """
        if data.startswith(encoding.MAGIC):
            return cls.from_bytes(data)
        if data.lstrip()[:1] == b"{":
            return cls.from_json(data)
        refuse_foreign(data)
        graph = protos.read("GraphDef", data)
        if data and not graph.ListFields():  # bytes of other messages are fields that a GraphDef does not have
            raise DataLossError("not a graph definition", actual=data[:20])
        return cls.from_message(graph)

    @classmethod
    def from_message(cls, graph: protos.Message) -> GraphDef:
        """The definition that a message of TensorFlow's name holds, whoever made its class. Raises as `FromString`."""
        if not isinstance(graph, protos.message("GraphDef")):
            graph = protos.parse("GraphDef", graph.SerializeToString())
        nodes, functions = definition_of(graph)
        return cls(nodes, VERSION, functions)

    def ParseFromString(self, data: bytes) -> int:
        """Fill this definition, which must be empty, as `GraphDef()` is: the one thing that changes a definition.

        Returns:
            The number of bytes.

        Raises:
            FailedPreconditionError: it has nodes or functions.
            DataLossError, …: as `FromString`.
        """
        if self.nodes or self.functions:
            raise FailedPreconditionError(
                "a graph definition is filled once", expected="an empty one, as GraphDef() is", actual=len(self.nodes)
            )
        read = self.FromString(data)
        for name in ("nodes", "version", "functions"):
            object.__setattr__(self, name, getattr(read, name))
        return len(data)

    # -- as the first releases wrote it ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """A compact encoding with a checksum: see `aioflow.graph.encoding`."""
        return encoding.to_bytes(to_document(self.nodes, self.version, self.functions))

    def to_json(self) -> str:
        """Readable text; constants are base64."""
        return encoding.to_text(to_document(self.nodes, self.version, self.functions))

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphDef:
        """Decode what `to_bytes` wrote. The data may come from anywhere: nothing in it is ever executed.

        Raises:
            DataLossError: the data is truncated or altered.
            InvalidArgumentError: it is well formed, but not a graph definition.
            UnimplementedError: a later release is needed to read it.
        """
        return cls(*from_document(encoding.from_bytes(data)))

    @classmethod
    def from_json(cls, text: str | bytes) -> GraphDef:
        """Decode what `to_json` wrote. Raises as `from_bytes`."""
        try:
            return cls(*from_document(encoding.from_text(text)))
        except DataLossError as error:
            error.message = f"not a graph definition of aioflow: {error.message}"
            raise


# ── from nodes of a graph ────────────────────────────────────────────────────────────────────────────────────────────


def node_def_of(op: Operation, add_shapes: bool = False) -> NodeDef:
    """The node as plain data; with `add_shapes` its static shapes are in the attribute `_output_shapes`.

    Raises:
        InvalidArgumentError: an attribute has no plain form; the error names the node and the attribute.
    """
    attrs = _attrs_of(op.attrs)
    if op.gradient_function is not None:
        # A function does not travel. Without it the node must not fall back on the gradient of its op: that would be
        # another gradient without a word. Under this name there is none, until somebody registers one.
        attrs["_gradient_op_type"] = f"CustomGradient-{op.name}"
    if add_shapes and op.outputs:
        attrs["_output_shapes"] = tuple(t.dims for t in op.outputs)
    inputs = [str(InputRef(t.op.name, t.value_index)) for t in op.inputs]
    control = sorted(f"^{c.name}" for c in op.waits_for)  # they have no order, so that they are always in the same
    try:
        return NodeDef(op.name, op.type, (*inputs, *control), op.device, attrs)
    except OpError as error:
        error.source = op.source
        raise


def graph_def_of(
    operations: Sequence[Operation], start: int, add_shapes: bool, functions: Mapping[str, Any]
) -> GraphDef:
    """The definition of a graph: the user's own nodes from the `start`-th on, and the functions that they call."""
    shown, opened = visible(operations)
    later = set(operations[start:]) if start else None
    nodes = [
        _inlined(op, add_shapes) if op in opened else node_def_of(op, add_shapes)
        for op in shown
        if later is None or op in later
    ]
    return GraphDef(tuple(nodes), VERSION, functions_of(nodes, functions))


def _inlined(op: Operation, add_shapes: bool) -> NodeDef:
    """A call in whose place its expansion is: the same outputs under the same name."""
    plain = node_def_of(op, add_shapes)
    sources = op.expansion or ()
    inputs = [str(InputRef(t.op.name, t.value_index)) for t in sources]
    control = sorted(f"^{c.name}" for c in op.finish)
    attrs = {key: value for key, value in plain.attrs.items() if key.startswith("_")}
    if not sources:
        return NodeDef(op.name, "NoOp", tuple(control), op.device, attrs)
    attrs["T"] = tuple(t.dtype for t in sources)
    return NodeDef(op.name, "IdentityN", (*inputs, *control), op.device, attrs)


def functions_of(nodes: Iterable[NodeDef], functions: Mapping[str, Any]) -> tuple[FunctionDef, ...]:
    """The definitions of the functions that the nodes call, and of those that these call."""
    found: dict[str, FunctionDef] = {}
    waiting = [name for node in nodes for name in _called(node.attrs.values())]
    while waiting:
        name = waiting.pop()
        if name in found or name not in functions:
            continue
        definition: FunctionDef = functions[name].definition
        found[name] = definition
        waiting += [inner for node in definition.nodes for inner in _called(node.attrs.values())]
        waiting += [definition.gradient] if definition.gradient else []
    return tuple(found[name] for name in sorted(found))


def _called(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, FunctionRef):
            yield value.name
        elif isinstance(value, tuple):
            yield from _called(value)


def _attrs_of(attrs: Mapping[str, Any]) -> dict[str, Any]:
    dtype = attrs.get("dtype")
    quantized = dtype if isinstance(dtype, DType) and dtype.is_quantized else None
    return {key: _attr_of(value, quantized) for key, value in attrs.items()}


def _attr_of(value: Any, quantized: DType | None) -> Any:
    if isinstance(value, np.ndarray):
        return TensorData.of(value, quantized)
    if isinstance(value, list | tuple):
        return tuple(_attr_of(item, quantized) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    return value
