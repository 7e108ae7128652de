"""TFRecord files: each record is its length, the length's checksum, the data, the data's checksum.

The checksums are CRC-32C (the Castagnoli polynomial), masked. A file may be compressed as a whole (gzip or zlib).
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from io import BufferedReader
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Final, Protocol

from aioflow.concurrency.stopping import checkpoint, reserve
from aioflow.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from aioflow.formats.checksum import masked_crc32c
from aioflow.formats.files import FileOpener, file_errors

# uint64 length and its CRC-32C, both little-endian; the data and its CRC-32C follow.
_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_CHUNK: Final = 1 << 18
# zlib reads and writes a gzip header instead of its own if 16 is added to the window bits.
_WINDOWS: Final = {"ZLIB": zlib.MAX_WBITS, "GZIP": zlib.MAX_WBITS + 16}


class ByteStream(Protocol):
    """The interface of a source of record files."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; fewer only at the end."""

    def read1(self, size: int, /) -> bytes:
        """Return at most `size` bytes, without waiting for all of them; no bytes only at the end."""

    def close(self) -> None:
        """Close the file."""


class _Inflated:
    """The contents of a compressed file: one zlib stream, or a sequence of gzip members."""

    def __init__(self, file: BufferedReader, window: int) -> None:
        self._file = file
        self._window = window
        self._inflater = zlib.decompressobj(window)
        self._begun = False
        self._ready = bytearray()

    def read(self, size: int, /) -> bytes:
        while len(self._ready) < size and self._inflate():
            pass
        return self._take(size)

    def read1(self, size: int, /) -> bytes:
        while not self._ready and self._inflate():
            pass
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._ready[:size])
        del self._ready[:size]
        return taken

    def _inflate(self) -> bool:
        """Decompress the next piece. Return False at the end of the data."""
        inflater = self._inflater
        # After a gzip member, the bytes beyond it begin the next; before that, those held back by the output limit.
        packed = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        packed = packed or self._file.read1(_CHUNK)
        if not packed:
            # An empty file is valid and has no records, but a stream that has begun must end.
            if self._begun and not inflater.eof:
                raise EOFError("the compressed data ends early")
            return False
        if inflater.eof:
            if self._window == zlib.MAX_WBITS:
                raise EOFError("there is data after the end of the compressed data")
            inflater = self._inflater = zlib.decompressobj(self._window)
        self._begun = True
        # The limit applies to the output: a few bytes may decompress to gigabytes.
        self._ready += inflater.decompress(packed, _CHUNK)
        return True

    def close(self) -> None:
        self._file.close()


def open_stream(
    path: str, compression: str = "", opener: FileOpener | None = None, file: BinaryIO | None = None
) -> ByteStream:
    """Open a file for reading, with decompression.

    Args:
        path: The file.
        compression: "", "GZIP" or "ZLIB".
        opener: Replaces `os.open`.
        file: The file, if it is open already. It is buffered, so that it has `read1`.

    Raises:
        NotFoundError, PermissionDeniedError, …: the file cannot be opened.
        InvalidArgumentError: unknown compression.
    """
    _check_compression(compression)
    with file_errors(path):
        found: Any = file or open(path, "rb", buffering=_CHUNK, opener=opener)  # noqa: SIM115 (the caller closes it)
    found = found if hasattr(found, "read1") else BufferedReader(found, _CHUNK)
    return _Inflated(found, _WINDOWS[compression]) if compression else found


def _size(stream: Any) -> int | None:
    """Return the size of an uncompressed regular file in bytes; None for others, such as a pipe."""
    if isinstance(stream, _Inflated):
        return None
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # an object of a store
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _check_compression(compression: str) -> None:
    if compression not in ("", "GZIP", "ZLIB"):
        raise InvalidArgumentError("unknown compression", expected="'', 'GZIP' or 'ZLIB'", actual=repr(compression))


