"""A graph as plain data: what is saved, sent, compared and imported.

`NodeDef` and `GraphDef` are frozen, and check their fields when they are made, so that a definition decoded from
untrusted bytes obeys the same rules as one made by hand. Whether nodes fit together and fit their ops is for
`import_graph_def` to say. Inputs are written as TensorFlow writes them: "node", "node:1", and "^node" for a control
input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.checks.brief import brief
from aioflow.checks.documents import document
from aioflow.checks.versions import readable_version
from aioflow.errors import DataLossError, DTypeError, InvalidArgumentError, OpError
from aioflow.graph import encoding
from aioflow.graph.arrays import Array
from aioflow.graph.calls import visible
from aioflow.graph.dtypes import ALL, DType, as_dtype, string
from aioflow.graph.foreign import refuse_foreign
from aioflow.graph.names import NAME, NODE_NAME
from aioflow.graph.shapes import Dims

if TYPE_CHECKING:
    from aioflow.graph.operation import Operation

__all__ = [
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

AttrValue: TypeAlias = "bool | int | float | str | DType | TensorData | FunctionRef | tuple[AttrValue, ...] | None"

VERSION: Final = 1
_OP: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.>]*")
_FUNCTION: Final = re.compile(r"[\x21-\x7e]+")  # Python puts "<lambda>" into names
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_ATTR: Final = re.compile(r"\w+", re.ASCII)
_DEVICE: Final = re.compile(r"[A-Za-z0-9_.:/@*-]*")
_INPUT: Final = re.compile(rf"(\^?)({NAME})(?::([0-9]{{1,9}}))?")
_MAX_NAME: Final = 4096
_MAX_RANK: Final = 64  # what NumPy can hold
_MAX_BYTES: Final = 2**63 - 1
_MAX_DEPTH: Final = 4  # of attribute values: a list of shapes has depth 2
_INT64: Final = range(-(2**63), 2**63)
_PROTOBUF: Final = ("ParseFromString", "SerializeToString", "MergeFromString", "FromString", "CopyFrom")
_DTYPES: Final = {dtype.name: dtype for dtype in ALL}


@dataclass(frozen=True, slots=True)
class TensorData:
    """A constant as plain data: little-endian bytes in C order, or for strings one `bytes` an element.

    Raises:
        DTypeError: resources, variants and quantized types have no such form.
        InvalidArgumentError: the shape is malformed, or does not fit the data.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes | tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not (self.dtype is string or self.dtype.is_plain):
            raise DTypeError("not a dtype of constants", expected="a number, bool or string", actual=self.dtype)
        if len(self.shape) > _MAX_RANK or not all(type(d) is int and d >= 0 for d in self.shape):
            raise InvalidArgumentError("not a shape", expected=f"at most {_MAX_RANK} sizes >= 0", actual=self.shape)
        # NumPy multiplies the sizes other than 0 too, and refuses what does not fit an index
        if math.prod(d for d in self.shape if d) * self.dtype.size > _MAX_BYTES:
            raise InvalidArgumentError("the size overflows", expected=f"at most {_MAX_BYTES} bytes", actual=self.shape)
        count = math.prod(self.shape)
        wanted = count if self.dtype is string else count * self.dtype.size
        if not _holds(self.data, self.dtype) or len(self.data) != wanted:
            given: Any = self.data  # whatever it is
            length = f"{len(given)} in " if isinstance(given, bytes | tuple) else ""
            raise InvalidArgumentError(
                f"the data does not fit a tensor of {self.dtype.name} with shape {list(self.shape)}",
                expected=f"{wanted} {'strings' if self.dtype is string else 'bytes'}",
                actual=f"{length}{type(given).__name__}",
            )
        if self.dtype.is_bool and isinstance(self.data, bytes) and self.data.strip(b"\x00\x01"):
            raise InvalidArgumentError("a bool is neither 0 nor 1", expected="bytes 0 and 1", actual="another byte")

    @classmethod
    def of(cls, array: Array) -> TensorData:
        """The data of an array."""
        dtype = as_dtype(array.dtype)
        if dtype is string:
            return cls(dtype, array.shape, tuple(array.reshape(-1).tolist()))
        return cls(dtype, array.shape, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())

    def to_array(self) -> Array:
        """A read-only array, over the same memory where it is not of strings."""
        if isinstance(self.data, bytes):
            stored = np.frombuffer(self.data, self.dtype.np_dtype.newbyteorder("<")).reshape(self.shape)
            return stored.astype(self.dtype.np_dtype, copy=False)
        array = np.empty(len(self.data), dtype=object)
        array[:] = self.data
        array = array.reshape(self.shape)
        array.flags.writeable = False
        return array


