"""The decoder of Snappy blocks, against blocks written by hand from the description of the format."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.errors import DataLossError
from aioflow.formats.protobuf import write_number
from aioflow.formats.snappy import decompress
from tests.support.random_examples import examples

LIMIT = 1 << 16


def _literal(data: bytes) -> bytes:
    if len(data) <= 60:
        return bytes([(len(data) - 1) << 2]) + data
    return bytes([61 << 2]) + (len(data) - 1).to_bytes(2, "little") + data


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (_literal(b"hello"), b"hello"),
        (_literal(b"x" * 1000), b"x" * 1000),
        (_literal(b"abcd") + bytes([0 << 2 | 1, 4]), b"abcdabcd"),  # 4 bytes from 4 back, in two bytes
        (_literal(b"ab") + bytes([9 << 2 | 2, 2, 0]), b"ab" * 6),  # 10 bytes from 2 back: the copy overlaps itself
        (_literal(b"abc") + bytes([2 << 2 | 3, 3, 0, 0, 0]), b"abcabc"),
        (b"", b""),
    ],
)
def test_a_block_is_decompressed(body: bytes, whole: bytes) -> None:
    assert decompress(write_number(len(whole)) + body, LIMIT) == whole


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xff\xff\xff\xff\x7f" + _literal(b"a"),  # declares 4 TB
        write_number(LIMIT + 1) + _literal(b"a"),
        write_number(9) + _literal(b"hello"),
        write_number(3) + _literal(b"hello"),
        write_number(5) + _literal(b"hello")[:-1],
        write_number(8) + bytes([1, 4]),  # a copy with nothing before it
        write_number(8) + _literal(b"ab") + bytes([1, 0]),  # a copy from 0 bytes back
        write_number(8) + _literal(b"ab") + bytes([2]),
    ],
)
def test_malformed_blocks_are_rejected(block: bytes) -> None:
    with pytest.raises(DataLossError):
        decompress(block, LIMIT)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_decoded_or_rejected(data: bytes) -> None:
    with contextlib.suppress(DataLossError):
        assert len(decompress(data, LIMIT)) <= LIMIT
