"""TensorFlow's interface to files: local ones, and those of stores that `fsspec` reaches by a URL.

Everything here blocks, like `open`: in a coroutine, call it in a thread (`asyncio.to_thread`) if the disk or the
network may be slow.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from stat import S_ISDIR
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
)
from aioflow.formats.allowed_folders import ANYWHERE
from aioflow.formats.files import file_errors
from aioflow.formats.stores import file_system, is_url, local_path, store_errors

__all__ = [
    "FileStatistics",
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_MODES: Final = ("r", "w", "a", "r+", "w+", "a+")
_PIECE: Final = 1 << 20  # bytes copied at a time
_READABLE: Final = ("r", "r+", "w+", "a+")


class FileStatistics(NamedTuple):
    """The properties of a file or folder.

    Attributes:
        length: Size in bytes.
        mtime_nsec: Time of the last change, in nanoseconds since 1970; 0 if the store does not know it.
        is_directory: Whether it is a folder.
    """

    length: int
    mtime_nsec: int
    is_directory: bool


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class GFile:
    """A file that is opened by the first call that reads or writes it: `with GFile(name, "w") as file:`.

    Reading and writing have positions of their own. The file of a store is published when it is closed.

    Args:
        name: Its path or URL.
        mode: "r", "w", "a", "r+", "w+" or "a+"; with "b" it reads bytes, otherwise text in UTF-8.

    Raises:
        InvalidArgumentError: there is no such mode.
    """

    def __init__(self, name: PathLike, mode: str = "r") -> None:
        plain = mode.replace("b", "")
        if plain not in _MODES:
            raise InvalidArgumentError("no such mode", expected=f"one of {_MODES}, with or without 'b'", actual=mode)
        self._name = name
        self._mode = mode
        self._plain = plain
        self._binary = "b" in mode
        self._reader: BinaryIO | None = None
        self._writer: BinaryIO | None = None

    @property
    def name(self) -> PathLike:
        """The path or URL."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode."""
        return self._mode

    def size(self) -> int:
        """Return the size in bytes. Raises NotFoundError if the file does not exist."""
        return stat(self._name).length

    def read(self, n: int = -1) -> Any:
        """Return the next `n` bytes, as text or bytes; by default all to the end.

        Raises:
            NotFoundError: the file does not exist.
            PermissionDeniedError: the file is open for writing only.
        """
        with _errors(self._name):
            return self._value(self._reading().read(n))

    def readline(self) -> Any:
        """Return the next line with its end; at the end of the file, an empty one. Raises like `read`."""
        with _errors(self._name):
            return self._value(self._reading().readline())

    def readlines(self) -> list[Any]:
        """Return the lines that follow. Raises like `read`."""
        return list(self)

    def write(self, file_content: str | bytes) -> None:
        """Write text or bytes.

        Raises:
            NotFoundError: the folder does not exist.
            PermissionDeniedError: the file is open for reading only.
        """
        data = file_content.encode() if isinstance(file_content, str) else bytes(file_content)
        with _errors(self._name):
            self._writing().write(data)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Set the position for reading, in bytes. `position` is an older name of `offset`. Raises like `read`."""
        if (offset is None) == (position is None):
            raise TypeError("seek takes one position: expected offset= or position=, got both or none")
        if whence not in (0, 1, 2):
            raise InvalidArgumentError("no such origin of a position", expected="0, 1 or 2", actual=whence)
        with _errors(self._name):
            self._reading().seek(offset if offset is not None else position or 0, whence)

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes, for reading if the file is open for that."""
        return (self._reading() if self._plain in _READABLE else self._writing()).tell()

    def flush(self) -> None:
        """Pass what was written to the operating system. A store receives it with `close`."""
        if self._writer is not None:
            with _errors(self._name):
                self._writer.flush()

    def close(self) -> None:
        """Close the file. Idempotent; the next call that reads or writes opens it again."""
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        with _errors(self._name):
            if reader is not None:
                reader.close()
            if writer is not None:
                writer.close()

    def __del__(self) -> None:
        # TensorFlow 1 programs write `GFile(name).read()`, for which Python's files would warn.
        with suppress(Exception):
            self.close()

    def __enter__(self) -> GFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next line."""
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def next(self) -> Any:
        """Return the next line. Raises StopIteration at the end."""
        return self.__next__()

    def _value(self, data: bytes) -> Any:
        return data if self._binary else data.decode()

    def _reading(self) -> BinaryIO:
        if self._plain not in _READABLE:
            raise PermissionDeniedError(f"{_text(self._name)} is not open for reading", expected="r", actual=self._mode)
        self.flush()
        if self._reader is None:
            self._reader = _opened(self._name, "rb")
        return self._reader

    def _writing(self) -> BinaryIO:
        if self._plain == "r":
            raise PermissionDeniedError(f"{_text(self._name)} is not open for writing", expected="w", actual=self._mode)
        if self._writer is None:
            self._writer = _opened(self._name, "ab" if self._plain[0] == "a" else "wb")
        return self._writer


def _opened(name: PathLike, mode: str) -> BinaryIO:
    path = _text(name)
    with _errors(name):
        if is_url(path):
            system, at = file_system(path)
            remote: BinaryIO = system.open(at, mode)
            return remote
        if "r" in mode and os.path.isdir(local_path(path)):
            raise FailedPreconditionError(f"{path} is a folder", expected="a file", actual="a folder")
        # Buffered, for lines; closed by `GFile.close`.
        return open(local_path(path), mode)  # type: ignore[return-value]  # a binary mode


# ── functions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def exists(path: PathLike) -> bool:
    """Return whether there is a file or folder of this name."""
    return _found(path) is not None


def isdir(path: PathLike) -> bool:
    """Return whether it is a folder."""
    found = _found(path)
    return found is not None and found.is_directory


def stat(path: PathLike) -> FileStatistics:
    """Return size, time and kind of a file or folder.

    Raises:
        NotFoundError: it does not exist.
        FailedPreconditionError: a part of the path before the last is a file.
    """
    name = _text(path)
    with _errors(name):
        if is_url(name):
            return _remote_statistics(*file_system(name))
        status = os.stat(local_path(name))
    return FileStatistics(status.st_size, status.st_mtime_ns, S_ISDIR(status.st_mode))


def _found(path: PathLike) -> FileStatistics | None:
    try:
        return stat(path)
    except (NotFoundError, FailedPreconditionError):
        return None


def _remote_statistics(system: Any, path: str) -> FileStatistics:
    found = system.info(path)
    changed = 0
    with suppress(NotImplementedError, FileNotFoundError, KeyError):  # many stores know no time of a folder
        changed = int(system.modified(path).timestamp() * 1e9)
    return FileStatistics(int(found["size"] or 0), changed, found["type"] == "directory")


def listdir(path: PathLike) -> list[str]:
    """Return the names in a folder, sorted. Raises NotFoundError if there is no such folder."""
    name = _text(path)
    if not isdir(name):
        raise NotFoundError(f"no such folder: {name}")
    with _errors(name):
        if not is_url(name):
            return sorted(os.listdir(local_path(name)))
        system, at = file_system(name)
        system.invalidate_cache(at)
        return sorted(each.rstrip("/").rpartition("/")[2] for each in system.ls(at, detail=False))


def glob(pattern: PathLike | Iterable[PathLike]) -> list[str]:
    """Return the files and folders that match a pattern, or one of several, sorted for each pattern.

    `*` matches any characters but "/", `?` one character, and `[…]` one of those listed, or with `[^…]` none of them.
    """
    if not isinstance(pattern, str | bytes | os.PathLike):
        return [found for each in pattern for found in glob(each)]
    name = _text(pattern)
    plain = re.sub(r"\\(.)", r"[\1]", name).replace("[^", "[!")
    with _errors(name):
        if not is_url(name):
            scheme = "file://" if "://" in plain else ""
            return sorted(scheme + found for found in ANYWHERE.matching(str(local_path(plain)) if scheme else plain))
        system, at = file_system(plain)
        return sorted(system.unstrip_protocol(found) for found in system.glob(at))


def mkdir(path: PathLike) -> None:
    """Create a folder, unless there is a file or folder of this name.

    Raises:
        NotFoundError: the folder that would have it does not exist.
    """
    with suppress(AlreadyExistsError):
        _on(path, lambda name: os.mkdir(name), lambda system, at: system.mkdir(at, create_parents=False))


def makedirs(path: PathLike) -> None:
    """Create a folder and those above it, unless they exist. Raises FailedPreconditionError if one is a file."""
    name = _text(path)
    try:
        _on(name, lambda at: os.makedirs(at, exist_ok=True), lambda system, at: system.makedirs(at, exist_ok=True))
    except AlreadyExistsError as error:
        raise FailedPreconditionError(f"{name} is a file", expected="a folder", actual="a file") from error


def copy(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Copy a file.

    Raises:
        NotFoundError: the file does not exist.
        AlreadyExistsError: `dst` exists, and `overwrite` is not set.
        InvalidArgumentError: `src` is a folder.
        FailedPreconditionError: `dst` is a folder.
    """
    if stat(src).is_directory:
        raise InvalidArgumentError(f"{_text(src)} is a folder", expected="a file", actual="a folder")
    _require_free(dst, overwrite)
    with GFile(src, "rb") as source, GFile(dst, "wb") as target:
        target.write(b"")  # an empty file is created, too
        while data := source.read(_PIECE):
            target.write(data)


