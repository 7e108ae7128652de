"""Two encodings of plain documents (None, bool, int, float, str, bytes, lists, maps by str): binary and JSON.

The binary encoding is a fixed header and one msgpack value with a checksum, so that a truncated or altered file is
distinguished from a file of another kind. Only plain data is decoded: no extension types, no objects, bounded nesting,
no duplicate keys.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
import zlib
from typing import Any, Final, TypeAlias

import msgpack

from aioflow.errors import DataLossError, InvalidArgumentError, UnimplementedError
from aioflow.release import RELEASE

Document: TypeAlias = Any

MAGIC: Final = b"aiograph"
FORMAT_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHIQ")  # magic, format version, CRC-32 of the body, its length
# Limits of a decoded document: a header of a few bytes must not reserve gigabytes.
_MAX_ITEMS: Final = 1 << 24
_MAX_TEXT: Final = 1 << 20
_INT64: Final = range(-(2**63), 2**63)


def to_bytes(document: Document) -> bytes:
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


def from_bytes(data: bytes) -> Document:
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


def unpack(body: bytes | memoryview) -> Document:
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


def to_text(document: Document) -> str:
    """Return the document as JSON, with bytes as {"$base64": …}, and NaN and infinities as {"$float": …}."""
    # JSON has no NaN, and Python's own extension is not portable.
    return json.dumps(_textual(document), indent=1, allow_nan=False)


def _textual(value: Document) -> Any:
    if isinstance(value, dict):
        return {key: _textual(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_textual(item) for item in value]
    if isinstance(value, bytes | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


def from_text(text: str | bytes) -> Document:
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
