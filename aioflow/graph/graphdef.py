"""`GraphDef`: a graph as plain data, to save, send, compare and import; and its creation from a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np

from aioflow.arguments import check_kind
from aioflow.concurrency.forking import not_forked
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.graph.calls import visible
from aioflow.graph.definitions import FunctionArg as FunctionArg
from aioflow.graph.definitions import FunctionDef as FunctionDef
from aioflow.graph.definitions import FunctionRef as FunctionRef
from aioflow.graph.definitions import InputRef as InputRef
from aioflow.graph.definitions import NodeDef as NodeDef
from aioflow.graph.definitions import TensorData as TensorData
from aioflow.graph.definitions import require
from aioflow.graph.dtypes import DType
from aioflow.graph.views import NodeView

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
    "plain_attrs",
]

VERSION: Final = 1  # of the ops that definitions are written for


def _codec() -> Any:
    """Return the module that reads and writes definitions. It imports this one, and is loaded with the first use."""
    # In a child forked during the import, the module's lock would stay locked.
    with not_forked():
        return import_module("aioflow.formats.graphs.codec")


def _check_bytes(data: object) -> None:
    check_kind(data, (bytes, bytearray, memoryview), "a graph definition", "bytes")


@dataclass(frozen=True, slots=True)
class GraphDef:
    """A graph, with its nodes in any order.

    Attributes:
        nodes: The nodes.
        version: The version of the ops that the nodes were written for.
        functions: The functions that the nodes, and these functions, call.

    Raises:
        InvalidArgumentError: a field is malformed, or a function occurs twice.
    """

    nodes: tuple[NodeDef, ...] = ()
    version: int = VERSION
    functions: tuple[FunctionDef, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.nodes, tuple), "tuple of nodes", self.nodes)
        for node in self.nodes:
            require(isinstance(node, NodeDef), "node", node)
        # `type(…) is int` excludes bools, which are ints as well.
        require(type(self.version) is int and 0 < self.version <= 2**31, "version", self.version)
        require(isinstance(self.functions, tuple), "tuple of functions", self.functions)
        names = [function.name for function in self.functions]
        require(len(set(names)) == len(names), "library: a function occurs twice", names)

    @property
    def node(self) -> tuple[NodeDef, ...]:
        """The same as `nodes`, under TensorFlow's name."""
        return self.nodes

    # -- the format that TensorFlow publishes --------------------------------------------------------------------------

    def SerializeToString(self) -> bytes:
        """Return the bytes of the published message, the same for equal definitions."""
        data: bytes = _codec().to_published(self)
        return data

    def to_text(self) -> str:
        """Return the published message as text (.pbtxt)."""
        text: str = _codec().to_published_text(self)
        return text

    @classmethod
    def FromString(cls, data: bytes | bytearray | memoryview) -> GraphDef:
        """Decode a definition in binary or text form, written by TensorFlow or aioflow.

        The data may be untrusted: nothing in it is ever executed.

        Raises:
            DataLossError: the data is truncated, altered, or of another kind.
            DTypeError: it is not bytes.
            InvalidArgumentError: the data is well formed, but a part of it is invalid, which the error names; or it is
                a MetaGraphDef or a SavedModel, whose reader the error names.
            DTypeError, UnimplementedError: aioflow has no equivalent for a part of it.
            ResourceExhaustedError: its constants are much larger than the data.
        """
        _check_bytes(data)
        return cls(*_codec().read(bytes(data)))

    @classmethod
    def from_message(cls, graph: Any) -> GraphDef:
        """Return the definition in a TensorFlow message, from any library's message class. Raises like `FromString`."""
        return cls(*_codec().from_message(graph))

    def ParseFromString(self, data: bytes) -> int:
        """Fill this definition, which must be empty like `GraphDef()`. Only this method changes a definition.

        Returns:
            The number of bytes.

        Raises:
            FailedPreconditionError: it has nodes or functions already.
            DataLossError, …: see `FromString`.
        """
        if self.nodes or self.functions:
            raise FailedPreconditionError(
                "a graph definition is filled once", expected="an empty one, as GraphDef() is", actual=len(self.nodes)
            )
        read = self.FromString(data)
        for name in ("nodes", "version", "functions"):
            # The class is frozen, so its own `__setattr__` raises.
            object.__setattr__(self, name, getattr(read, name))
        return len(data)

    # -- the format of the first releases ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return a compact encoding with a checksum: see `aioflow.formats.graphs.documents`."""
        data: bytes = _codec().to_bytes(self)
        return data

    def to_json(self) -> str:
        """Return readable JSON text, with constants in base64."""
        text: str = _codec().to_json(self)
        return text

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphDef:
        """Decode the output of `to_bytes`. The data may be untrusted: nothing in it is ever executed.

        Raises:
            DataLossError: the data is truncated or altered.
            InvalidArgumentError: the data is well formed, but not a graph definition.
            UnimplementedError: reading it requires a later release.
        """
        _check_bytes(data)
        return cls(*_codec().from_bytes(data))

    @classmethod
    def from_json(cls, text: str | bytes) -> GraphDef:
        """Decode the output of `to_json`. Raises like `from_bytes`."""
        return cls(*_codec().from_json(text))


