"""Example messages: decoding does not depend on the layouts cached from earlier messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.errors import DataLossError
from aioflow.formats import example as example_format
from aioflow.formats.example import FeatureKind, FeatureSpan, Layouts, decode_example, encode_example, values_at
from aioflow.formats.protobuf import write_number, write_piece
from tests.support.random_examples import examples

FIELDS: dict[FeatureKind, int] = {"bytes": 1, "float": 2, "int64": 3}


def read(layouts: Layouts, data: bytes) -> Any:
    """Return all features of a message, or "damaged"."""
    try:
        found = {name: (place.kind, values_at(data, place)) for name, place in layouts.find(data).items()}
    except DataLossError:
        return "damaged"
    return {name: (kind, plain(kind, values)) for name, (kind, values) in found.items()}


def plain(kind: FeatureKind | None, values: Any) -> Any:
    return np.asarray(values, np.float32).tobytes() if kind == "float" else list(values)


def one_list(kind: FeatureKind, values: Sequence[Any], packed: bool) -> bytes:
    """Encode a list of one kind, packed or not: writers use both forms."""
    if kind == "bytes":
        return b"".join(write_piece(1, v) for v in values)
    if kind == "float":
        if packed:
            return write_piece(1, struct.pack(f"<{len(values)}f", *values))
        return b"".join(write_number(1 << 3 | 5) + struct.pack("<f", v) for v in values)
    numbers = [write_number(v % 2**64) for v in values]
    return write_piece(1, b"".join(numbers)) if packed else b"".join(write_number(1 << 3) + n for n in numbers)


def message(features: Sequence[tuple[bytes, FeatureKind, Sequence[Sequence[Any]], bool]]) -> bytes:
    """Encode features, in order, from tuples (name, kind, pieces of the list, packed)."""
    entries = []
    for name, kind, pieces, packed in features:
        value = b"".join(write_piece(FIELDS[kind], one_list(kind, piece, packed)) for piece in pieces)
        entries.append(write_piece(1, write_piece(1, name) + write_piece(2, value)))
    return write_piece(1, b"".join(entries))


NUMBERS = st.one_of(st.integers(0, 3), st.sampled_from([127, 128, 300, -1, 2**63 - 1, -(2**63)]))
VALUES: dict[FeatureKind, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=3),
    "float": st.sampled_from([0.0, 1.5, -2.25]),
    "int64": NUMBERS,
}


def features_of(kind: FeatureKind) -> st.SearchStrategy[Any]:
    pieces = st.lists(st.lists(VALUES[kind], max_size=3), max_size=2)
    return st.tuples(st.sampled_from([b"a", b"b", b"long"]), st.just(kind), pieces, st.booleans())


FEATURE = st.one_of(features_of("bytes"), features_of("float"), features_of("int64"))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(FEATURE, max_size=3), min_size=1, max_size=12))
def test_decoding_does_not_depend_on_earlier_messages(messages: list[Any]) -> None:
    layouts = Layouts()
    for features in messages:
        data = message(features)
        expected = {
            name: (kind if pieces else None, plain(kind if pieces else None, [v for piece in pieces for v in piece]))
            for name, kind, pieces, _ in features
        }
        assert read(layouts, data) == read(Layouts(), data) == expected


RECORDS = [
    message([(b"image", "bytes", [[b"pixels"]], True), (b"label", "int64", [[5]], True)]),
    message([(b"x", "float", [[1.0, 2.0]], True), (b"n", "int64", [[1, 300], [-1]], True)]),
    message([(b"x", "float", [[1.0, 2.0]], False), (b"n", "int64", [[1, 300]], False)]),
    message([(b"a", "bytes", [[b"", b"one"]], True), (b"a", "int64", [[7]], True)]),
    message([(b"a", "int64", [[7]], True)]) + write_piece(9, b"unknown") + write_number(7 << 3) + write_number(300),
]


@pytest.mark.parametrize("data", RECORDS)
def test_changed_byte_decodes_as_by_a_fresh_reader(data: bytes) -> None:
    layouts = Layouts()
    layouts.find(data)
    for position in range(len(data)):
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, data[position] ^ 1, data[position] ^ 8}:
            changed = data[:position] + bytes([value]) + data[position + 1 :]
            assert read(layouts, changed) == read(Layouts(), changed)
            assert read(layouts, data) == read(Layouts(), data)


def test_messages_of_equal_layout_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bytes] = []
    search = example_format._places

    def places(data: bytes, field: int) -> dict[bytes, FeatureSpan]:
        searched.append(data)
        return search(data, field)

    monkeypatch.setattr(example_format, "_places", places)
    layouts = Layouts()

    def record(first: int, second: int, text: bytes = b"abc") -> bytes:
        return encode_example({b"a": ("int64", [first]), b"b": ("int64", [second]), b"c": ("bytes", [text])})

    for number in range(200):
        assert read(layouts, record(number, 0))[b"a"] == ("int64", [number])
    assert len(searched) == 2  # integers encoded in one byte and in two
    for number in (300, 5, 400, 6):  # of messages of equal length, either integer may be the longer one
        read(layouts, record(number, 1 if number >= 128 else 300))
    assert len(searched) == 3


def test_layout_cache_is_bounded() -> None:
    layouts = Layouts()
    for size in range(1000):
        layouts.find(encode_example({b"a": ("bytes", [bytes(size)])}))
    for number in range(100):
        layouts.find(encode_example({b"%03d" % number: ("bytes", [b"x"])}))
    layouts.find(message([]) + write_piece(9, bytes(100_000)))
    known = list(layouts._known.values())
    assert len(known) <= 64
    assert max(map(len, known)) <= 4
    assert max(len(text) for alike in known for layout in alike for _, _, text in layout.around) < 5000


@pytest.mark.parametrize("count", [3, 31, 32, 33, 200])
def test_int64_lists_of_any_length_are_decoded(count: int) -> None:
    values = [(-1) ** i * i**8 for i in range(count)]
    data = encode_example({b"n": ("int64", values)})
    assert list(decode_example(data)[b"n"].values) == values


@pytest.mark.parametrize("run", [b"\x80", b"\x01\x80", b"\x80" * 10 + b"\x01", b"\x80" * 40, b"\x01" * 40 + b"\x80"])
def test_unterminated_integers_are_refused(run: bytes) -> None:
    feature = write_piece(3, write_piece(1, run))
    data = write_piece(1, write_piece(1, write_piece(1, b"n") + write_piece(2, feature)))
    with pytest.raises(DataLossError):
        decode_example(data)
