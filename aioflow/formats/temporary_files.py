"""Files that appear whole or not at all: written under another name beside the one that they get in the end.

A process that is killed leaves the other name behind, and the next writer takes it away. Which of them belong to a
writer that lives is told by a lock that each writer has on its own: it ends with the process, however that ends, and
with the processes that were forked from it meanwhile. Where there are no locks (some network file systems), nothing is
taken away; where an open file cannot be deleted (Windows), that tells as well. Files that others may refer to are held
by the same locks, by who refers to them and by who deletes them.

Everything here blocks on the disk: call it from a thread. A function with a `dir_fd` takes, with it, names of that
folder instead of paths, and follows no links there.
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

__all__ = [
    "TemporaryFile",
    "flush_directory",
    "has_writer",
    "held",
    "kept_file",
    "remove_abandoned",
    "replacing",
    "temporary_file",
    "write_atomically",
]

locks: Any = None  # where the system has none, as on Windows
with suppress(ImportError):
    locks = import_module("fcntl")


class TemporaryFile:
    """A new file, open for writing, locked, and under a name that tells what it is.

    Attributes:
        file: To write to.
        path: Its name.
    """

    def __init__(self, path: Path, file: BinaryIO, dir_fd: int | None = None) -> None:
        self.path = path
        self.file = file
        self._dir_fd = dir_fd

    def publish(self, final: Path) -> None:
        """Flush it to the disk and rename it. It stays locked until the end of the block that it was made by."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if locks is None:
            self.file.close()  # an open file cannot be renamed there
        os.replace(self.path, final, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)


@contextmanager
def temporary_file(path: Path, dir_fd: int | None = None) -> Iterator[TemporaryFile]:
    """A new file beside `path`, which is gone at the end of the block unless it was published by then."""
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
        with suppress(OSError):
            locks.flock(file, locks.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return TemporaryFile(temporary, file, dir_fd)
        file.close()  # before it was locked, somebody has taken it for an abandoned one


def has_writer(path: Path, dir_fd: int | None = None) -> bool | None:
    """Whether a process that lives has a file of `temporary_file` in its hands; None where that cannot be told."""
    if locks is None:
        return None
    try:
        # Locks of network file systems need one that may be written.
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
    """A block in which nobody else holds files of a directory, or nobody else holds them alone.

    Yields:
        Those files that are there and in nobody's hands; False where there are no locks to tell that.
    """
    with ExitStack() as stack:
        found = {}
        for name in names:
            try:
                mode = "r+b" if alone else "rb"
                file = stack.enter_context(open(directory / name, mode, opener=unblocking(relative_to(dir_fd))))
                if locks is None:
                    file.close()  # an open one could not be deleted
                    found[name] = False
                    continue
                locks.flock(file, (locks.LOCK_EX if alone else locks.LOCK_SH) | locks.LOCK_NB)
            except (BlockingIOError, FileNotFoundError):
                continue
            except OSError:
                found[name] = False
            else:
                if os.fstat(file.fileno()).st_nlink:  # otherwise it was deleted just now
                    found[name] = True
        yield found


def kept_file(path: Path) -> BinaryIO | None:
    """Hold a file until what this returns is closed: whoever would hold it alone finds that it is in use.

    Returns:
        The file, open for reading; None where somebody has it alone, about to delete it, where it is gone, and where
        there are no locks.
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
    """Delete the temporary files of writers that are no more.

    Args:
        names: A regular expression for the names that they were to get.
    """
    temporary = re.compile(rf"\.(?:{names})\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError):  # who may write into a directory may not list it
        for name in filter(temporary.fullmatch, names_in(directory, dir_fd)):
            with suppress(OSError):  # it is gone already, or in somebody's hands
                _remove(directory / name, dir_fd)


def _remove(path: Path, dir_fd: int | None) -> None:
    if locks is None:
        path.unlink()
        return
    with open(path, "r+b", opener=relative_to(dir_fd)) as file:
        locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
        os.unlink(path, dir_fd=dir_fd)


def write_atomically(path: Path, data: bytes, dir_fd: int | None = None) -> None:
    """Replace the file by `data`: after a crash it has the old contents or the new ones."""
    with replacing(path, dir_fd) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, dir_fd: int | None = None) -> Iterator[BinaryIO]:
    """A block that writes a file, which takes the place of `path` when the block ends without an error.

    Raises:
        InvalidArgumentError: there is something else than a file.
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
    """Whether there is a folder; or a device, whose name would be a file's from then on."""
    try:
        mode = os.stat(path, dir_fd=dir_fd, follow_symlinks=dir_fd is None).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISLNK(mode)


def flush_directory(path: Path, dir_fd: int | None = None) -> None:
    """Make renames in the directory lasting, where the system lets a directory be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems refuse it; the renames are ordered there
    finally:
        os.close(descriptor)