class RecordFile:
    """A reader of the records of one file, in order, with their checksums verified.

    Args:
        path: The file, as for `open_stream`, whose errors the constructor raises.
        compression: As for `open_stream`.
        opener: As for `open_stream`.
        stream: The contents, if the file is open already.

    Attributes:
        offset: Position of the next record, in decompressed bytes.
    """

    def __init__(
        self,
        path: str,
        compression: str = "",
        opener: FileOpener | None = None,
        stream: ByteStream | None = None,
    ) -> None:
        self.path = path
        self.offset = 0
        self._stream = stream or open_stream(path, compression, opener)
        self._limit = _size(self._stream)
        self._buffer = b""  # bytes read ahead of the records; `_used` of them are consumed
        self._used = 0

    def read(self) -> bytes | None:
        """Return the next record, or None at the end.

        Raises:
            DataLossError: the record is truncated or altered; the reader cannot be used further.
        """
        start = self._used
        if len(self._buffer) < start + _HEADER.size and not self._fetch(_HEADER.size, may_end=True):
            return None
        # `_fetch` moves the unused bytes to the beginning of the buffer.
        start = self._used
        length, checksum = _HEADER.unpack_from(self._buffer, start)
        # The length has its own checksum, so that a corrupted one is detected before anything is read by it.
        self._check(self._buffer[start : start + 8], checksum, "length")
        size = _HEADER.size + length + _CHECKSUM.size
        if len(self._buffer) < start + size:
            self._check_limit(self.offset + size)
            self._fetch(size)
            start = self._used
        end = start + size - _CHECKSUM.size
        data = self._buffer[start + _HEADER.size : end]
        self._check(data, _CHECKSUM.unpack_from(self._buffer, end)[0], "data")
        self._used = end + _CHECKSUM.size
        self.offset += size
        return data

    def _check_limit(self, end: int) -> None:
        """Raise if a record would end beyond the file, so that a corrupted length does not read all of it."""
        if self._limit is not None and end > self._limit:
            raise self._lost("is truncated", f"{end} bytes", f"{self._limit} bytes")

    def _fetch(self, size: int, may_end: bool = False) -> bool:
        """Read pieces until the buffer has `size` unused bytes.

        Returns:
            False at the end of the file, if it `may_end` here.

        Raises:
            DataLossError: the file ends earlier, or cannot be decompressed.
        """
        # Memory is not allocated in advance, since a corrupted length may be huge. `read1` does not fill a whole piece,
        # so that a complete record does not wait for later ones.
        pieces = [self._buffer[self._used :]]
        found = len(pieces[0])
        try:
            with file_errors(self.path):
                while found < size and (piece := self._stream.read1(_CHUNK)):
                    pieces.append(piece)
                    found += len(piece)
                    reserve(found)
                    checkpoint()
        except (EOFError, zlib.error) as error:
            raise self._lost("cannot be decompressed", "whole data", error) from error
        finally:  # keep what was read, so that a stopped read can continue
            self._buffer, self._used = b"".join(pieces), 0
        if found < size and not (may_end and not found):
            raise self._lost("is truncated", f"{size} bytes", f"{found} bytes")
        return found > 0

    def _check(self, data: bytes, stored: int, what: str) -> None:
        if masked_crc32c(data) != stored:
            raise self._lost(
                f"is altered: the checksum of its {what} does not match",
                f"{stored:#010x}",
                f"{masked_crc32c(data):#010x}",
            )

    def _lost(self, what: str, expected: object, actual: object) -> DataLossError:
        return DataLossError(
            f"{self.path}: the record at byte {self.offset} {what}", expected=expected, actual=str(actual)
        )

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class TFRecordCompressionType:
    """The compression of a whole record file."""

    NONE: ClassVar[int] = 0
    ZLIB: ClassVar[int] = 1
    GZIP: ClassVar[int] = 2


_COMPRESSIONS: Final[dict[object, str]] = {
    None: "",
    0: "",
    1: "ZLIB",
    2: "GZIP",
    "": "",
    "ZLIB": "ZLIB",
    "GZIP": "GZIP",
}


