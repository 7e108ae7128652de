"""The wire format of `tf.train.Example`: named lists of bytes, floats or integers.

It is protocol buffers, of which only what these messages need is here: varints, fixed 32 and 64 bits, and pieces with a
length. Whatever does not fit is refused: lengths beyond the end, varints of more than ten bytes, groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import DataLossError

__all__ = ["FeatureList", "Kind", "decode_example", "encode_example"]

Kind: TypeAlias = Literal["bytes", "float", "int64"]

_KINDS: Final[Mapping[int, Kind]] = {1: "bytes", 2: "float", 3: "int64"}
_FIELDS: Final[Mapping[str, int]] = {kind: field for field, kind in _KINDS.items()}
_VARINT, _FIXED64, _PIECE, _FIXED32 = 0, 1, 2, 5
_MANY: Final = 32  # values from which decoding by array operations is faster
_U64: Final = 2**64 - 1


class FeatureList(NamedTuple):
    """The values of one feature.

    Attributes:
        kind: Of the values; None where the feature is there without any.
        values: A list of bytes, or an array of float32 or int64.
    """

    kind: Kind | None
    values: Any

    def __len__(self) -> int:
        return len(self.values)


EMPTY: Final = FeatureList(None, ())


def _lost(what: str) -> DataLossError:
    return DataLossError(f"not an Example: {what}")


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number, and where the next thing is."""
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise _lost("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Field number, wire type, begin and end of the contents (for a varint: its value, and 0) of each field."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _lost("a field without a number")
        if wire == _VARINT:
            value, at = _varint(data, at, end)
            yield number, wire, value, 0
            continue
        if wire == _PIECE:
            size, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise _lost(f"wire type {wire}")
        if size > end - at:
            raise _lost("a piece that is longer than what is there")
        yield number, wire, at, at + size
        at += size


def decode_example(data: bytes) -> dict[bytes, FeatureList]:
    """The features by name. Of a name that comes twice, the last counts.

    Raises:
        DataLossError: the bytes are no Example.
    """
    found: dict[bytes, FeatureList] = {}
    for number, wire, begin, end in _fields(data, 0, len(data)):
        if number == 1 and wire == _PIECE:
            for inner, inner_wire, start, stop in _fields(data, begin, end):
                if inner == 1 and inner_wire == _PIECE:
                    name, feature = _entry(data, start, stop)
                    found[name] = feature
    return found


def _entry(data: bytes, begin: int, end: int) -> tuple[bytes, FeatureList]:
    name, feature = b"", EMPTY
    for number, wire, start, stop in _fields(data, begin, end):
        if wire == _PIECE and number == 1:
            name = data[start:stop]
        elif wire == _PIECE and number == 2:
            feature = _feature(data, start, stop)
    return name, feature


def _feature(data: bytes, begin: int, end: int) -> FeatureList:
    chosen, pieces = 0, list[tuple[int, int]]()
    for number, wire, start, stop in _fields(data, begin, end):
        if wire != _PIECE or number not in _KINDS:
            continue
        if number != chosen:
            chosen, pieces = number, []  # the last kind counts; pieces of one kind are one list
        pieces.append((start, stop))
    if not chosen:
        return EMPTY
    kind = _KINDS[chosen]
    if kind == "bytes":
        return FeatureList(kind, [v for start, stop in pieces for v in _bytes_values(data, start, stop)])
    read = _float_values if kind == "float" else _int_values
    parts = [part for start, stop in pieces for part in read(data, start, stop)]
    dtype = np.float32 if kind == "float" else np.int64
    if len(parts) == 1:
        return FeatureList(kind, parts[0])
    return FeatureList(kind, np.concatenate(parts) if parts else np.zeros(0, dtype))


def _bytes_values(data: bytes, begin: int, end: int) -> Iterator[bytes]:
    for number, wire, start, stop in _fields(data, begin, end):
        if number == 1 and wire == _PIECE:
            yield data[start:stop]


def _float_values(data: bytes, begin: int, end: int) -> Iterator[Any]:
    for number, wire, start, stop in _fields(data, begin, end):
        if number != 1 or wire not in (_PIECE, _FIXED32):
            continue
        if (stop - start) % 4:
            raise _lost("packed floats that are cut short")
        yield np.frombuffer(data, "<f4", (stop - start) // 4, start).astype(np.float32)


def _int_values(data: bytes, begin: int, end: int) -> Iterator[Any]:
    for number, wire, start, stop in _fields(data, begin, end):
        if number == 1 and wire == _VARINT:
            yield np.array([start], np.uint64).view(np.int64)
        elif number == 1 and wire == _PIECE:
            yield _packed_ints(data, start, stop)


def _packed_ints(data: bytes, begin: int, end: int) -> Any:
    if end - begin < _MANY:
        values: list[int] = []
        at = begin
        while at < end:
            value, at = _varint(data, at, end)
            values.append(value)
        return np.array(values, np.uint64).view(np.int64)
    raw = np.frombuffer(data, np.uint8, end - begin, begin)
    last = np.flatnonzero(raw < 0x80)
    if not last.size or last[-1] != raw.size - 1:
        raise _lost("a number that does not end")
    if last.size == raw.size:
        return raw.astype(np.int64)
    first = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])
    sizes = last - first + 1
    if sizes.max() > 10:
        raise _lost("a number that does not end")
    shifts = (np.arange(raw.size) - np.repeat(first, sizes)) * 7
    bits = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(bits, first).view(np.int64)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _piece(field: int, data: bytes) -> bytes:
    return _number(field << 3 | _PIECE) + _number(len(data)) + data


def _values(kind: Kind, values: Sequence[Any]) -> bytes:
    if kind == "bytes":
        return b"".join(_piece(1, value) for value in values)
    if not len(values):
        return b""
    if kind == "float":
        return _piece(1, struct.pack(f"<{len(values)}f", *values))
    return _piece(1, b"".join(_number(value & _U64) for value in values))


def encode_feature(kind: Kind | None, values: Sequence[Any]) -> bytes:
    """The message of one feature; of kind None, the empty one."""
    return b"" if kind is None else _piece(_FIELDS[kind], _values(kind, values))


def encode_example(features: Mapping[bytes, tuple[Kind | None, Sequence[Any]]]) -> bytes:
    """The message of an Example: each feature's name, kind and values, in the order of the names."""
    entries = (
        _piece(1, _piece(1, name) + _piece(2, encode_feature(kind, values)))
        for name, (kind, values) in sorted(features.items(), key=lambda item: item[0])
    )
    return _piece(1, b"".join(entries))
