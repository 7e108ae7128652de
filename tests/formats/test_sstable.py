"""Tables: written entries are read, and damaged tables are rejected. Tests with TensorFlow are in tests/parity."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.checksum import masked_crc32c
from aioflow.formats.protobuf import write_number
from aioflow.formats.sstable import MAGIC, Table, write_table
from tests.support.random_examples import examples

ENTRIES = st.dictionaries(st.binary(max_size=20), st.binary(max_size=50), max_size=60)


@settings(max_examples=examples(100), deadline=None)
@given(ENTRIES, st.binary(max_size=20))
def test_written_entries_are_read_and_found(entries: dict[bytes, bytes], other: bytes) -> None:
    table = Table.of(write_table(sorted(entries.items())))
    assert dict(table.items()) == entries
    for key in (*entries, other):
        assert table.find(key) == entries.get(key)


def test_a_lookup_reads_few_of_many_blocks() -> None:
    entries = [(f"key{i:06d}".encode(), bytes(1000)) for i in range(2000)]
    data = write_table(entries)
    reads: list[int] = []

    def read(begin: int, size: int) -> bytes:
        reads.append(size)
        return data[begin : begin + size]

    table = Table(len(data), read)
    assert table.find(b"key001234") == bytes(1000)
    assert table.find(b"key001234x") is None
    assert sum(reads) < len(data) / 2  # two lookups read only a part of the table
    assert list(table.items()) == entries


def test_unordered_keys_are_rejected() -> None:
    for keys in ([b"b", b"a"], [b"a", b"a"]):
        with pytest.raises(InvalidArgumentError, match="order"):
            write_table([(key, b"") for key in keys])


def test_every_changed_byte_is_detected() -> None:
    data = write_table([(b"a" * i, bytes(i)) for i in range(1, 30)])
    whole = list(Table.of(data).items())
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            assert list(Table.of(changed).items()) == whole  # the padding of the footer has no meaning
            assert len(data) - 48 <= at < len(data) - len(MAGIC)
        except DataLossError:
            pass
    for size in range(len(data)):
        with pytest.raises(DataLossError):
            Table.of(data[:size])


def _table(block: bytes) -> bytes:
    """Return a table with one block of these bytes and a correct checksum."""

    def sealed(content: bytes) -> bytes:
        return content + b"\0" + struct.pack("<I", masked_crc32c(content + b"\0"))

    handle = b"\0" + write_number(len(block))
    index = bytes([0, 1, len(handle)]) + b"z" + handle + struct.pack("<II", 0, 1)
    first = sealed(block)
    footer = 2 * (write_number(len(first)) + write_number(len(index)))
    return first + sealed(index) + footer.ljust(40, b"\0") + MAGIC


@pytest.mark.parametrize(
    "block",
    [
        b"",
        struct.pack("<I", 1 << 30),
        b"\0\1\x7fa" + struct.pack("<II", 0, 1),  # a value beyond the end
        b"\5\1\0a" + struct.pack("<II", 0, 1),  # shares five bytes with a previous key, which does not exist
        b"\0\1\0b\0\1\0a" + struct.pack("<II", 0, 1),  # not in order
        b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0a" + struct.pack("<II", 0, 1),
    ],
)
def test_a_forged_block_is_refused(block: bytes) -> None:
    with pytest.raises(DataLossError):
        list(Table.of(_table(block)).items())


def test_shared_key_prefixes_cannot_grow_to_gigabytes() -> None:
    key = b"k" * 100_000
    block = b"\0" + write_number(len(key)) + b"\0" + key
    block += b"".join(write_number(len(key) + i) + b"\1\0a" for i in range(20_000))
    with pytest.raises(DataLossError, match="longer than their block"):
        for _ in Table.of(_table(block + struct.pack("<II", 0, 1))).items():
            pass
