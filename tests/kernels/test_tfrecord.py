"""CRC-32C and record files: published check values, damage at every byte, compression."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import aioflow as af
from aioflow import errors
from aioflow.formats.checksum import masked_crc32c

RECORDS = [b"", b"one", b"two" * 300, bytes(range(256)) * 5]


def crc32c(data: bytes) -> int:
    """Return the checksum without the mask."""
    crc = (masked_crc32c(data) - 0xA282EAD8) % 2**32
    return (crc << 15 | crc >> 17) % 2**32


def test_crc32c_matches_published_check_values() -> None:
    """Compare with RFC 3720, B.4, and with the check value of the CRC catalogues."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(reversed(range(32)))) == 0x113FDB5C
    assert crc32c(b"") == 0


def write(path: Path, options: object = None) -> bytes:
    with af.io.TFRecordWriter(path, options) as writer:
        for record in RECORDS:
            writer.write(record)
    return path.read_bytes()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", af.io.TFRecordCompressionType.GZIP])
def test_written_records_are_read_back(tmp_path: Path, compression: object) -> None:
    options = af.io.TFRecordOptions(compression)
    data = write(tmp_path / "r", options)
    assert list(af.io.tf_record_iterator(tmp_path / "r", options)) == RECORDS
    plain = write(tmp_path / "p")
    if options.compression_type:
        unpack = gzip.decompress if options.compression_type == "GZIP" else zlib.decompress
        assert unpack(data) == plain


def test_every_truncation_and_changed_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with af.io.TFRecordWriter(path) as writer:
        for record in (b"first", b"second"):
            writer.write(record)
    data = path.read_bytes()
    # A file may end at a record's end: 12 bytes of header, 5 of data, 4 of checksum.
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
def test_damaged_compression_is_detected(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "r"
    data = write(path, compression)
    path.write_bytes(data[:-9])
    with pytest.raises(errors.DataLossError):
        list(af.io.tf_record_iterator(path, compression))
    path.write_bytes(b"no such thing")
    with pytest.raises(errors.DataLossError):
        list(af.io.tf_record_iterator(path, compression))


def test_concatenated_gzip_members_are_read(tmp_path: Path) -> None:
    data = write(tmp_path / "r", "GZIP")
    (tmp_path / "r").write_bytes(data + data)
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == RECORDS * 2
    (tmp_path / "r").write_bytes(b"")
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == []


def test_records_may_cross_read_chunks(tmp_path: Path) -> None:
    """Use sizes around 256 KiB, the size of a chunk, so that headers, data and checksums are all split."""
    records = [bytes([i % 251]) * size for i, size in enumerate([1, *range((1 << 18) - 40, (1 << 18) + 3), 1 << 20, 0])]
    for compression in ("", "GZIP"):
        with af.io.TFRecordWriter(tmp_path / "r", compression) as writer:
            for record in records:
                writer.write(record)
        assert list(af.io.tf_record_iterator(tmp_path / "r", compression)) == records


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_available_record_is_read_without_waiting_for_the_next(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writers = ThreadPoolExecutor(1)
    opening = writers.submit(af.io.TFRecordWriter, path, compression)
    records = af.io.tf_record_iterator(path, compression)
    first = ThreadPoolExecutor(1).submit(next, records)
    with opening.result(5) as writer:
        writer.write(b"first")
        writer.flush()
        assert first.result(5) == b"first"
        writer.write(b"second")
    assert list(records) == [b"second"]


@pytest.mark.parametrize("make", [bytearray, memoryview])
def test_writer_accepts_bytes_like_objects_only(
    tmp_path: Path, make: Callable[[bytes], bytearray | memoryview]
) -> None:
    with af.io.TFRecordWriter(tmp_path / "r") as writer:
        writer.write(make(b"record"))
        with pytest.raises(TypeError):
            writer.write(3)  # type: ignore[arg-type]
    assert list(af.io.tf_record_iterator(tmp_path / "r")) == [b"record"]


def test_forged_length_allocates_no_memory(tmp_path: Path) -> None:
    length = (2**62).to_bytes(8, "little")
    raw = length + masked_crc32c(length).to_bytes(4, "little") + b"x"
    for compression, packed in (("", raw), ("ZLIB", zlib.compress(raw)), ("GZIP", gzip.compress(raw))):
        (tmp_path / "r").write_bytes(packed)
        with pytest.raises(errors.DataLossError):
            list(af.io.tf_record_iterator(tmp_path / "r", compression))


def test_forged_length_does_not_read_the_rest_of_the_file(tmp_path: Path) -> None:
    length = (2**62).to_bytes(8, "little")
    (tmp_path / "r").write_bytes(length + masked_crc32c(length).to_bytes(4, "little") + bytes(1 << 24))
    tracemalloc.start()
    with pytest.raises(errors.DataLossError):
        list(af.io.tf_record_iterator(tmp_path / "r"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_writer_and_reader_raise_typed_errors(tmp_path: Path) -> None:
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
    with pytest.raises(errors.FailedPreconditionError):
        writer.flush()
    assert list(af.io.tf_record_iterator(tmp_path / "r", "GZIP")) == [b"a"]
    assert af.io.TFRecordOptions.get_compression_type_string(None) == ""
