"""Record sources: each has one open file and returns its (key, value) records in order. All calls block.

A source may be stopped inside a record (`stopping.checkpoint`) and continues there at the next call. A generator cannot
be resumed after an exception, so no source is one.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from io import BufferedReader, RawIOBase
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from aioflow.concurrency.stopping import checkpoint, reserve
from aioflow.errors import DataLossError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders, is_url
from aioflow.formats.files import file_errors, path_text, read_whole
from aioflow.formats.stores import store_of
from aioflow.formats.tfrecord import ByteStream, RecordFile, open_stream

KeyedRecord: TypeAlias = tuple[bytes, bytes]

_PIECE: Final = 1 << 18


class _File(Protocol):
    def close(self) -> object:
        """Close the file."""


T = TypeVar("T", bound=_File)


class RecordSource(Protocol):
    """The records of one work item."""

    def next(self) -> KeyedRecord | None:
        """Return the next record, or None at the end.

        Raises:
            OpError: the next record cannot be read.
        """

    def close(self) -> None:
        """Close the open file, if any."""


def opened(path: str, compression: str, folders: AllowedFolders) -> ByteStream:
    """Open a file, or an object of a store, for reading.

    Args:
        path: A path, or a URL that `fsspec` knows.
        compression: "", "GZIP" or "ZLIB".
        folders: The folders that it may be in.

    Raises:
        PermissionDeniedError: it is in none of the folders.
        OpError: as `open_stream`.
    """
    if is_url(path):
        store, name = store_of(path, folders)
        return open_stream(path, compression, file=store.open(name))
    return open_stream(folders.file(path), compression, folders.opener)


class _Raw(RawIOBase):
    """A stream as a raw file, whose lines a buffered reader finds."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        piece = self._stream.read1(len(target))
        target[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()


class IdentityRecord:
    """One record: the work item itself, as key and value."""

    def __init__(self, work: bytes) -> None:
        self._work: bytes | None = work

    def next(self) -> KeyedRecord | None:
        """Return the record at the first call, then None."""
        work, self._work = self._work, None
        return None if work is None else (work, work)

    def close(self) -> None:
        """Do nothing: there is no open file."""


class WholeFile:
    """One record: the name of a file as key, its contents as value."""

    def __init__(self, work: bytes, folders: AllowedFolders = ANYWHERE) -> None:
        self._work: bytes | None = work
        self._folders = folders

    def next(self) -> KeyedRecord | None:
        """Return the record at the first call, then None."""
        work = self._work
        if work is None:
            return None
        contents = read_whole(self._folders.file(path_text(work)), self._folders.opener)
        # Cleared only now: if the reading is stopped, the next call repeats it.
        self._work = None
        return work, contents

    def close(self) -> None:
        """Do nothing: there is no open file."""


class _Opening:
    """A source with an open file, closed by `close` or when the source is garbage-collected.

    At interpreter exit the file is closed too, unless a thread is reading it, perhaps from a pipe: closing it would
    wait for that thread.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._opened: _File | None = None

    def next(self) -> KeyedRecord | None:
        """Return the next record, or None at the end.

        Raises:
            OpError: the next record cannot be read.
        """
        with self._reading:
            return self._next()

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            # The finalizer would close the file a second time.
            self._closing.detach()
            self._opened.close()

    def _next(self) -> KeyedRecord | None:
        raise NotImplementedError

    def _kept(self, file: T) -> T:
        # A finalizer instead of the file's own destructor: if source and file become garbage together and the file is
        # collected first, it would issue a ResourceWarning.
        self._opened, self._closing = file, weakref.finalize(self, _close_unless_read, file, self._reading)
        return file


def _close_unless_read(file: _File, reading: threading.Lock) -> None:
    if reading.acquire(blocking=False):
        try:
            file.close()
        finally:
            reading.release()


class TextLines(_Opening):
    """The lines of a file after the first `skip`, without line ends, under "name:line", counted from one."""

    def __init__(self, work: bytes, skip: int, folders: AllowedFolders = ANYWHERE, compression: str = "") -> None:
        super().__init__()
        self._file: Any = None
        self._compression = compression
        self._folders = folders
        self._work = work
        self._path = path_text(work)
        self._skip = skip
        self._number = 0
        self._begun = bytearray()  # the beginning of a line that is not read completely yet

    def _next(self) -> KeyedRecord | None:
        with file_errors(self._path):
            if self._file is None:
                stream = opened(self._path, self._compression, self._folders)
                readable = stream if hasattr(stream, "readline") else BufferedReader(_Raw(stream))
                self._file = self._kept(readable)
            while (line := self._line()) is not None:
                self._number += 1
                if self._number > self._skip:
                    return b"%b:%d" % (self._work, self._number), line.removesuffix(b"\n").removesuffix(b"\r")
        return None

    def _line(self) -> bytes | None:
        line: bytes = self._file.readline(_PIECE)
        while len(line) == _PIECE and not line.endswith(b"\n"):
            # Kept in the source: if the read is stopped at `checkpoint`, the next call continues the line.
            self._begun += line
            reserve(len(self._begun))
            checkpoint()
            line = self._file.readline(_PIECE)
        if self._begun:
            line = bytes(self._begun) + line
            self._begun.clear()
        return line or None


class TFRecords(_Opening):
    """The records of a TFRecord file, under the key "name:byte"."""

    def __init__(self, work: bytes, compression: str, folders: AllowedFolders = ANYWHERE) -> None:
        super().__init__()
        self._folders = folders
        self._work = work
        self._compression = compression
        self._file: RecordFile | None = None

    def _next(self) -> KeyedRecord | None:
        if self._file is None:
            path = path_text(self._work)
            self._file = self._kept(RecordFile(path, stream=opened(path, self._compression, self._folders)))
        start = self._file.offset
        record = self._file.read()
        return None if record is None else (b"%b:%d" % (self._work, start), record)


class FixedLengthRecords(_Opening):
    """Records of `record` bytes between header and footer, under the key "name:number", counted from zero.

    Each record starts `hop` (or `record`) bytes after the last one. An incomplete record at the end is omitted.
    """

    def __init__(
        self,
        work: bytes,
        header: int,
        record: int,
        footer: int,
        hop: int,
        compression: str,
        folders: AllowedFolders = ANYWHERE,
    ) -> None:
        super().__init__()
        self._folders = folders
        self._stream: ByteStream | None = None
        self._work = work
        self._path = path_text(work)
        self._compression = compression
        self._size = record
        # A record is returned only once `footer` more bytes are read, so that the footer is not taken for a record.
        self._window_size = record + footer
        self._hop = hop or record
        self._skip = header
        self._window = bytearray()
        self._number = 0

    def _next(self) -> KeyedRecord | None:
        if self._stream is None:
            self._stream = self._kept(opened(self._path, self._compression, self._folders))
        if not self._fill(self._stream):
            return None
        found = b"%b:%d" % (self._work, self._number), bytes(self._window[: self._size])
        self._number += 1
        # If a hop exceeds the window, the rest of the way is skipped in the file.
        self._skip = max(0, self._hop - len(self._window))
        del self._window[: self._hop]
        return found

    def _fill(self, stream: ByteStream) -> bool:
        """Read until the window is full. Return False if the file ends before."""
        while self._skip:
            piece = self._read(stream, self._skip)
            if not piece:
                return False
            self._skip -= len(piece)
        reserve(self._window_size)
        while len(self._window) < self._window_size:
            piece = self._read(stream, self._window_size - len(self._window))
            if not piece:
                return False
            self._window += piece
        return True

    def _read(self, stream: ByteStream, size: int) -> bytes:
        checkpoint()
        try:
            with file_errors(self._path):
                return stream.read1(min(size, _PIECE))
        except (EOFError, zlib.error) as error:
            raise DataLossError(
                f"{self._path}: cannot be decompressed", expected="whole data", actual=str(error)
            ) from error
