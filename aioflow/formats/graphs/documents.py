"""aioflow's own format of graph definitions, as the first release wrote it.

A definition becomes a plain document (None, bool, int, float, str, bytes, lists, maps by str), which has two encodings:
binary and JSON. The binary encoding is a fixed header and one msgpack value with a checksum, so that a truncated or
altered file is distinguished from a file of another kind. Only plain data is decoded: no extension types, no objects,
bounded nesting, no duplicate keys.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgpack

from aioflow.arguments import brief
from aioflow.errors import DataLossError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.formats.versions import readable_version
from aioflow.graph.definitions import MAX_DEPTH, FunctionArg, FunctionDef, FunctionRef, NodeDef, TensorData, require
from aioflow.graph.dtypes import ALL, DType
from aioflow.graph.graphdef import VERSION, GraphDef
from aioflow.release import RELEASE

PlainData: TypeAlias = Any
# The fields of a `GraphDef`, in their order.
Parts: TypeAlias = tuple[tuple[NodeDef, ...], int, tuple[FunctionDef, ...]]

MAGIC: Final = b"aiograph"
FORMAT_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHIQ")  # magic, format version, CRC-32 of the body, its length
# Limits of a decoded document: a header of a few bytes must not reserve gigabytes.
_MAX_ITEMS: Final = 1 << 24
_MAX_TEXT: Final = 1 << 20
_INT64: Final = range(-(2**63), 2**63)


def to_bytes(document: PlainData) -> bytes:
    """Return the header and the document in msgpack.

    Raises:
        InvalidArgumentError: a text is not valid Unicode, or the data is larger than msgpack can hold.
    """
    try:
        # Text and bytes stay distinct.
        body: bytes = msgpack.packb(document, use_bin_type=True)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"the document cannot be encoded: {error}") from error
    return _HEADER.pack(MAGIC, FORMAT_VERSION, zlib.crc32(body), len(body)) + body


def from_bytes(data: bytes) -> PlainData:
    """Return the document in `data`.

    Raises:
        DataLossError: `data` is truncated, altered, or not a document.
        UnimplementedError: it has a later format.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise DataLossError("truncated", expected=f"at least {_HEADER.size} bytes", actual=f"{len(view)} bytes")
    magic, version, checksum, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise DataLossError("not a graph definition", expected=MAGIC, actual=magic)
    # The version comes before the checksum, since a later format may compute it differently.
    if version != FORMAT_VERSION:
        raise UnimplementedError(
            f"written in format {version}, and aioflow {RELEASE} reads format {FORMAT_VERSION}",
            expected="a later release of aioflow",
            actual=f"aioflow {RELEASE}",
        )
    # The view avoids a copy of the whole body.
    body = view[_HEADER.size :]
    # The length tells a truncated file from an altered one.
    if len(body) != length:
        raise DataLossError("truncated, or longer than written", expected=f"{length} bytes", actual=f"{len(body)}")
    if zlib.crc32(body) != checksum:
        raise DataLossError(
            "checksum mismatch: altered since it was written",
            expected=f"{checksum:08x}",
            actual=f"{zlib.crc32(body):08x}",
        )
    return unpack(body)


def unpack(body: bytes | memoryview) -> PlainData:
    """Decode one msgpack value, with limits.

    Raises:
        DataLossError: it is not exactly one value of the supported types.
    """
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=True,
            object_pairs_hook=_unique,
            ext_hook=_refuse_extension,
            max_str_len=_MAX_TEXT,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        if isinstance(error, DataLossError):
            raise
        raise DataLossError(f"not a valid encoding: {type(error).__name__}: {error}") from error


def _refuse_extension(code: int, data: bytes) -> Any:
    raise DataLossError("an extension type", expected="plain values", actual=f"extension {code}")


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        # Other decoders may keep the other of two equal keys, so two programs could read two graphs.
        if not isinstance(key, str) or key in found:
            raise DataLossError("a duplicate key, or one that is not text", actual=repr(key))
        found[key] = value
    return found


def to_text(document: PlainData) -> str:
    """Return the document as JSON, with bytes as {"$base64": …}, and NaN and infinities as {"$float": …}."""
    # JSON has no NaN, and Python's own extension is not portable.
    return json.dumps(_textual(document), indent=1, allow_nan=False)


