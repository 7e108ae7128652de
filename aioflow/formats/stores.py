"""The storage of checkpoints: a local folder, or a folder of a store that `fsspec` reaches by a URL.

A store has to meet few requirements. An object may become visible before it is complete, since nothing refers to it
yet. Only `put` must replace a small object atomically, which object stores do. A URL of a file (`file:///folder/model`)
is treated as a path.

Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnimplementedError,
    UnknownError,
)
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders, is_url, local_path
from aioflow.formats.files import file_errors, names_in, open_file
from aioflow.formats.temporary_files import (
    TemporaryFile,
    flush_directory,
    has_writer,
    held,
    remove_abandoned,
    temporary_file,
    write_atomically,
)
from aioflow.loading.later import not_installed

__all__ = [
    "Folder",
    "Store",
    "StoredFile",
    "Upload",
    "file_system",
    "is_url",
    "joined",
    "local_path",
    "store_at",
    "store_errors",
    "store_of",
]

_KINDS: Final[dict[type[Exception], type[OpError]]] = {
    FileNotFoundError: NotFoundError,
    FileExistsError: AlreadyExistsError,
    PermissionError: PermissionDeniedError,
    IsADirectoryError: FailedPreconditionError,
    NotADirectoryError: FailedPreconditionError,
}


class Upload(Protocol):
    """A new file that is being written.

    Attributes:
        file: The file object to write to.
    """

    file: BinaryIO

    def flush(self) -> None:
        """Flush the complete file to the disk if it is local, so that `commit` only renames it."""

    def commit(self) -> None:
        """Publish the complete file under its name."""


class Store(Protocol):
    """One folder with files."""

    def path(self, name: str) -> str:
        """Return the full name of a file, also for messages."""

    def read(self, name: str) -> bytes:
        """Read a small file.

        Raises:
            NotFoundError: there is no such file.
        """

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file atomically: after a crash it has the old or the new contents."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            NotFoundError: there is no such file.
        """

    def creating(self, name: str) -> AbstractContextManager[Upload]:
        """Return a context manager that yields an `Upload`. An uncommitted file is discarded at its end."""

    def staging(self, name: str, data: bytes) -> AbstractContextManager[Upload]:
        """Return a context manager that yields an `Upload` of `data`, which acts like `put` at `commit`.

        A local folder allocates the space at the start of the block.
        """

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""

    def modified(self, name: str) -> float | None:
        """Return the modification time in seconds since 1970, or None if the file is missing or the time unknown."""

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""

    def names(self) -> list[str]:
        """Return the names in the folder, sorted; an empty list if there is no such folder."""

    def remove_unfinished(self, names: str) -> None:
        """Delete the temporary files of writers that have certainly ended.

        `names` is a regular expression for the final names of the files.
        """

    def held(self, names: Iterable[str], *, alone: bool) -> AbstractContextManager[Mapping[str, bool]]:
        """Lock files against deletion (shared), or for deletion (`alone`), inside a block.

        Yields:
            The names of the files, without those that are missing or locked by another process. The value is True if
            the file is locked, and False if it cannot be locked; a store without locks does not check the names.
        """


class StoredFile:
    """A file of a store, for reading."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file for reading, whatever the `mode`, which is there for the signature of `Path.open`.

        Raises:
            NotFoundError: there is no such file.
        """
        return self._store.open(self._name)

    def __str__(self) -> str:
        return self._store.path(self._name)


def store_of(path: str | os.PathLike[str], folders: AllowedFolders = ANYWHERE) -> tuple[Store, str]:
    """Return the folder of a file, and the name of the file in it.

    Args:
        path: A path, or a URL.
        folders: The folders that the file may be in.

    Raises:
        PermissionDeniedError: the file is not in an allowed folder.
        InvalidArgumentError: `fsspec` does not know the kind of URL.
        UnimplementedError: `fsspec`, or the package that it needs for this kind of URL, is not installed.
    """
    text = os.fspath(path)
    if is_url(text):
        folders.check_url(text)
        folder, _, name = text.rpartition("/")
        return store_at(folder), name
    local = local_path(text)
    return Folder(Path(folders.file(str(local.parent), text)), folders), local.name


def store_at(folder: str | os.PathLike[str]) -> Store:
    """Return the store for a folder, given by a path or a URL.

    Raises:
        InvalidArgumentError: `fsspec` does not know the kind of URL.
        UnimplementedError: `fsspec`, or the package that it needs for this kind of URL, is not installed.
    """
    text = os.fspath(folder)
    return _Remote(text.rstrip("/")) if is_url(text) else Folder(local_path(text))


