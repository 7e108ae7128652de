"""The wire format of `tf.train.Example`: named lists of bytes, floats or integers.

They are protocol buffers (see `protobuf`); whatever does not fit is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from aioflow.kernels.protobuf import (
    FIXED32,
    MASK64,
    PIECE,
    VARINT,
    damaged,
    read_fields,
    read_number,
    write_number,
    write_piece,
)

__all__ = [
    "FeatureList",
    "Kind",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
]

Kind: TypeAlias = Literal["bytes", "float", "int64"]

_KINDS: Final[Mapping[int, Kind]] = {1: "bytes", 2: "float", 3: "int64"}
_FIELDS: Final[Mapping[str, int]] = {kind: field for field, kind in _KINDS.items()}
_MANY: Final = 32  # values from which decoding by array operations is faster


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


def decode_example(data: bytes) -> dict[bytes, FeatureList]:
    """The features by name. Of a name that comes twice, the last counts.

    Raises:
        DataLossError: the bytes are no Example.
    """
    return _features(data, 1)


def decode_sequence_example(data: bytes) -> tuple[dict[bytes, FeatureList], dict[bytes, list[FeatureList]]]:
    """The features of the context, and the lists of features, by name.

    Raises:
        DataLossError: the bytes are no SequenceExample.
    """
    lists = {name: _list(data, *part) for name, part in _entries(data, 2)}
    return _features(data, 1), lists


def _features(data: bytes, field: int) -> dict[bytes, FeatureList]:
    return {name: _feature(data, *part) for name, part in _entries(data, field)}


def _list(data: bytes, begin: int, end: int) -> list[FeatureList]:
    pieces = (field for field in read_fields(data, begin, end) if field[:2] == (1, PIECE))
    return [_feature(data, start, stop) for _, _, start, stop in pieces]


def _entries(data: bytes, field: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Names, and where their values are, of the maps in that field."""
    for number, wire, begin, end in read_fields(data, 0, len(data)):
        if number == field and wire == PIECE:
            for inner, inner_wire, start, stop in read_fields(data, begin, end):
                if inner == 1 and inner_wire == PIECE:
                    yield _entry(data, start, stop)


def _entry(data: bytes, begin: int, end: int) -> tuple[bytes, tuple[int, int]]:
    name, value = b"", (end, end)
    for number, wire, start, stop in read_fields(data, begin, end):
        if wire == PIECE and number == 1:
            name = data[start:stop]
        elif wire == PIECE and number == 2:
            value = (start, stop)
    return name, value


def _feature(data: bytes, begin: int, end: int) -> FeatureList:
    chosen, pieces = 0, list[tuple[int, int]]()
    for number, wire, start, stop in read_fields(data, begin, end):
        if wire != PIECE or number not in _KINDS:
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
    for number, wire, start, stop in read_fields(data, begin, end):
        if number == 1 and wire == PIECE:
            yield data[start:stop]


def _float_values(data: bytes, begin: int, end: int) -> Iterator[Any]:
    for number, wire, start, stop in read_fields(data, begin, end):
        if number != 1 or wire not in (PIECE, FIXED32):
            continue
        if (stop - start) % 4:
            raise damaged("packed floats that are cut short")
        yield np.frombuffer(data, "<f4", (stop - start) // 4, start).astype(np.float32)


def _int_values(data: bytes, begin: int, end: int) -> Iterator[Any]:
    for number, wire, start, stop in read_fields(data, begin, end):
        if number == 1 and wire == VARINT:
            yield np.array([start], np.uint64).view(np.int64)
        elif number == 1 and wire == PIECE:
            yield _packed_ints(data, start, stop)


def _packed_ints(data: bytes, begin: int, end: int) -> Any:
    if end - begin < _MANY:
        values: list[int] = []
        at = begin
        while at < end:
            value, at = read_number(data, at, end)
            values.append(value)
        return np.array(values, np.uint64).view(np.int64)
    raw = np.frombuffer(data, np.uint8, end - begin, begin)
    last = np.flatnonzero(raw < 0x80)
    if not last.size or last[-1] != raw.size - 1:
        raise damaged("a number that does not end")
    if last.size == raw.size:
        return raw.astype(np.int64)
    first = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])
    sizes = last - first + 1
    if sizes.max() > 10:
        raise damaged("a number that does not end")
    shifts = (np.arange(raw.size) - np.repeat(first, sizes)) * 7
    bits = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(bits, first).view(np.int64)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _values(kind: Kind, values: Sequence[Any]) -> bytes:
    if kind == "bytes":
        return b"".join(write_piece(1, value) for value in values)
    if not len(values):
        return b""
    if kind == "float":
        return write_piece(1, struct.pack(f"<{len(values)}f", *values))
    return write_piece(1, b"".join(write_number(value & MASK64) for value in values))


def encode_feature(kind: Kind | None, values: Sequence[Any]) -> bytes:
    """The message of one feature; of kind None, the empty one."""
    return b"" if kind is None else write_piece(_FIELDS[kind], _values(kind, values))


def _map(entries: Mapping[bytes, bytes]) -> bytes:
    """The message of named messages, in the order of the names."""
    return b"".join(write_piece(1, write_piece(1, name) + write_piece(2, entries[name])) for name in sorted(entries))


Features: TypeAlias = Mapping[bytes, tuple[Kind | None, Sequence[Any]]]


def encode_example(features: Features) -> bytes:
    """The message of an Example: each feature's name, kind and values, in the order of the names."""
    return write_piece(1, _map({name: encode_feature(*feature) for name, feature in features.items()}))


def encode_sequence_example(
    context: Features, lists: Mapping[bytes, Sequence[tuple[Kind | None, Sequence[Any]]]]
) -> bytes:
    """The message of a SequenceExample: the context's features, and for each name a list of features."""
    made = {name: b"".join(write_piece(1, encode_feature(*f)) for f in features) for name, features in lists.items()}
    return encode_example(context) + write_piece(2, _map(made))