def _holds(data: Any, dtype: DType) -> bool:
    if dtype is string:
        return isinstance(data, tuple) and all(isinstance(item, bytes) for item in data)
    return isinstance(data, bytes)


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """The value of an attribute that names a function. Raises InvalidArgumentError."""

    name: str

    def __post_init__(self) -> None:
        _require_text(self.name, _FUNCTION, "function name")


class InputRef(NamedTuple):
    """An input of a NodeDef, parsed: output `port` of `node`, or `port` -1 for a control input."""

    node: str
    port: int

    @classmethod
    def parse(cls, text: Any) -> InputRef:
        """From "node", "node:1" or "^node". Raises InvalidArgumentError."""
        match = _INPUT.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[1] and match[3]):
            raise InvalidArgumentError("not an input", expected="'node', 'node:1' or '^node'", actual=repr(text))
        return cls(match[2], -1 if match[1] else int(match[3] or 0))

    def __str__(self) -> str:
        return f"^{self.node}" if self.port < 0 else self.node if self.port == 0 else f"{self.node}:{self.port}"


@dataclass(frozen=True, slots=True)
class NodeDef:
    """One node.

    Attributes:
        name, op: The node's name and the name of its op.
        inputs: Data inputs, then control inputs.
        device: The requested device, "" for any.
        attrs: Attributes by name; a dtype is a `DType`, a shape a tuple with None for each unknown size (or None), a
            constant `TensorData`, a list a tuple.

    Raises:
        InvalidArgumentError: a field is malformed, or an attribute is not plain data; the error names the node.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    device: str = ""
    attrs: Mapping[str, AttrValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _require_text(self.name, NODE_NAME, "node name")
        _require_text(self.op, _OP, "op name")
        try:
            self._check_fields()
        except OpError as error:
            raise error.at(self.name, self.op, None) from error.__cause__

    def _check_fields(self) -> None:
        _require(isinstance(self.inputs, tuple), "tuple of inputs", self.inputs)
        control = False
        for text in self.inputs:
            ref = InputRef.parse(text)
            if control and ref.port >= 0:
                raise InvalidArgumentError("a data input after a control input", expected="it before", actual=text)
            control = ref.port < 0
        _require_text(self.device, _DEVICE, "device")
        _require(isinstance(self.attrs, Mapping), "mapping of attributes", self.attrs)
        for key, value in self.attrs.items():
            _require_text(key, _ATTR, "attribute name")
            if not _is_plain(value):
                raise InvalidArgumentError(
                    f"attribute {key!r} is not plain data",
                    expected="numbers, text, dtypes, shapes, TensorData, or tuples of those",
                    actual=brief(value),
                )

    @property
    def input(self) -> tuple[str, ...]:
        """`inputs`, under the name that it has in TensorFlow."""
        return self.inputs

    def refs(self) -> list[InputRef]:
        """The inputs, parsed."""
        return [InputRef.parse(text) for text in self.inputs]


class FunctionArg(NamedTuple):
    """One argument or result of a function: its name, dtype, and what is known of its shape."""

    name: str
    dtype: DType
    dims: Dims = None


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """A function: nodes that read its arguments under their names.

    Attributes:
        name: What calls name it by.
        inputs, outputs: Arguments and results.
        nodes: The body, in any order.
        returns: For each output what it is: "node:1", or the name of an argument.
        control_returns: Names of the nodes that run in any case.
        gradient: Name of the function that computes its gradient from arguments and gradients of results, or "".

    Raises:
        InvalidArgumentError: a field is malformed.
    """

    name: str
    inputs: tuple[FunctionArg, ...] = ()
    outputs: tuple[FunctionArg, ...] = ()
    nodes: tuple[NodeDef, ...] = ()
    returns: tuple[str, ...] = ()
    control_returns: tuple[str, ...] = ()
    gradient: str = ""

    def __post_init__(self) -> None:
        _require_text(self.name, _FUNCTION, "function name")
        for arg in (*self.inputs, *self.outputs):
            _require(isinstance(arg.dtype, DType), "argument", arg)
            _require_text(arg.name, _ARGUMENT, "argument name")
            _require(_is_plain(arg.dims), "shape", arg.dims)
        for node in self.nodes:
            _require(isinstance(node, NodeDef), "node", node)
        if len(self.returns) != len(self.outputs):
            raise InvalidArgumentError(
                f"function {self.name!r} does not return its outputs",
                expected=f"{len(self.outputs)} results",
                actual=len(self.returns),
            )
        for text in (*self.returns, *self.control_returns):
            InputRef.parse(text)
        _require(isinstance(self.gradient, str), "name of a gradient function", self.gradient)

    @property
    def signature(self) -> str:
        """Name, arguments and results as text."""
        parts = [", ".join(f"{a.name}: {a.dtype.name}" for a in args) for args in (self.inputs, self.outputs)]
        return f"{self.name}({parts[0]}) -> ({parts[1]})"


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
        _require(isinstance(self.nodes, tuple), "tuple of nodes", self.nodes)
        for node in self.nodes:
            _require(isinstance(node, NodeDef), "node", node)
        _require(type(self.version) is int and 0 < self.version <= 2**31, "version", self.version)
        _require(isinstance(self.functions, tuple), "tuple of functions", self.functions)
        names = [function.name for function in self.functions]
        _require(len(set(names)) == len(names), "library: a function occurs twice", names)

    @property
    def node(self) -> tuple[NodeDef, ...]:
        """`nodes`, under the name that they have in TensorFlow."""
        return self.nodes

    def to_bytes(self) -> bytes:
        """A compact encoding with a checksum: see `aioflow.graph.encoding`."""
        return encoding.to_bytes(_document(self))

    def to_json(self) -> str:
        """Readable text; constants are base64."""
        return encoding.to_text(_document(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphDef:
        """Decode what `to_bytes` wrote. The data may come from anywhere: nothing in it is ever executed.

        Raises:
            DataLossError: the data is truncated or altered.
            InvalidArgumentError: it is well formed, but not a graph definition, or one of TensorFlow's.
            UnimplementedError: a later release is needed to read it.
        """
        refuse_foreign(data)
        return _from_document(encoding.from_bytes(data))

    @classmethod
    def from_json(cls, text: str | bytes) -> GraphDef:
        """Decode what `to_json` wrote. Raises as `from_bytes`."""
        refuse_foreign(text)
        try:
            return _from_document(encoding.from_text(text))
        except DataLossError as error:
            error.message = f"not a graph definition of aioflow: {error.message}"
            raise

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name in _PROTOBUF:
                raise AttributeError(
                    f"a GraphDef of aioflow is not a protocol buffer and has no {name!r}, but to_bytes and from_bytes; "
                    f"{document('compatibility.md')} says how to bring a graph of TensorFlow over"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _require(condition: bool, what: str, actual: Any) -> None:
    if not condition:
        raise InvalidArgumentError(f"not a valid {what}", actual=brief(actual))


def _require_text(value: Any, pattern: re.Pattern[str], what: str) -> None:
    _require(isinstance(value, str) and len(value) <= _MAX_NAME and pattern.fullmatch(value) is not None, what, value)


def _is_plain(value: Any, depth: int = _MAX_DEPTH) -> bool:
    if type(value) is int:
        return value in _INT64
    if type(value) is str:
        return len(value) <= 1 << 20 and _is_unicode(value)
    if type(value) is tuple:
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool | float | DType | TensorData | FunctionRef)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ── from nodes of a graph ────────────────────────────────────────────────────────────────────────────────────────────


def node_def_of(op: Operation, add_shapes: bool = False) -> NodeDef:
    """The node as plain data; with `add_shapes` its static shapes are in the attribute `_output_shapes`.

    Raises:
        InvalidArgumentError: an attribute has no plain form; the error names the node and the attribute.
    """
    attrs = {key: _attr_of(value) for key, value in op.attrs.items()}
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


def _attr_of(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return TensorData.of(value)
    if isinstance(value, list | tuple):
        return tuple(_attr_of(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    return value


# ── to and from documents of the encoding ────────────────────────────────────────────────────────────────────────────


def _document(graph_def: GraphDef) -> dict[str, Any]:
    document = {"version": graph_def.version, "nodes": _node_documents(graph_def.nodes)}
    if graph_def.functions:
        document["functions"] = [_function_document(function) for function in graph_def.functions]
    return document


def _node_documents(nodes: Sequence[NodeDef]) -> list[Any]:
    return [
        {
            "name": node.name,
            "op": node.op,
            "inputs": list(node.inputs),
            "device": node.device,
            "attrs": {key: _plain(value) for key, value in node.attrs.items()},
        }
        for node in nodes
    ]


def _function_document(function: FunctionDef) -> dict[str, Any]:
    inputs, outputs = (
        [[a.name, a.dtype.name, _plain(a.dims)] for a in args] for args in (function.inputs, function.outputs)
    )
    return {
        "name": function.name,
        "inputs": inputs,
        "outputs": outputs,
        "nodes": _node_documents(function.nodes),
        "returns": list(function.returns),
        "control_returns": list(function.control_returns),
        "gradient": function.gradient,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return {"$dtype": value.name}
    if isinstance(value, FunctionRef):
        return {"$function": value.name}
    if isinstance(value, TensorData):
        data = value.data if isinstance(value.data, bytes) else list(value.data)
        return {"$tensor": {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _from_document(document: Any) -> GraphDef:
    fields = _known_fields(document, "graph definition", "version", "nodes")
    version = fields["version"]
    if type(version) is int and version > 0:  # otherwise the definition refuses it
        version = readable_version("the graph definition", fields, range(1, VERSION + 1))
    functions = tuple(_function(item) for item in _list(fields.get("functions", []), "list of functions"))
    return GraphDef(_nodes(fields["nodes"]), version, functions)


def _nodes(items: Any) -> tuple[NodeDef, ...]:
    return tuple(_node(item) for item in _list(items, "list of nodes"))


def _function(item: Any) -> FunctionDef:
    keys = ("name", "inputs", "outputs", "nodes", "returns", "control_returns", "gradient")
    fields = _known_fields(item, "function", *keys)
    inputs, outputs = (
        tuple(_argument(arg) for arg in _list(fields[k], "list of arguments")) for k in ("inputs", "outputs")
    )
    returns, control = (tuple(_list(fields[k], "list of names")) for k in ("returns", "control_returns"))
    return FunctionDef(fields["name"], inputs, outputs, _nodes(fields["nodes"]), returns, control, fields["gradient"])


def _argument(item: Any) -> FunctionArg:
    _require(isinstance(item, list) and len(item) == 3, "argument", item)
    return FunctionArg(item[0], _dtype(item[1]), _value(item[2], 1))


def _node(item: Any) -> NodeDef:
    fields = _known_fields(item, "node", "name", "op", "inputs", "device", "attrs")
    attrs = fields["attrs"]
    _require(isinstance(attrs, dict), "mapping of attributes", attrs)
    try:
        values = {key: _value(value, _MAX_DEPTH) for key, value in attrs.items()}
    except OpError as error:
        raise error.at(brief(fields["name"]), brief(fields["op"]), None) from error.__cause__
    return NodeDef(
        fields["name"], fields["op"], tuple(_list(fields["inputs"], "list of inputs")), fields["device"], values
    )


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        _require(depth > 0, "attribute value", "nested too deeply")
        return tuple(_value(item, depth - 1) for item in value)
    if not isinstance(value, dict):
        return value  # NodeDef checks it
    if "$dtype" in value:
        return _dtype(_fields(value, "dtype", "$dtype")["$dtype"])
    if "$function" in value:
        return FunctionRef(_fields(value, "function", "$function")["$function"])
    inner = _fields(_fields(value, "attribute value", "$tensor")["$tensor"], "tensor", "dtype", "shape", "data")
    data = inner["data"]
    return TensorData(
        _dtype(inner["dtype"]),
        tuple(_list(inner["shape"], "shape")),
        tuple(data) if isinstance(data, list) else data,
    )


def _dtype(name: Any) -> DType:
    found = _DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgumentError("no such dtype", expected=f"one of {sorted(_DTYPES)}", actual=brief(name))
    return found


def _known_fields(value: Any, what: str, *names: str) -> dict[str, Any]:
    """A map with these keys at least. Others are of later releases, and of no importance: see `checks/versions.py`."""
    known = {key: value[key] for key in names if key in value} if isinstance(value, dict) else value
    _fields(known, what, *names)
    found: dict[str, Any] = value
    return found


def _fields(value: Any, what: str, *names: str) -> dict[str, Any]:
    """A map with exactly these keys."""
    if not isinstance(value, dict) or set(value) != set(names):
        actual = sorted(value, key=str)[:8] if isinstance(value, dict) else type(value).__name__
        raise InvalidArgumentError(f"not a {what}", expected=f"a map with {', '.join(names)}", actual=actual)
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    _require(isinstance(value, list), what, value)
    found: list[Any] = value
    return found
