"""Where checkpoints are kept: a folder of this machine, or one of a store that `fsspec` reaches by a URL.

Of a store little is asked, so that any will do: an object appears under its name when all of it has been written, or it
is no harm that a part of it does, since nothing refers to it yet. Only `put` must replace a small object at once, which
object stores do. A URL of a file (`file:///folder/model`) is a path.

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
from aioflow.release import install_command

__all__ = ["Folder", "Store", "StoredFile", "Upload", "is_url", "joined", "local_path", "store_at", "store_of"]

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
        file: To write to.
    """

    file: BinaryIO

    def flush(self) -> None:
        """All is written: in a folder of this machine, have it on the disk, so that `commit` only renames the file."""

    def commit(self) -> None:
        """All is written: let it appear under its name."""


class Store(Protocol):
    """One folder with files."""

    def path(self, name: str) -> str:
        """What a file is called in messages, and in full."""

    def read(self, name: str) -> bytes:
        """A small file. Raises NotFoundError."""

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file: after a crash it has the old contents or the new ones."""

    def open(self, name: str) -> BinaryIO:
        """A file, open for reading. Raises NotFoundError."""

    def creating(self, name: str) -> Any:
        """`with store.creating(name) as upload:` An `Upload`; unless it is committed there, nothing of it stays."""

    def staging(self, name: str, data: bytes) -> AbstractContextManager[Upload]:
        """`with store.staging(name, data) as upload:` Like `put` at `upload.commit()`, but a folder of this machine has
        room for it from the beginning of the block.
        """

    def size(self, name: str) -> int | None:
        """How many bytes a file has; None where there is no such file."""

    def modified(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970; None where there is none, or that is not known."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def names(self) -> list[str]:
        """Names of the files, sorted; none where there is no such folder."""

    def remove_unfinished(self, names: str) -> None:
        """Delete what killed writers have left of files whose names match, where it is certain that they were."""

    def held(self, names: Iterable[str], *, alone: bool) -> AbstractContextManager[Mapping[str, bool]]:
        """A block in which files do not disappear (or, `alone`, in which nobody makes sure that they do not).

        Yields:
            Those that are there, and that nobody holds alone (or at all); False where that cannot be told.
        """


class StoredFile:
    """A file of a store, for those who only read it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open it for reading. Raises NotFoundError."""
        return self._store.open(self._name)

    def __str__(self) -> str:
        return self._store.path(self._name)


def store_of(path: str | os.PathLike[str], folders: AllowedFolders = ANYWHERE) -> tuple[Store, str]:
    """The folder of a file, and the file's name in it.

    Args:
        folders: Where the files of that folder may be.

    Raises:
        PermissionDeniedError: not there.
        UnimplementedError: `fsspec`, or what it needs for this kind of URL, is not installed.
    """
    text = os.fspath(path)
    if is_url(text):
        folders.check_url(text)
        folder, _, name = text.rpartition("/")
        return store_at(folder), name
    local = local_path(text)
    return Folder(Path(folders.file(str(local.parent), text)), folders), local.name


def store_at(folder: str | os.PathLike[str]) -> Store:
    """A folder. Raises as `store_of`."""
    text = os.fspath(folder)
    return _Remote(text.rstrip("/")) if is_url(text) else Folder(local_path(text))


def joined(folder: str | os.PathLike[str], name: str) -> str:
    """The full name of a file; `name` may be one already."""
    text = os.fspath(folder)
    if is_url(name):
        return name
    return f"{text.rstrip('/')}/{name}" if is_url(text) else str(local_path(text) / local_path(name))


# -- this machine -----------------------------------------------------------------------------------------------------


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
        flush_directory(self._final.parent, self._dir_fd)


class Folder:
    """A `Store` on this machine."""

    def __init__(self, path: Path, folders: AllowedFolders = ANYWHERE) -> None:
        self._path = path
        self._folders = folders  # a link in this one may lead elsewhere

    def path(self, name: str) -> str:
        return str(self._path / name)

    @contextmanager
    def _entry(self, name: str = "", *, make: bool = False) -> Iterator[tuple[Path, int | None]]:
        """Name a file for the system: by its path, or by its name and the descriptor of the folder that it is in."""
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
        """Rename a file, which replaces another one, and have that on the disk. Raises NotFoundError."""
        with self._entry(name) as (file, dir_fd):
            os.replace(file, file.with_name(new), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            flush_directory(file.parent, dir_fd)

    def has_writer(self, name: str) -> bool | None:
        """Whether a living process is writing a file of `creating`; None where that cannot be told."""
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
        if not (files := list(names)):  # the folder may be missing
            yield {}
            return
        with self._entry() as (folder, dir_fd), held(folder, files, alone=alone, dir_fd=dir_fd) as found:
            yield found


# -- elsewhere --------------------------------------------------------------------------------------------------------


class _RemoteUpload:
    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file = file
        self._path = path
        self.done = False

    def flush(self) -> None:
        """Only `commit` makes it last."""

    def commit(self) -> None:
        with _errors(self._path):
            self.file.close()
        self.done = True


class _Put:
    """An upload of a small file that is made at once when it is committed."""

    def __init__(self, store: Store, name: str, data: bytes) -> None:
        self.file: BinaryIO = BytesIO(data)
        self._put = partial(store.put, name, data)

    def flush(self) -> None:
        """Only `commit` makes it last."""

    def commit(self) -> None:
        self._put()


class _Remote:
    """A `Store` by `fsspec`."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _errors(url):
            try:
                self._system, self._folder = _fsspec().core.url_to_fs(url)
            except ValueError as error:
                raise InvalidArgumentError(str(error), expected="a URL that fsspec knows", actual=url) from error

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _at(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        with _errors(self.path(name)):
            data: bytes = self._system.cat_file(self._at(name))
            return data

    def put(self, name: str, data: bytes) -> None:
        with _errors(self.path(name)):
            try:
                self._system.pipe_file(self._at(name), data)
            except FileNotFoundError:  # a store that has folders
                self._system.makedirs(self._folder, exist_ok=True)
                self._system.pipe_file(self._at(name), data)

    def open(self, name: str) -> BinaryIO:
        with _errors(self.path(name)):
            file: BinaryIO = self._system.open(self._at(name), "rb")
            return file

    @contextmanager
    def creating(self, name: str) -> Iterator[Upload]:
        with _errors(self.path(name)):
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

    def _drop(self, file: Any, name: str) -> None:
        """What was begun is of no use. That it cannot be taken away is no error beside the one that is on its way."""
        with suppress(Exception):
            file.close()
        with suppress(Exception):
            self._system.rm_file(self._at(name))

    def size(self, name: str) -> int | None:
        found = self._info(name)
        return None if found is None else int(found["size"])

    def modified(self, name: str) -> float | None:
        with _errors(self.path(name)):
            try:
                return float(self._system.modified(self._at(name)).timestamp())
            except (FileNotFoundError, NotImplementedError):
                return None

    def _info(self, name: str) -> dict[str, Any] | None:
        with _errors(self.path(name)):
            try:
                found: dict[str, Any] = self._system.info(self._at(name))
            except FileNotFoundError:
                return None
            return found

    def remove(self, name: str) -> None:
        with _errors(self.path(name)), suppress(FileNotFoundError):
            self._system.rm_file(self._at(name))

    def names(self) -> list[str]:
        with _errors(self._url):
            self._system.invalidate_cache(self._folder)
            try:
                found = self._system.ls(self._folder, detail=False)
            except FileNotFoundError:
                return []
            return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def remove_unfinished(self, names: str) -> None:
        """There is nothing to tell whether their writers live."""

    def held(self, names: Iterable[str], *, alone: bool) -> AbstractContextManager[Mapping[str, bool]]:
        return nullcontext(dict.fromkeys(names, False))  # there are no locks


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise UnimplementedError(
            f"stores are reached by fsspec, which is not installed: {install_command('fsspec')}",
            expected="fsspec",
            actual=str(error),
        ) from error
    return fsspec


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn what a store says of a file into the error of the matching code, which names it."""
    try:
        yield
    except OpError:
        raise
    except ImportError as error:
        raise UnimplementedError(f"{path} cannot be reached: {error}", expected="its package", actual="none") from error
    except tuple(_KINDS) as error:  # without a number, mostly
        kind = next(kind for known, kind in _KINDS.items() if isinstance(error, known))
        raise kind(f"{str(error) or type(error).__name__}: {path}") from error
    except OSError:
        with file_errors(path):
            raise
    except Exception as error:
        raise UnknownError(f"{type(error).__name__}: {error}: {path}") from error