def _textual(value: PlainData) -> Any:
    if isinstance(value, dict):
        return {key: _textual(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_textual(item) for item in value]
    if isinstance(value, bytes | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


def from_text(text: str | bytes) -> PlainData:
    """Return the document in JSON that `to_text` wrote.

    Raises:
        DataLossError: the text is not JSON, or not JSON of that form.
    """
    try:
        return json.loads(text, object_pairs_hook=_from_pairs, parse_constant=_refuse_constant, parse_int=_parse_int)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, DataLossError):
            raise
        raise DataLossError(f"not valid JSON: {error}") from error


def _parse_int(digits: str) -> int:
    # The length comes first, because int() of a long text takes quadratic time.
    # −2⁶³ has 20 characters.
    if len(digits) > 20 or int(digits) not in _INT64:
        raise DataLossError("an integer out of range", expected="64 bits", actual=digits[:40])
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise DataLossError("a number that JSON cannot represent", expected='{"$float": …}', actual=name)


def _from_pairs(pairs: list[tuple[Any, Any]]) -> Any:
    found = _unique(pairs)
    # No key of a document begins with "$": fields and attributes have identifiers as names.
    if set(found) == {"$base64"} and isinstance(found["$base64"], str):
        try:
            return base64.b64decode(found["$base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise DataLossError(f"not base64: {error}") from error
    if set(found) == {"$float"}:
        if found["$float"] not in ("nan", "inf", "-inf"):
            raise DataLossError("not a float", expected="'nan', 'inf' or '-inf'", actual=repr(found["$float"]))
        return float(found["$float"])
    return found


# ── definitions as documents ──────────────────────────────────────────────────────────────────────────────────────────

_DTYPES: Final = {dtype.name: dtype for dtype in ALL}


def to_document(graph: GraphDef) -> PlainData:
    """Return the document to encode for a graph definition."""
    document: dict[str, Any] = {"version": graph.version, "nodes": _node_documents(graph.nodes)}
    if graph.functions:
        document["functions"] = [_function_document(function) for function in graph.functions]
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
        data = list(value.data) if isinstance(value.data, tuple) else value.data
        return {"$tensor": {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def from_document(document: PlainData) -> Parts:
    """Return nodes, version and functions of a definition.

    Raises:
        InvalidArgumentError: the document is not a graph definition.
        UnimplementedError: reading it requires a later release.
    """
    fields = _known_fields(document, "graph definition", "version", "nodes")
    version = fields["version"]
    # `type(…) is int`, because True would be version 1.
    if type(version) is int and version > 0:  # otherwise GraphDef rejects the version
        version = readable_version("the graph definition", fields, range(1, VERSION + 1))
    functions = tuple(_function(item) for item in _list(fields.get("functions", []), "list of functions"))
    return _nodes(fields["nodes"]), version, functions


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
    require(isinstance(item, list) and len(item) == 3, "argument", item)
    return FunctionArg(item[0], _dtype(item[1]), _value(item[2], 1))


def _node(item: Any) -> NodeDef:
    fields = _known_fields(item, "node", "name", "op", "inputs", "device", "attrs")
    attrs = fields["attrs"]
    require(isinstance(attrs, dict), "mapping of attributes", attrs)
    try:
        values = {key: _value(value, MAX_DEPTH) for key, value in attrs.items()}
    except OpError as error:
        raise error.at(brief(fields["name"]), brief(fields["op"]), None) from error.__cause__
    return NodeDef(
        fields["name"], fields["op"], tuple(_list(fields["inputs"], "list of inputs")), fields["device"], values
    )


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        require(depth > 0, "attribute value", "nested too deeply")
        return tuple(_value(item, depth - 1) for item in value)
    if not isinstance(value, dict):
        return value  # NodeDef validates it
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
    """Return the map, which must have at least these keys. Later releases may add others: see `formats/versions.py`."""
    # Only the known fields are checked: unknown ones come from a later release, which `readable_version` judges.
    known = {key: value[key] for key in names if key in value} if isinstance(value, dict) else value
    _fields(known, what, *names)
    found: dict[str, Any] = value
    return found


def _fields(value: Any, what: str, *names: str) -> dict[str, Any]:
    """Return the map, which must have exactly these keys."""
    if not isinstance(value, dict) or set(value) != set(names):
        actual = sorted(value, key=str)[:8] if isinstance(value, dict) else type(value).__name__
        raise InvalidArgumentError(f"not a {what}", expected=f"a map with {', '.join(names)}", actual=actual)
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    require(isinstance(value, list), what, value)
    found: list[Any] = value
    return found