def rename(src: PathLike, dst: PathLike, overwrite: bool = False) -> None:
    """Rename or move a file, or a local folder. Raises like `copy`."""
    stat(src)
    _require_free(dst, overwrite)
    source, target = _text(src), _text(dst)
    if not is_url(source) and not is_url(target):
        with _errors(target):
            os.replace(local_path(source), local_path(target))
    elif is_url(source) and is_url(target) and not isdir(source):
        (system, at), (_, to) = file_system(source), file_system(target)
        with _errors(target):
            system.mv(at, to)
    else:
        copy(source, target, overwrite)
        remove(source)


def remove(path: PathLike) -> None:
    """Delete a file.

    Raises:
        NotFoundError: the file does not exist.
        FailedPreconditionError: it is a folder.
    """
    if stat(path).is_directory:
        raise FailedPreconditionError(f"{_text(path)} is a folder", expected="a file", actual="a folder")
    _on(path, lambda name: os.unlink(name), lambda system, at: system.rm_file(at))


def rmtree(path: PathLike) -> None:
    """Delete a folder with everything in it, or a file. Raises NotFoundError if it does not exist."""
    name = _text(path)
    if not isdir(name):
        remove(name)
        return
    _on(name, lambda at: shutil.rmtree(at), lambda system, at: system.rm(at, recursive=True))


