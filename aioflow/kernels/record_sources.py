"""What readers read: one open file each, which gives (key, value) records in order. Everything here blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TypeAlias

from aioflow.errors import DataLossError
from aioflow.kernels.files import file_errors, path_text
from aioflow.kernels.io_files import read_whole
from aioflow.kernels.tfrecord import ByteStream, RecordFile, open_stream

__all__ = ["Record", "fixed_length_records", "identity_record", "text_lines", "tf_records", "whole_file"]

Record: TypeAlias = tuple[bytes, bytes]


def identity_record(work: bytes) -> Iterator[Record]:
    """The work item itself, as key and value."""
    yield work, work


def whole_file(work: bytes) -> Iterator[Record]:
    """The file's contents, under its name."""
    yield work, read_whole(path_text(work))


def text_lines(work: bytes, skip: int) -> Iterator[Record]:
    """The lines after the first `skip`, without their ends, under "name:line", counted from one."""
    path = path_text(work)
    with file_errors(path), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number > skip:
                yield b"%b:%d" % (work, number), line.removesuffix(b"\n").removesuffix(b"\r")


def tf_records(work: bytes, compression: str) -> Iterator[Record]:
    """The records of a TFRecord file, under "name:byte"."""
    file = RecordFile(path_text(work), compression)
    try:
        start = 0
        while (record := file.read()) is not None:
            yield b"%b:%d" % (work, start), record
            start = file.offset
    finally:
        file.close()


def fixed_length_records(
    work: bytes, header: int, record: int, footer: int, hop: int, compression: str
) -> Iterator[Record]:
    """Pieces of `record` bytes, each `hop` (or `record`) bytes after the last, between header and footer; under
    "name:number", counted from zero. A piece that is cut short at the end is left out.
    """
    path = path_text(work)
    stream = open_stream(path, compression)
    try:
        _read(stream, path, header)
        window, number = _read(stream, path, record + footer), 0
        while len(window) == record + footer:
            yield b"%b:%d" % (work, number), window[:record]
            number += 1
            step = hop or record
            _read(stream, path, step - len(window))
            rest = window[step:]
            window = rest + _read(stream, path, record + footer - len(rest))
    finally:
        stream.close()


def _read(stream: ByteStream, path: str, size: int) -> bytes:
    try:
        with file_errors(path):
            return stream.read(size) if size > 0 else b""
    except (EOFError, zlib.error) as error:
        raise DataLossError(f"{path}: cannot be decompressed", expected="whole data", actual=str(error)) from error
