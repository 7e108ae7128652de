"""CRC-32C and record files: published check values, damage at every byte, compression."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow import errors
from aioflow.kernels.crc32c import crc32c, masked_crc32c

RECORDS = [b"", b"one", b"two" * 300, bytes(range(256)) * 5]


def by_bits(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_published_check_values() -> None:
    """From RFC 3720, B.4, and the value that every catalogue of checksums gives."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 255), st.randoms(use_true_random=False))
def test_both_ways_to_sum_agree_with_the_definition(size: int, first: int, random: object) -> None:
    data = bytes((first + i * i * 7) % 256 for i in range(size))
    assert crc32c(data) == crc32c(memoryview(data)) == by_bits(data)


def test_the_mask_is_a_rotation_and_a_constant() -> None:
    crc = crc32c(b"abc")
    assert (masked_crc32c(b"abc") - 0xA282EAD8) % 2**32 == (crc >> 15 | crc << 17) % 2**32


def write(path: Path, options: object = None) -> bytes:
    with af.io.TFRecordWriter(path, options) as writer:
        for record in RECORDS:
            writer.write(record)
    return path.read_bytes()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", af.io.TFRecordCompressionType.GZIP])
def test_records_come_back(tmp_path: Path, compression: object) -> None:
    options = af.io.TFRecordOptions(compression)
    data = write(tmp_path / "r", options)
    assert list(af.io.tf_record_iterator(tmp_path / "r", options)) == RECORDS
    plain = write(tmp_path / "p")
    if options.compression_type:
        unpack = gzip.decompress if options.compression_type == "GZIP" else zlib.decompress
        assert unpack(data) == plain


def test_every_truncation_and_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with af.io.TFRecordWriter(path) as writer:
        for record in (b"first", b"second"):
            writer.write(record)
    data = path.read_bytes()
    ends = {0, 12 + 5 + 4}
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size in ends:
            list(af.io.tf_record_iterator(path))
        else:
            with pytest.raises(errors.DataLossError):
                list(af.io.tf_record_iterator(path))
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(errors.DataLossError):
            list(af.io.tf_record_iterator(path))


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_damaged_compression_is_found(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "r"
    data = write(path, compression)
    path.write_bytes(data[:-9])
    with pytest.raises(errors.DataLossError):
        list(af.io.tf_record_iterator(path, compression))
    path.write_bytes(b"no such thing")
    with pytest.raises(errors.DataLossError):
        list(af.io.tf_record_iterator(path, compression))


def test_gzip_members_one_after_another(tmp_path: Path) -> None:
    data = write(tmp_path / "r", "GZIP")
    (tmp_path / "r").write_bytes(data + data)
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == RECORDS * 2
    (tmp_path / "r").write_bytes(b"")
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == []


def test_a_made_up_length_takes_no_memory(tmp_path: Path) -> None:
    length = (2**62).to_bytes(8, "little")
    raw = length + masked_crc32c(length).to_bytes(4, "little") + b"x"
    for compression, packed in (("", raw), ("ZLIB", zlib.compress(raw)), ("GZIP", gzip.compress(raw))):
        (tmp_path / "r").write_bytes(packed)
        with pytest.raises(errors.DataLossError):
            list(af.io.tf_record_iterator(tmp_path / "r", compression))


def test_writers_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        af.io.TFRecordOptions("LZ4")
    with pytest.raises(errors.NotFoundError):
        af.io.TFRecordWriter(tmp_path / "missing" / "r")
    with pytest.raises(errors.NotFoundError):
        list(af.io.tf_record_iterator(tmp_path / "missing"))
    writer = af.io.TFRecordWriter(tmp_path / "r", "GZIP")
    writer.write(b"a")
    writer.flush()
    writer.close()
    writer.close()
    with pytest.raises(errors.FailedPreconditionError):
        writer.write(b"b")
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == [b"a"]
    assert af.io.TFRecordOptions.get_compression_type_string(None) == ""