def joined(folder: str | os.PathLike[str], name: str) -> str:
    """Return the full name of a file in a folder; `name` may be a full name already."""
    text = os.fspath(folder)
    if is_url(name):
        return name
    return f"{text.rstrip('/')}/{name}" if is_url(text) else str(local_path(text) / local_path(name))


# ── local folders ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _FolderUpload:
    def __init__(self, temporary: TemporaryFile, final: Path, dir_fd: int | None) -> None:
        self._temporary = temporary
        self._final = final
        self._dir_fd = dir_fd
        self.file: BinaryIO = temporary.file

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def commit(self) -> None:
        self._temporary.publish(self._final)
        # The new name survives a crash only once the directory, too, is on the disk.
        flush_directory(self._final.parent, self._dir_fd)


class Folder:
    """A `Store` in the local file system."""

    def __init__(self, path: Path, folders: AllowedFolders = ANYWHERE) -> None:
        self._path = path
        self._folders = folders  # a link in this folder may lead outside of it

    def path(self, name: str) -> str:
        return str(self._path / name)

    @contextmanager
    def _entry(self, name: str = "", *, make: bool = False) -> Iterator[tuple[Path, int | None]]:
        """Yield the path of a file, or its name and a descriptor of its folder if access is restricted."""
        path = self._path / name
        with file_errors(path), self._folders.folder(str(self._path), make=make) as dir_fd:
            yield path if dir_fd is None else Path(name), dir_fd

    def read(self, name: str) -> bytes:
        with file_errors(self._path / name), self.open(name) as file:
            return file.read()

    def put(self, name: str, data: bytes) -> None:
        with self._entry(name) as (file, dir_fd):
            write_atomically(file, data, dir_fd)

    def open(self, name: str) -> BinaryIO:
        with file_errors(self._path / name):
            return open_file(self._folders.file(self.path(name)), self._folders.opener)

    @contextmanager
    def creating(self, name: str) -> Iterator[Upload]:
        with self._entry(name, make=True) as (file, dir_fd), temporary_file(file, dir_fd) as temporary:
            yield _FolderUpload(temporary, file, dir_fd)

    @contextmanager
    def staging(self, name: str, data: bytes) -> Iterator[Upload]:
        with self.creating(name) as upload:
            upload.file.write(data)
            upload.flush()
            yield upload

    def size(self, name: str) -> int | None:
        status = self._status(name)
        return None if status is None else status.st_size

    def modified(self, name: str) -> float | None:
        status = self._status(name)
        return None if status is None else status.st_mtime

    def _status(self, name: str) -> os.stat_result | None:
        with file_errors(self._path / name):
            # In restricted folders, `file` resolves links and checks the result. A link that appears afterwards must
            # not be followed.
            folder, last = os.path.split(self._folders.file(self.path(name)))
            try:
                with self._folders.folder(folder) as dir_fd:
                    file = self._path / name if dir_fd is None else last
                    return os.stat(file, dir_fd=dir_fd, follow_symlinks=dir_fd is None)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def remove(self, name: str) -> None:
        with suppress(NotFoundError), self._entry(name) as (file, dir_fd):
            os.unlink(file, dir_fd=dir_fd)

    def rename(self, name: str, new: str) -> None:
        """Rename a file, replacing an existing one, and flush the rename to the disk.

        Raises:
            NotFoundError: there is no such file.
        """
        with self._entry(name) as (file, dir_fd):
            os.replace(file, file.with_name(new), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            flush_directory(file.parent, dir_fd)

    def has_writer(self, name: str) -> bool | None:
        """Return True if a living process is writing a file of `creating`; None if the file or locks are missing."""
        with self._entry(name) as (file, dir_fd):
            return has_writer(file, dir_fd)

    def names(self) -> list[str]:
        with file_errors(self._path):
            try:
                with self._folders.folder(str(self._path)) as dir_fd:
                    return sorted(names_in(self._path, dir_fd))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def remove_unfinished(self, names: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._folders.folder(str(self._path)) as dir_fd:
            remove_abandoned(self._path if dir_fd is None else Path(), names, dir_fd)

    @contextmanager
    def held(self, names: Iterable[str], *, alone: bool) -> Iterator[Mapping[str, bool]]:
        if not (files := list(names)):  # with no files to lock, the folder may be missing
            yield {}
            return
        with self._entry() as (folder, dir_fd), held(folder, files, alone=alone, dir_fd=dir_fd) as found:
            yield found


# ── stores ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _RemoteUpload:
    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file = file
        self._path = path
        self.done = False

    def flush(self) -> None:
        """Do nothing: only `commit` makes the file durable."""

    def commit(self) -> None:
        with store_errors(self._path):
            # In a store, closing the file is what publishes it.
            self.file.close()
        self.done = True


class _Put:
    """An upload of a small file, written as a whole at `commit`."""

    def __init__(self, store: Store, name: str, data: bytes) -> None:
        self.file: BinaryIO = BytesIO(data)
        self._put = partial(store.put, name, data)

    def flush(self) -> None:
        """Do nothing: only `commit` makes the file durable."""

    def commit(self) -> None:
        self._put()


class _Remote:
    """A `Store` over `fsspec`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._system, self._folder = file_system(url)

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        with store_errors(self.path(name)):
            data: bytes = self._system.cat_file(self._at(name))
            return data

    def put(self, name: str, data: bytes) -> None:
        with store_errors(self.path(name)):
            try:
                self._system.pipe_file(self._at(name), data)
            except FileNotFoundError:  # the store has real folders, and this one is missing
                self._system.makedirs(self._folder, exist_ok=True)
                self._system.pipe_file(self._at(name), data)

    def open(self, name: str) -> BinaryIO:
        with store_errors(self.path(name)):
            file: BinaryIO = self._system.open(self._at(name), "rb")
            return file

    @contextmanager
    def creating(self, name: str) -> Iterator[Upload]:
        with store_errors(self.path(name)):
            try:
                file = self._system.open(self._at(name), "wb")
            except FileNotFoundError:
                self._system.makedirs(self._folder, exist_ok=True)
                file = self._system.open(self._at(name), "wb")
            upload = _RemoteUpload(file, self.path(name))
            try:
                yield upload
            finally:
                if not upload.done:
                    self._drop(file, name)

    def staging(self, name: str, data: bytes) -> AbstractContextManager[Upload]:
        return nullcontext(_Put(self, name, data))

    def _drop(self, file: BinaryIO, name: str) -> None:
        """Discard an incomplete upload. Errors are ignored: the original error is being raised."""
        # Closing may publish the incomplete object, so it is deleted only afterwards.
        with suppress(Exception):
            file.close()
        with suppress(Exception):
            self._system.rm_file(self._at(name))

    def size(self, name: str) -> int | None:
        found = self._info(name)
        return None if found is None else int(found["size"])

    def modified(self, name: str) -> float | None:
        with store_errors(self.path(name)):
            try:
                return float(self._system.modified(self._at(name)).timestamp())
            except (FileNotFoundError, NotImplementedError):
                return None

    def _info(self, name: str) -> dict[str, Any] | None:
        with store_errors(self.path(name)):
            try:
                found: dict[str, Any] = self._system.info(self._at(name))
            except FileNotFoundError:
                return None
            return found

    def remove(self, name: str) -> None:
        with store_errors(self.path(name)), suppress(FileNotFoundError):
            self._system.rm_file(self._at(name))

    def names(self) -> list[str]:
        with store_errors(self._url):
            # Another process may have written files since the last listing.
            self._system.invalidate_cache(self._folder)
            try:
                found = self._system.ls(self._folder, detail=False)
            except FileNotFoundError:
                return []
            return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def remove_unfinished(self, names: str) -> None:
        """Do nothing: a store does not show whether a writer is alive."""

    def held(self, names: Iterable[str], *, alone: bool) -> AbstractContextManager[Mapping[str, bool]]:
        return nullcontext(dict.fromkeys(names, False))  # stores have no locks


def file_system(url: str) -> tuple[Any, str]:
    """Return the `fsspec` file system of a URL, and the path in it.

    Raises:
        InvalidArgumentError: fsspec does not know the scheme.
        UnimplementedError: fsspec, or the package for the store, is not installed.
    """
    with store_errors(url):
        try:
            system, path = _fsspec().core.url_to_fs(url)
        except ValueError as error:
            raise InvalidArgumentError(str(error), expected="a URL that fsspec knows", actual=url) from error
    return system, path


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise not_installed("a store with a URL", "fsspec", error) from error
    return fsspec


@contextmanager
def store_errors(path: str) -> Iterator[None]:
    """Translate an error of a store into the matching `OpError`, which names the file."""
    try:
        yield
    except OpError:
        raise
    except ImportError as error:
        raise UnimplementedError(f"{path} cannot be reached: {error}", expected="its package", actual="none") from error
    except tuple(_KINDS) as error:  # mostly without errno
        kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
        raise kind(f"{str(error) or type(error).__name__}: {path}") from error
    except OSError:
        with file_errors(path):
            raise
    except Exception as error:
        raise UnknownError(f"{type(error).__name__}: {error}: {path}") from error
