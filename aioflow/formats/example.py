"""The wire format of `tf.train.Example`: named lists of bytes, floats or integers.

Examples are protocol buffers (see `protobuf`); malformed ones are rejected. Reading has two parts: finding the values,
which costs most, and extracting them. The records of a file are mostly alike, so `Layouts` caches the results of the
first part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from aioflow.formats.protobuf import (
    FIXED32,
    MASK64,
    PIECE,
    VARINT,
    damaged,
    read_fields,
    write_number,
    write_piece,
)
from aioflow.memory.values import Array

FeatureKind: TypeAlias = Literal["bytes", "float", "int64"]
Span: TypeAlias = tuple[int, int]

_KINDS: Final[Mapping[int, FeatureKind]] = {1: "bytes", 2: "float", 3: "int64"}
_FIELDS: Final[Mapping[str, int]] = {kind: field for field, kind in _KINDS.items()}
_PACKED: Final = 1 << 3 | PIECE  # first byte of a list of packed numbers
_MANY: Final = 32  # bytes from which decoding numbers by array operations is faster
_LENGTHS: Final = 64  # maximum message lengths whose layouts are cached
_ALIKE: Final = 4  # layouts per length: either of two numbers may be the longer one
_AROUND: Final = 4096  # bytes around the values above which a layout is not worth its memory


class FeatureSpan(NamedTuple):
    """The position of the values of a feature in a message.

    Attributes:
        kind: Kind of the values; None if the feature has no values.
        spans: Begin and end of each value for bytes, of each run of values for floats, of the lists for int64.
    """

    kind: FeatureKind | None
    spans: Sequence[Span]


class StoredFeature(NamedTuple):
    """The values of one feature.

    Attributes:
        kind: Kind of the values; None if the feature has no values.
        values: A list of bytes, an array of float32, or a list or an array of integers.
    """

    kind: FeatureKind | None
    values: Any


def decode_example(data: bytes) -> dict[bytes, StoredFeature]:
    """Return the features by name. If a name occurs twice, the last one counts.

    Raises:
        DataLossError: the bytes are not an Example.
    """
    return {name: _taken(data, place) for name, place in _places(data, 1).items()}


def decode_sequence_example(data: bytes) -> tuple[dict[bytes, StoredFeature], dict[bytes, list[StoredFeature]]]:
    """Return the features of the context, and the lists of features, by name.

    Raises:
        DataLossError: the bytes are not a SequenceExample.
    """
    context, lists = find_sequence_example(data)
    steps = {name: [_taken(data, place) for place in places] for name, places in lists.items()}
    return {name: _taken(data, place) for name, place in context.items()}, steps


def _taken(data: bytes, place: FeatureSpan) -> StoredFeature:
    return StoredFeature(place.kind, values_at(data, place))


# ── positions of values ───────────────────────────────────────────────────────────────────────────────────────────────


class Layouts:
    """A cache of the positions of features in Examples.

    The positions of the values depend only on the bytes around them. If two messages of the same length have the same
    bytes around the values of the first, the values of the second are at the same positions.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Layout, ...]] = {}

    def find(self, data: bytes) -> Mapping[bytes, FeatureSpan]:
        """Return the positions of the features of an Example, by name. If a name occurs twice, the last one counts.

        Raises:
            DataLossError: the bytes are not an Example.
        """
        for layout in self._known.get(len(data), ()):
            if layout.fits(data):
                return layout.places
        places = _places(data, 1)
        self._remember(data, places)
        return places

    def _remember(self, data: bytes, places: Mapping[bytes, FeatureSpan]) -> None:
        spans = sorted(span for place in places.values() for span in place.spans)
        if len(data) - sum(end - begin for begin, end in spans) > _AROUND:
            return
        begins, ends = [0, *(end for _, end in spans)], [*(begin for begin, _ in spans), len(data)]
        around = [(begin, end, data[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        if len(self._known) == _LENGTHS and len(data) not in self._known:
            self._known = {}
        alike = self._known.get(len(data), ())
        # The newest layout first; the oldest is dropped.
        self._known[len(data)] = (_Layout(around, places), *alike[: _ALIKE - 1])


class _Layout(NamedTuple):
    """The bytes around the values, with begin and end, and the positions of the values."""

    around: list[tuple[int, int, bytes]]
    places: Mapping[bytes, FeatureSpan]

    def fits(self, data: bytes) -> bool:
        """Return True if a message of the same length has its values at the same positions."""
        for begin, end, expected in self.around:  # noqa: SIM110 (`all` would take as long as the comparisons)
            if data[begin:end] != expected:
                return False
        return True


def find_sequence_example(data: bytes) -> tuple[dict[bytes, FeatureSpan], dict[bytes, list[FeatureSpan]]]:
    """Return the positions of the features of the context, and those of the lists, by name.

    Raises:
        DataLossError: the bytes are not a SequenceExample.
    """
    lists: dict[bytes, list[FeatureSpan]] = {}
    for name, (begin, end) in _entries(data, 2):
        pieces = (field for field in read_fields(data, begin, end) if field[:2] == (1, PIECE))
        lists[name] = [_place(data, start, stop) for _, _, start, stop in pieces]
    return _places(data, 1), lists


def _places(data: bytes, field: int) -> dict[bytes, FeatureSpan]:
    return {name: _place(data, *span) for name, span in _entries(data, field)}


def _entries(data: bytes, field: int) -> Iterator[tuple[bytes, Span]]:
    """Yield the names, and the spans of their values, of the maps in that field."""
    for number, wire, begin, end in read_fields(data, 0, len(data)):
        if number == field and wire == PIECE:
            for inner, inner_wire, start, stop in read_fields(data, begin, end):
                if inner == 1 and inner_wire == PIECE:
                    yield _entry(data, start, stop)


def _entry(data: bytes, begin: int, end: int) -> tuple[bytes, Span]:
    # An entry without a value has an empty one, as in protobuf's maps.
    name, value = b"", (end, end)
    for number, wire, start, stop in read_fields(data, begin, end):
        if wire == PIECE and number == 1:
            name = data[start:stop]
        elif wire == PIECE and number == 2:
            value = (start, stop)
    return name, value


def _place(data: bytes, begin: int, end: int) -> FeatureSpan:
    chosen, spans = 0, list[Span]()
    for number, wire, start, stop in read_fields(data, begin, end):
        if wire != PIECE or number not in _KINDS:
            continue
        if number != chosen:
            chosen, spans = number, []  # the last kind counts; pieces of one kind are one list
        if _KINDS[number] == "int64":
            # The whole list: the bytes of unpacked numbers would otherwise count as bytes around the values.
            spans.append((start, stop))
        else:
            spans += _spans(data, start, stop, _KINDS[number])
    return FeatureSpan(_KINDS[chosen] if chosen else None, spans)


def _spans(data: bytes, begin: int, end: int, kind: FeatureKind) -> Iterator[Span]:
    for number, wire, start, stop in read_fields(data, begin, end):
        if number != 1 or (wire != PIECE and not (kind == "float" and wire == FIXED32)):
            continue
        if kind == "float" and (stop - start) % 4:
            raise damaged("packed floats that are cut short")
        yield start, stop


# ── the values ────────────────────────────────────────────────────────────────────────────────────────────────────────


def values_at(data: bytes, place: FeatureSpan) -> Any:
    """Return the values: a list of bytes, a float32 array, or a list or an array of integers; () for kind None.

    A float32 array from one span is a view of the message.

    Raises:
        DataLossError: the span does not contain a list of integers.
    """
    kind, spans = place
    if kind == "bytes":
        return [data[begin:end] for begin, end in spans]
    if kind is None:
        return ()
    if kind == "int64" and len(spans) == 1:
        return _ints(data, *spans[0])
    if kind == "float":
        parts = [np.frombuffer(data, "<f4", (end - begin) // 4, begin) for begin, end in spans]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])
    return [value for span in spans for value in _ints(data, *span)]


def _ints(data: bytes, begin: int, end: int) -> Any:
    # The usual form: one packed run, whose length takes one byte.
    if 2 < end - begin < _MANY and data[begin] == _PACKED and data[begin + 1] == end - begin - 2:
        return _few_ints(data, begin + 2, end)
    values: list[int] = []
    for number, wire, start, stop in read_fields(data, begin, end):
        if number == 1 and wire == VARINT:
            values.append(_signed(start))
        elif number == 1 and wire == PIECE:
            run = _few_ints(data, start, stop) if stop - start < _MANY else _many_ints(data, start, stop)
            if stop == end and not values:
                return run
            values.extend(run)
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _few_ints(data: bytes, begin: int, end: int) -> list[int]:
    values: list[int] = []
    value = shift = 0
    for byte in data[begin:end]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(_signed(value & MASK64) if shift > 63 else value)
            value = shift = 0
        # A number of 64 bits has at most ten bytes.
        elif shift > 63:
            break
    if shift:
        raise damaged("an unterminated varint")
    return values


def _many_ints(data: bytes, begin: int, end: int) -> Array:
    raw = np.frombuffer(data, np.uint8, end - begin, begin)
    # The last byte of each varint is the one below 0x80.
    last = np.flatnonzero(raw < 0x80)
    if not last.size or last[-1] != raw.size - 1:
        raise damaged("an unterminated varint")
    if last.size == raw.size:
        return raw.astype(np.int64)
    first = np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])
    sizes = last - first + 1
    if sizes.max() > 10:
        raise damaged("an unterminated varint")
    # value = Σ (byteᵢ & 0x7F) · 2^(7i), with i counted from the first byte of the number.
    shifts = (np.arange(raw.size) - np.repeat(first, sizes)) * 7
    bits = (raw & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
    return np.bitwise_or.reduceat(bits, first).view(np.int64)


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _values(kind: FeatureKind, values: Sequence[Any]) -> bytes:
    if kind == "bytes":
        return b"".join(write_piece(1, value) for value in values)
    if not len(values):
        return b""
    if kind == "float":
        return write_piece(1, struct.pack(f"<{len(values)}f", *values))
    return write_piece(1, b"".join(write_number(value & MASK64) for value in values))


def encode_feature(kind: FeatureKind | None, values: Sequence[Any]) -> bytes:
    """Return the message of one feature; an empty message for kind None."""
    return b"" if kind is None else write_piece(_FIELDS[kind], _values(kind, values))


def _map(entries: Mapping[bytes, bytes]) -> bytes:
    """Return the message of named messages, in the order of the names."""
    return b"".join(write_piece(1, write_piece(1, name) + write_piece(2, entries[name])) for name in sorted(entries))


FeatureValues: TypeAlias = Mapping[bytes, tuple[FeatureKind | None, Sequence[object]]]


def encode_example(features: FeatureValues) -> bytes:
    """Return the message of an Example, given each feature's name, kind and values, in the order of the names."""
    return write_piece(1, _map({name: encode_feature(*feature) for name, feature in features.items()}))


def encode_sequence_example(
    context: FeatureValues, lists: Mapping[bytes, Sequence[tuple[FeatureKind | None, Sequence[object]]]]
) -> bytes:
    """Return the message of a SequenceExample: the context's features, and for each name a list of features."""
    made = {name: b"".join(write_piece(1, encode_feature(*f)) for f in features) for name, features in lists.items()}
    return encode_example(context) + write_piece(2, _map(made))
