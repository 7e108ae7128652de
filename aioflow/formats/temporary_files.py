"""Atomically written files: a file is written under a temporary name beside its final one, then renamed.

A killed process leaves its temporary file behind, and the next writer of that name removes it. Each writer holds a lock
on its temporary file, so that files of living writers are recognized. The lock ends with the process and with all
processes forked from it meanwhile. Without locks (some network file systems), nothing is removed. On Windows an open
file cannot be deleted, which serves as a lock. Files that others may refer to are protected by the same locks: readers
that refer to a file and processes that delete it hold one.

Everything here blocks on the disk: call it from a thread. A function with a `dir_fd` takes names in that folder instead
of paths, and follows no links there.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from aioflow.errors import InvalidArgumentError
from aioflow.formats.files import file_errors, names_in, relative_to, unblocking

locks: Any = None  # None if the system has no such locks, as on Windows
with suppress(ImportError):
    locks = import_module("fcntl")


class TemporaryFile:
    """A new file: locked, open for writing, and under a recognizable temporary name.

    Attributes:
        file: The file object to write to.
        path: The temporary name.
    """

    def __init__(self, path: Path, file: BinaryIO, dir_fd: int | None = None) -> None:
        self.path = path
        self.file = file
        self._dir_fd = dir_fd

    def publish(self, final: Path) -> None:
        """Flush the file to the disk and rename it. It stays locked until the end of the block of `temporary_file`."""
        self.file.flush()
        # Before the rename: otherwise a crash could leave the final name with incomplete contents.
        os.fsync(self.file.fileno())
        if locks is None:
            self.file.close()  # Windows cannot rename an open file
        os.replace(self.path, final, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)


@contextmanager
def temporary_file(path: Path, dir_fd: int | None = None) -> Iterator[TemporaryFile]:
    """Create a file beside `path`. It is deleted at the end of the block unless it was published."""
    temporary = _created(path, dir_fd)
    try:
        with temporary.file:
            yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary.path, dir_fd=dir_fd)


def _created(path: Path, dir_fd: int | None) -> TemporaryFile:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        file = open(temporary, "xb", opener=relative_to(dir_fd))  # noqa: SIM115 (the caller closes it)
        if locks is None:
            return TemporaryFile(temporary, file)
        # Where locks are not supported, the file stays unlocked and `remove_abandoned` deletes nothing.
        with suppress(OSError):
            locks.flock(file, locks.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return TemporaryFile(temporary, file, dir_fd)
        file.close()  # another writer removed it as abandoned before it was locked


def has_writer(path: Path, dir_fd: int | None = None) -> bool | None:
    """Return True if a living process has a file of `temporary_file` open.

    Returns:
        None if that is unknown: there are no locks, or the file cannot be opened.
    """
    if locks is None:
        return None
    try:
        # Network file systems require a writable file for an exclusive lock.
        with open(path, "r+b", opener=relative_to(dir_fd)) as file:
            locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


@contextmanager
def held(
    directory: Path, names: Iterable[str], *, alone: bool, dir_fd: int | None = None
) -> Iterator[Mapping[str, bool]]:
    """Lock files of a directory inside a block: exclusively if `alone`, otherwise shared.

    Args:
        directory: The directory, for paths.
        names: Names of the files.
        alone: Whether to lock exclusively, before a deletion.
        dir_fd: Descriptor of the directory, if names are relative to it.

    Yields:
        The names of the files that exist and that no other process has a conflicting lock on. The value is False if
        that cannot be established: there are no locks, or the file cannot be opened.
    """
    with ExitStack() as stack:
        found = {}
        for name in names:
            try:
                mode = "r+b" if alone else "rb"
                file = stack.enter_context(open(directory / name, mode, opener=unblocking(relative_to(dir_fd))))
                if locks is None:
                    file.close()  # otherwise it could not be deleted
                    found[name] = False
                    continue
                locks.flock(file, (locks.LOCK_EX if alone else locks.LOCK_SH) | locks.LOCK_NB)
            except (BlockingIOError, FileNotFoundError):
                continue
            except OSError:
                found[name] = False
            else:
                if os.fstat(file.fileno()).st_nlink:  # otherwise it was deleted before it was locked
                    found[name] = True
        yield found


def kept_file(path: Path) -> BinaryIO | None:
    """Protect a file from deletion with a shared lock, until the returned file is closed.

    Returns:
        The file, open for reading. None if it is missing, if another process has locked it for deletion, or if there
        are no locks.
    """
    if locks is None:
        return None
    with suppress(OSError), ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        locks.flock(file, locks.LOCK_SH | locks.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            stack.pop_all()
            return file
    return None


def remove_abandoned(directory: Path, names: str, dir_fd: int | None = None) -> None:
    """Delete the temporary files of writers that have ended.

    Args:
        directory: The directory, for paths.
        names: A regular expression for the final names of the files.
        dir_fd: Descriptor of the directory, if names are relative to it.
    """
    temporary = re.compile(rf"\.(?:{names})\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError):  # a directory may be writable without being listable
        for name in filter(temporary.fullmatch, names_in(directory, dir_fd)):
            with suppress(OSError):  # it is gone already, or locked
                _remove(directory / name, dir_fd)


def _remove(path: Path, dir_fd: int | None) -> None:
    if locks is None:
        path.unlink()
        return
    with open(path, "r+b", opener=relative_to(dir_fd)) as file:
        locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
        # Deleted under the lock: a writer that has just created the file waits for it in `_created`, and starts over.
        os.unlink(path, dir_fd=dir_fd)


def write_atomically(path: Path, data: bytes, dir_fd: int | None = None) -> None:
    """Replace the contents of a file: after a crash it has the old or the new ones.

    Raises:
        InvalidArgumentError: `path` exists and is not a file.
    """
    with replacing(path, dir_fd) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, dir_fd: int | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` when the block ends without an error.

    Raises:
        InvalidArgumentError: `path` exists and is not a file.
    """
    with file_errors(path):
        if _is_no_file(path, dir_fd):
            raise InvalidArgumentError("only a file can be replaced", expected="a file, or nothing", actual=str(path))
        remove_abandoned(path.parent, re.escape(path.name), dir_fd)
        with temporary_file(path, dir_fd) as temporary:
            yield temporary.file
            temporary.publish(path)
        flush_directory(path.parent, dir_fd)


def _is_no_file(path: Path, dir_fd: int | None) -> bool:
    """Return True if the path is a folder or a device."""
    # Renaming a file to the path of a device would replace the device by a regular file.
    try:
        mode = os.stat(path, dir_fd=dir_fd, follow_symlinks=dir_fd is None).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISLNK(mode)


def flush_directory(path: Path, dir_fd: int | None = None) -> None:
    """Make renames in a directory durable, if the system allows opening a directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems reject it; their renames are ordered
    finally:
        os.close(descriptor)