def join(path: PathLike, *paths: PathLike) -> str:
    """Join parts of a path, those of a URL by "/"."""
    first, rest = _text(path), [_text(each) for each in paths]
    if not is_url(first):
        return os.path.join(first, *rest)
    return "/".join([first.rstrip("/"), *(part.strip("/") for part in rest)])


def walk(
    top: PathLike, topdown: bool = True, onerror: Callable[[OpError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below `top` with the names of its folders and of its files.

    Args:
        top: The folder.
        topdown: Whether a folder comes before those in it.
        onerror: Called with the error of a folder that cannot be listed; by default it is skipped.
    """
    folder = _text(top)
    try:
        names = listdir(folder)
    except OpError as error:
        if onerror is not None:
            onerror(error)
        return
    folders = [name for name in names if isdir(join(folder, name))]
    here = (folder, folders, [name for name in names if name not in folders])
    if topdown:
        yield here
    for name in folders:
        yield from walk(join(folder, name), topdown, onerror)
    if not topdown:
        yield here


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(path: PathLike) -> str:
    return os.fsdecode(path)


def _errors(path: PathLike) -> Any:
    """Return the context manager that translates the errors of an access to a path."""
    name = _text(path)
    return store_errors(name) if is_url(name) else file_errors(name)


def _on(path: PathLike, local: Callable[[Any], object], remote: Callable[[Any, str], object]) -> None:
    name = _text(path)
    with _errors(name):
        if is_url(name):
            remote(*file_system(name))
        else:
            local(local_path(name))


def _require_free(path: PathLike, overwrite: bool) -> None:
    found = _found(path)
    if found is None:
        return
    if not overwrite:
        raise AlreadyExistsError(f"{_text(path)} exists", expected="no such file, or overwrite=True")
    if found.is_directory:
        raise FailedPreconditionError(f"{_text(path)} is a folder", expected="a file", actual="a folder")