class TFRecordOptions:
    """Options for writing and reading record files.

    Args:
        compression_type: "", "GZIP", "ZLIB", or a member of `TFRecordCompressionType`.
        compression_level: 0 to 9; None for zlib's default.

    Raises:
        InvalidArgumentError: unknown compression.
    """

    def __init__(self, compression_type: object = None, *, compression_level: int | None = None) -> None:
        if compression_type not in _COMPRESSIONS:
            raise InvalidArgumentError(
                "unknown compression", expected="'', 'GZIP' or 'ZLIB'", actual=repr(compression_type)
            )
        self.compression_type = _COMPRESSIONS[compression_type]
        self.compression_level = -1 if compression_level is None else compression_level

    @classmethod
    def get_compression_type_string(cls, options: object) -> str:
        """Return the compression of `options`: a `TFRecordOptions`, a type, a name, or None."""
        return cls.of(options).compression_type

    @classmethod
    def of(cls, options: object) -> TFRecordOptions:
        """Return `options` itself, or make one from a compression type."""
        return options if isinstance(options, TFRecordOptions) else cls(options)


def framed(data: bytes) -> bytes:
    """Return a record with its length and checksums, as it is stored in files."""
    length = struct.pack("<Q", len(data))
    checksums = [_CHECKSUM.pack(masked_crc32c(part)) for part in (length, data)]
    return b"".join((length, checksums[0], data, checksums[1]))


class TFRecordWriter:
    """A writer of records to a file, which is replaced. As a context manager, it closes the file.

    Writing blocks: call it from a thread if an event loop must not be blocked.

    Args:
        path: The file.
        options: A `TFRecordOptions` or the name of a compression.

    Raises:
        InvalidArgumentError: unknown compression.
        NotFoundError, PermissionDeniedError, …: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], options: object = None) -> None:
        chosen = TFRecordOptions.of(options)
        self._path = os.fspath(path)
        with file_errors(self._path):
            self._file: BinaryIO | None = open(self._path, "wb", buffering=_CHUNK)  # noqa: SIM115 (closed by `close`)
        self._packer: Any = None
        if chosen.compression_type:
            window = _WINDOWS[chosen.compression_type]
            self._packer = zlib.compressobj(chosen.compression_level, zlib.DEFLATED, window)

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append a record.

        Raises:
            FailedPreconditionError: the writer is closed.
        """
        # A memoryview of any item size becomes plain bytes, whose length is that of the data.
        self._put(framed(record if isinstance(record, bytes) else bytes(memoryview(record))))

    def flush(self) -> None:
        """Pass all data written so far to the operating system.

        Raises:
            FailedPreconditionError: the writer is closed.
        """
        file = self._open()
        if self._packer is not None:
            # A sync flush ends at a byte boundary, so a reader can decompress all that was written so far.
            self._put(self._packer.flush(zlib.Z_SYNC_FLUSH), packed=True)
        with file_errors(self._path):
            file.flush()

    def close(self) -> None:
        """Finish and close the file. Idempotent."""
        if self._file is None:
            return
        try:
            if self._packer is not None:
                self._put(self._packer.flush(), packed=True)
        finally:
            file, self._file = self._file, None
            with file_errors(self._path):
                file.close()

    def _open(self) -> BinaryIO:
        if self._file is None:
            raise FailedPreconditionError("the writer is closed", expected="an open writer", actual=self._path)
        return self._file

    def _put(self, data: bytes, packed: bool = False) -> None:
        file = self._open()
        with file_errors(self._path):
            file.write(data if packed or self._packer is None else self._packer.compress(data))

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def tf_record_iterator(path: str | os.PathLike[str], options: object = None) -> Iterator[bytes]:
    """Yield the records of a file, in order.

    Reading blocks: iterate in a thread if an event loop must not be blocked.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: unknown compression.
        DataLossError: a record is truncated or altered.
    """
    file = RecordFile(os.fspath(path), TFRecordOptions.get_compression_type_string(options))
    try:
        while (record := file.read()) is not None:
            yield record
    finally:
        file.close()