# ── from nodes of a graph ─────────────────────────────────────────────────────────────────────────────────────────────


def node_def_of(op: NodeView, add_shapes: bool = False) -> NodeDef:
    """Return the node as plain data; with `add_shapes`, its static shapes are in the attribute `_output_shapes`.

    Raises:
        InvalidArgumentError: an attribute has no plain form; the error names the node and the attribute.
    """
    attrs = plain_attrs(op.attrs)
    if op.gradient_function is not None:
        # A Python function cannot be serialized. Without it the node must not silently fall back on its op's gradient,
        # which would be another one. This name has no gradient until a program registers one.
        attrs["_gradient_op_type"] = f"CustomGradient-{op.name}"
    if add_shapes and op.outputs:
        attrs["_output_shapes"] = tuple(t.dims for t in op.outputs)
    inputs = [str(InputRef(t.op.name, t.value_index)) for t in op.inputs]
    # Control inputs have no order; sorting makes equal definitions identical.
    control = sorted(f"^{c.name}" for c in op.waits_for)
    try:
        return NodeDef(op.name, op.type, (*inputs, *control), op.device, attrs)
    except OpError as error:
        error.source = op.source
        raise


def graph_def_of(
    operations: Sequence[NodeView], start: int, add_shapes: bool, functions: Mapping[str, Any]
) -> GraphDef:
    """Return the definition of a graph: the user's nodes from the `start`-th on, and the functions that they call."""
    shown, opened = visible(operations)
    later = set(operations[start:]) if start else None
    nodes = [
        _inlined(op, add_shapes) if op in opened else node_def_of(op, add_shapes)
        for op in shown
        if later is None or op in later
    ]
    return GraphDef(tuple(nodes), VERSION, functions_of(nodes, functions))


def _inlined(op: NodeView, add_shapes: bool) -> NodeDef:
    """Return the node that replaces an expanded call, with the same outputs under the same name."""
    plain = node_def_of(op, add_shapes)
    sources = op.expansion or ()
    inputs = [str(InputRef(t.op.name, t.value_index)) for t in sources]
    control = sorted(f"^{c.name}" for c in op.finish)
    # Only private attributes apply to the replacement: the others belong to the call's op.
    attrs = {key: value for key, value in plain.attrs.items() if key.startswith("_")}
    if not sources:
        return NodeDef(op.name, "NoOp", tuple(control), op.device, attrs)
    attrs["T"] = tuple(t.dtype for t in sources)
    return NodeDef(op.name, "IdentityN", (*inputs, *control), op.device, attrs)


def functions_of(nodes: Iterable[NodeDef], functions: Mapping[str, Any]) -> tuple[FunctionDef, ...]:
    """Return the definitions of the functions that the nodes call, directly or through other functions."""
    found: dict[str, FunctionDef] = {}
    waiting = [name for node in nodes for name in _called(node.attrs.values())]
    while waiting:
        name = waiting.pop()
        # Functions may call themselves or each other, so a seen name is not followed again.
        if name in found or name not in functions:
            continue
        definition: FunctionDef = functions[name].definition
        found[name] = definition
        waiting += [inner for node in definition.nodes for inner in _called(node.attrs.values())]
        # The gradient is called by no node, but `gradients` in the importing program looks it up.
        waiting += [definition.gradient] if definition.gradient else []
    # Sorted by name, so that equal graphs give equal bytes.
    return tuple(found[name] for name in sorted(found))


def _called(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, FunctionRef):
            yield value.name
        elif isinstance(value, tuple):
            yield from _called(value)


def plain_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node as plain data: arrays as `TensorData`, lists as tuples."""
    # The array of a quantized constant holds plain integers; only the attribute `dtype` states its type.
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
