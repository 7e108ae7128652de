"""Encoding of parts of plans as messages: nodes as small msgpack records in one buffer, large constants beside it.

A received part is untrusted data until it has been checked as a whole: known ops, attributes of the kinds that their
ops declare, existing edges, matching dtypes. Each record is bounded by itself, so that no piece of the buffer can
allocate much more memory than its own size.

    texts     ops, dtypes, devices, attribute names and file names, which records refer to by number
    subgraph  device, feeds, fetches, targets, number of nodes
    node      name, op, inputs (node, port, …), control, attributes (name, value, …), outputs (dtype, dims, …),
              device, source (file, line, function) or nil

A body (`Node.body`) is part of its node's record: feeds, fetches, targets, and the records of its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

import msgpack
import numpy as np

from aioflow.arguments import brief
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Part
from aioflow.compiler.verify import verify
from aioflow.errors import (
    DataLossError,
    InternalError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SourceLine,
    UnimplementedError,
)
from aioflow.graph.boundary import ARG, BOUNDARY, RETVAL
from aioflow.graph.dtypes import ALL, DType
from aioflow.graph.graphdef import FunctionRef
from aioflow.graph.opdef import OPS, traits_of
from aioflow.memory.values import Array
from aioflow.net.framing import Document
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.tensor_format import Destination, parse_spec, to_wire
from aioflow.ops.function.python_functions import is_proof, proof

PartMessage: TypeAlias = tuple[dict[str, Any], list[Array]]

Unpacked: TypeAlias = Any  # what msgpack returns: nothing is known about it until it is checked

_VERSION: Final = 1
_MOST_ITEMS: Final = 1 << 16  # per list in a record
_MOST_DEPTH: Final = 4  # of nesting of an attribute's value; a list of shapes has depth 2
_MOST_BODIES: Final = 8  # nested in one another
_MOST_FEEDS: Final = 1 << 20
_INLINE_CONSTANT: Final = 4096  # bytes; larger constants are sent as separate tensors
_NAME: Final = re.compile(r"[\x21-\x7e]{1,4096}")
_DTYPES: Final = {dtype.name: dtype for dtype in ALL}

# Type tags, which precede the content of values that msgpack cannot represent.
_DTYPE, _TUPLE, _LIST, _FUNCTION, _ARRAY, _SCALAR, _TENSOR, _BODY = range(8)


# ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_part(part: Part, limits: Limits = DEFAULT_LIMITS, home: bool = False) -> PartMessage:
    """Return the header and tensors of a message that `decode_part` turns back into the part.

    Args:
        part: The part to encode.
        limits: Bounds on the size of the message.
        home: Whether the part is decoded in this process: only then may its nodes call Python functions.

    Raises:
        InvalidArgumentError: an attribute is not plain data; the error names the node.
        ResourceExhaustedError: the part is larger than `Limits.plan_bytes`, or one of its nodes is too large.
    """
    writer = _Writer(limits)
    # First, because encoding the records collects the texts that precede them.
    records = [record for device, graph in part.subgraphs.items() for record in writer.subgraph(device, graph)]
    # The texts come first, so that the reader can resolve their numbers in the records.
    data = b"".join([_packed(_bounded(list(writer.texts), "texts of a plan")), *records])
    if len(data) > limits.plan_bytes:
        raise ResourceExhaustedError("bytes of a plan", expected=f"at most {limits.plan_bytes}", actual=len(data))
    header: dict[str, Any] = {"plan": _VERSION, "task": part.task, "subgraphs": len(part.subgraphs)}
    if home:
        header["proof"] = proof()
    return header, [np.frombuffer(data, np.uint8), *writer.tensors]


def _bounded(items: list[Any], what: str) -> list[Any]:
    if len(items) > _MOST_ITEMS:
        raise ResourceExhaustedError(what, expected=f"at most {_MOST_ITEMS}", actual=len(items))
    return items


def _packed(value: object) -> bytes:
    try:
        packed: bytes = msgpack.packb(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"a value cannot be encoded: {error}") from error
    return packed


class _Writer:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.texts: dict[str, int] = {}
        self.tensors: list[Array] = []
        self._tensor_of: dict[int, int] = {}  # by `id`: a constant shared by several devices is sent once

    def subgraph(self, device: str, graph: ClientGraph) -> Iterator[bytes]:
        targets = _bounded(list(graph.targets), "targets of a plan")
        yield _packed([self._text(device), graph.feeds, graph.fetches, targets, len(graph.nodes)])
        for node, record in self._records(graph):
            try:
                yield _packed(record)
            except OpError as error:
                raise error.at(node.name, node.op, node.source) from error.__cause__

    def _records(self, graph: ClientGraph) -> Iterator[tuple[Node, list[object]]]:
        numbers = {name: number for number, name in enumerate(graph.nodes)}
        for node in graph.nodes.values():
            try:
                yield node, self._node(node, numbers)
            except OpError as error:
                raise error.at(node.name, node.op, node.source) from error.__cause__

    def _node(self, node: Node, numbers: Mapping[str, int]) -> list[object]:
        inputs = [number for edge in node.inputs for number in (numbers[edge.node], edge.port)]
        control = [numbers[name] for name in node.control]
        attrs = [x for key, value in node.attrs.items() for x in (self._text(key), self._value(value, _MOST_DEPTH))]
        outputs = [x for spec in node.outputs for x in (self._text(spec.dtype.name), spec.dims)]
        for items in (inputs, control, attrs, outputs):
            _bounded(items, "numbers in one list of a node")
        source = node.source and [
            self._text(node.source.filename),
            node.source.lineno,
            self._text(node.source.function),
        ]
        device = self._text(node.device)
        return [node.name, self._text(node.op), inputs, control, attrs, outputs, device, source]

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _value(self, value: object, depth: int) -> object:
        # By exact type: np.float64 is a subclass of float, and has to arrive as a NumPy scalar.
        if value is None or type(value) in _PLAIN:
            return value
        if isinstance(value, tuple | list) and depth > 0:
            items = [self._value(item, depth - 1) for item in value]
            return _bounded([_TUPLE if isinstance(value, tuple) else _LIST, *items], "items of an attribute")
        if isinstance(value, DType):
            return [_DTYPE, self._text(value.name)]
        if isinstance(value, FunctionRef):
            return [_FUNCTION, value.name]
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, ClientGraph):
            records = [record for _, record in self._records(value)]
            targets = _bounded(list(value.targets), "targets of a function")
            return [_BODY, value.feeds, value.fetches, targets, _bounded(records, "nodes of a function")]
        raise InvalidArgumentError(
            "an attribute is not plain data and cannot be sent to another process",
            expected="numbers, text, dtypes, shapes, arrays, or lists of those",
            actual=brief(value),
        )

    def _array(self, value: Array | np.generic) -> list[object]:
        array = np.asarray(value)
        if array.nbytes > _INLINE_CONSTANT and not array.dtype.hasobject:
            # The graph keeps the value alive, so its id is not reused meanwhile.
            number = self._tensor_of.setdefault(id(value), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(array)
            return [_TENSOR, number]
        spec, data = to_wire(array, self._limits)
        if len(data) > self._limits.plan_bytes:
            raise ResourceExhaustedError("a constant of strings", expected=self._limits.plan_bytes, actual=len(data))
        # A NumPy scalar arrives as one, not as an array of rank 0.
        return [_SCALAR if isinstance(value, np.generic) else _ARRAY, *spec.document(), bytes(data)]


_PLAIN: Final = frozenset({bool, int, float, str, bytes})


# ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_part(header: Document, tensors: Sequence[Array], limits: Limits = DEFAULT_LIMITS) -> Part:
    """Decode and check a part.

    Raises:
        DataLossError: the message is malformed.
        InvalidArgumentError: the message is well formed, but cannot be run: an unknown op, an edge to a missing node,
            an attribute of the wrong kind. The error names the node.
        PermissionDeniedError: a node calls a Python function, and the part does not come from this process.
        ResourceExhaustedError: the part exceeds a limit.
        UnimplementedError: the message has another version of the format.
    """
    version, task, subgraphs = (header.get(key) for key in ("plan", "task", "subgraphs"))
    if version != _VERSION:
        raise UnimplementedError("a plan of an unsupported version", expected=_VERSION, actual=brief(version))
    _require(isinstance(task, str) and type(subgraphs) is int and 0 <= subgraphs <= 4096, "header", dict(header))
    _require(bool(tensors) and tensors[0].dtype == np.uint8 and tensors[0].ndim == 1, "buffer", "none")
    if tensors[0].nbytes > limits.plan_bytes:
        raise ResourceExhaustedError("bytes of a plan", expected=limits.plan_bytes, actual=tensors[0].nbytes)
    reader = _Reader(tensors, limits, is_proof(header.get("proof")))
    found = dict(reader.subgraph() for _ in range(subgraphs or 0))
    _require(len(found) == subgraphs, "list of devices", "a duplicate device")
    reader.require_end()
    part = Part(str(task), found)
    _check_numbers(part)
    return part


def _check_numbers(part: Part) -> None:
    """Raise InvalidArgumentError if devices declare a feed differently, or two devices return the same fetch.

    A received feed is checked against the declaration of only one device, so the others must agree with it.
    """
    feeds: dict[int, OutputSpec] = {}
    fetches: set[int] = set()
    for node in part.nodes():
        if node.op not in BOUNDARY:
            continue
        index: int = node.attrs["index"]
        if node.op == ARG and feeds.setdefault(index, node.outputs[0]) != node.outputs[0]:
            raise InvalidArgumentError(
                f"devices declare feed {index} differently",
                node=node.name,
                expected=feeds[index],
                actual=node.outputs[0],
            )
        if node.op == RETVAL and index in fetches:
            raise InvalidArgumentError(
                f"two devices return fetch {index}", node=node.name, expected="one device", actual="more"
            )
        if node.op == RETVAL:
            fetches.add(index)


def _require(condition: bool, what: str, actual: Any) -> None:
    if not condition:
        raise DataLossError(f"a malformed {what} of a plan", actual=brief(actual))


class _Reader:
    def __init__(self, tensors: Sequence[Array], limits: Limits, home: bool) -> None:
        self._limits = limits
        self._home = home
        self._nodes = 0
        self._inside = 0
        self._tensors = [_constant(tensor) for tensor in tensors[1:]]
        size = max(tensors[0].nbytes, 1)
        # Records contain no maps or extensions. The other limits keep a small message from allocating much memory.
        self._unpacker = msgpack.Unpacker(
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_buffer_size=size,
            max_str_len=min(size, 1 << 20),
            max_bin_len=size,
            max_array_len=_MOST_ITEMS,
            max_map_len=0,
            max_ext_len=0,
            ext_hook=_refuse_extension,
        )
        self._unpacker.feed(tensors[0].data)
        self._texts = self._next()
        _require(isinstance(self._texts, list) and all(isinstance(t, str) for t in self._texts), "list of texts", "")

    def _next(self) -> Unpacked:
        try:
            return self._unpacker.unpack()
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            if isinstance(error, OpError):
                raise
            raise DataLossError(f"a malformed record of a plan: {type(error).__name__}: {error}") from error

    def require_end(self) -> None:
        try:
            self._unpacker.unpack()
        except msgpack.OutOfData:
            return
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise DataLossError("data after the last record of a plan") from error
        raise DataLossError("data after the last record of a plan")

    def _list(self, value: Unpacked, length: int, what: str) -> list[Unpacked]:
        _require(isinstance(value, list) and len(value) == length, what, value)
        found: list[Unpacked] = value
        return found

    def _text(self, number: Unpacked) -> str:
        _require(type(number) is int and 0 <= number < len(self._texts), "number of a text", number)
        found: str = self._texts[number]
        return found

    def subgraph(self) -> tuple[str, ClientGraph]:
        device, feeds, fetches, targets, count = self._list(self._next(), 5, "subgraph")
        _require(type(count) is int and count >= 0, "number of nodes", count)
        # Before the records are read, since the number is only the sender's claim.
        self._count(count)
        graph = self._graph(feeds, fetches, targets, [self._node_record(self._next()) for _ in range(count)])
        try:
            # `verify` reports faults as those of the compiler; here they are the sender's.
            verify(graph, whole=False)
        except InternalError as error:
            raise InvalidArgumentError(
                f"a plan that cannot be run: {error.message}",
                node=error.node,
                op_type=error.op_type,
                source=error.source,
                expected=error.expected,
                actual=error.actual,
            ) from error
        return self._text(device), graph

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._limits.nodes:
            raise ResourceExhaustedError(
                "nodes of a plan", expected=f"at most {self._limits.nodes}", actual=self._nodes
            )

    def _graph(
        self, feeds: Unpacked, fetches: Unpacked, targets: Unpacked, records: Sequence[list[Unpacked]]
    ) -> ClientGraph:
        for number in (feeds, fetches):
            _require(type(number) is int and 0 <= number <= _MOST_FEEDS, "number of feeds or fetches", number)
        _require(isinstance(targets, list) and all(isinstance(t, str) for t in targets), "list of targets", targets)
        names = [record[0] for record in records]
        nodes = {record[0]: self._node(record, names) for record in records}
        _require(len(nodes) == len(records), "list of nodes", "a duplicate name")
        return ClientGraph(nodes, feeds, fetches, tuple(targets))

    def _node_record(self, value: Unpacked) -> list[Unpacked]:
        record = self._list(value, 8, "node")
        name = record[0]
        _require(isinstance(name, str) and _NAME.fullmatch(name) is not None, "name of a node", name)
        return record

    def _node(self, record: list[Unpacked], names: Sequence[str]) -> Node:
        name, op_number, inputs, control, attrs, outputs, device, source = record
        op = self._text(op_number)
        if op not in OPS or OPS.get(op).made_by == "worker":
            raise InvalidArgumentError(f"there is no op {brief(op)}", node=name, expected="a registered op", actual=op)
        if (why := traits_of(op).stays_home) and not self._home:
            raise PermissionDeniedError(
                f"a node that {why} runs only in the process that built the graph",
                node=name,
                op_type=op,
                expected="a plan without such nodes",
                actual=op,
            )
        try:
            node = Node(
                name,
                op,
                tuple(Edge(_numbered(names, n), _port(port)) for n, port in _pairs(inputs)),
                tuple(_numbered(names, n) for n in _items(control)),
                {key: self._attr(op, key, value) for key, value in self._named(attrs)},
                tuple(OutputSpec(_dtype(key), _dims(dims)) for key, dims in self._named(outputs)),
                self._text(device),
                self._source(source),
            )
            _check_attrs(node)
        except OpError as error:
            raise error.at(name, op, None) from error.__cause__
        return node

    def _named(self, value: Unpacked) -> Iterator[tuple[str, Unpacked]]:
        return ((self._text(number), item) for number, item in _pairs(value))

    def _source(self, value: Unpacked) -> SourceLine | None:
        if value is None:
            return None
        filename, line, function = self._list(value, 3, "source line")
        _require(type(line) is int, "line number", line)
        return SourceLine(self._text(filename), line, self._text(function))

    def _attr(self, op: str, key: str, value: Unpacked) -> object:
        found = self._value(value, _MOST_DEPTH)
        own = op in BOUNDARY or op not in OPS  # nodes of the plan itself, which `_check_attrs` checks
        declared = None if own else OPS.get(op).attrs.get(key)
        return found if declared is None else declared.check(found)

    def _value(self, value: Unpacked, depth: int) -> object:
        if not isinstance(value, list):
            return value
        _require(depth >= 0 and bool(value) and type(value[0]) is int, "value of an attribute", value)
        if value[0] in (_TUPLE, _LIST):
            items = (self._value(item, depth - 1) for item in value[1:])
            return tuple(items) if value[0] == _TUPLE else list(items)
        decode = self._DECODERS.get(value[0])
        if decode is None:
            raise DataLossError("an unknown kind of attribute in a plan", actual=brief(value))
        return decode(self, value[1:])

    def _as_dtype(self, content: list[Unpacked]) -> DType:
        return _dtype(self._text(*self._list(content, 1, "dtype")))

    def _as_function(self, content: list[Unpacked]) -> FunctionRef:
        return FunctionRef(*self._list(content, 1, "function"))

    def _as_body(self, content: list[Unpacked]) -> ClientGraph:
        feeds, fetches, targets, records = self._list(content, 4, "function")
        self._count(len(_items(records)))
        if self._inside == _MOST_BODIES:
            raise ResourceExhaustedError("functions in functions", expected=f"at most {_MOST_BODIES}", actual="more")
        self._inside += 1
        found = self._graph(feeds, fetches, targets, [self._node_record(record) for record in records])
        # After an error it is not undone, since the whole part is then refused.
        self._inside -= 1
        return found

    def _as_tensor(self, content: list[Unpacked]) -> Array:
        (number,) = self._list(content, 1, "constant")
        _require(type(number) is int and 0 <= number < len(self._tensors), "number of a constant", number)
        found: Array = self._tensors[number]
        return found

    def _as_array(self, content: list[Unpacked]) -> Array:
        *described, data = self._list(content, 4, "constant")
        spec = parse_spec(described, self._limits)
        _require(isinstance(data, bytes) and len(data) == spec.nbytes, "constant", data)
        destination = Destination(spec)
        destination.buffer[:] = data
        return _constant(destination.finish())

    def _as_scalar(self, content: list[Unpacked]) -> object:
        array = self._as_array(content)
        _require(array.ndim == 0, "scalar", array.shape)
        return array[()]

    _DECODERS: ClassVar[Mapping[int, Callable[[_Reader, list[Unpacked]], object]]] = {
        _DTYPE: _as_dtype,
        _FUNCTION: _as_function,
        _BODY: _as_body,
        _ARRAY: _as_array,
        _SCALAR: _as_scalar,
        _TENSOR: _as_tensor,
    }


def _check_attrs(node: Node) -> None:
    """Check what `verify` assumes: the attributes of feeds and fetches, and that tensor counts match the tensors."""
    if node.op in BOUNDARY:
        dtype, index = node.attrs.get("T"), node.attrs.get("index")
        _require(isinstance(dtype, DType) and type(index) is int, f"node {node.op}", dict(node.attrs))
        return
    for args, there in ((OPS.get(node.op).inputs, node.inputs), (OPS.get(node.op).outputs, node.outputs)):
        for arg in args:
            if arg.number_attr is not None and not 0 <= node.attrs.get(arg.number_attr, 0) <= len(there):
                raise InvalidArgumentError(
                    f"a sequence {arg.name!r} with more tensors than the node has",
                    expected=f"at most {len(there)}",
                    actual=node.attrs[arg.number_attr],
                )


def _constant(array: Array) -> Array:
    # All steps of the part read the same array.
    array.flags.writeable = False
    return array


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise DataLossError("an extension type in a plan", expected="plain values", actual=f"extension {code}")


def _items(value: Unpacked) -> list[Unpacked]:
    _require(isinstance(value, list), "list", value)
    found: list[Unpacked] = value
    return found


def _pairs(value: Unpacked) -> Iterator[tuple[Unpacked, Unpacked]]:
    items = _items(value)
    _require(len(items) % 2 == 0, "list of pairs", value)
    return zip(items[::2], items[1::2], strict=True)


def _numbered(names: Sequence[str], number: Unpacked) -> str:
    _require(type(number) is int and 0 <= number < len(names), "number of a node", number)
    found: str = names[number]
    return found


def _port(value: Unpacked) -> int:
    _require(type(value) is int and value >= 0, "port", value)
    return int(value)


def _dtype(name: str) -> DType:
    found = _DTYPES.get(name)
    if found is None:
        raise DataLossError("an unknown dtype in a plan", expected=f"one of {sorted(_DTYPES)}", actual=brief(name))
    return found


def _dims(value: Unpacked) -> tuple[int | None, ...] | None:
    if value is None:
        return None
    _require(all(d is None or (type(d) is int and d >= 0) for d in _items(value)), "shape", value)
    return tuple(value)
