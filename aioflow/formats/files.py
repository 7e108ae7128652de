"""Whole files: reading and writing piece by piece, with typed errors for those of the operating system."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, BinaryIO, Final, TypeAlias

from aioflow.concurrency.stopping import blocks, checkpoint, reserve
from aioflow.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

FileOpener: TypeAlias = Callable[[str, int], int]  # like the `opener` of `open`

PIECE: Final = 1 << 20  # bytes read or written at a time

# TensorFlow's codes, except for EFBIG: TensorFlow maps it to OutOfRange, its code for the end of input.
_KINDS: Final[dict[int, type[OpError]]] = {
    errno.ENOENT: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOTDIR: FailedPreconditionError,
    errno.ENOTEMPTY: FailedPreconditionError,
    errno.EBUSY: FailedPreconditionError,
    errno.ETXTBSY: FailedPreconditionError,
    errno.ENXIO: NotFoundError,
    errno.ENODEV: NotFoundError,
    errno.EINVAL: InvalidArgumentError,
    errno.ESPIPE: InvalidArgumentError,
    errno.EILSEQ: InvalidArgumentError,
    errno.ELOOP: InvalidArgumentError,
    errno.ENAMETOOLONG: InvalidArgumentError,
    errno.ENOSPC: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.ENOMEM: ResourceExhaustedError,
    errno.EMFILE: ResourceExhaustedError,
    errno.ENFILE: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
    errno.ESTALE: AbortedError,
    errno.EIO: DataLossError,
}


@contextmanager
def file_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert errors of the operating system to aioflow's error of the matching code, which names the file.

    Raises:
        InvalidArgumentError: the name has a NUL byte, which no file name can contain.
    """
    if "\0" in os.fspath(path):
        raise InvalidArgumentError("not a file name", expected="no NUL byte", actual=repr(path))
    try:
        yield
    except OpError:  # an OpError may also be an OSError
        raise
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, UnknownError)
        raise kind(f"{error.strerror or error}: {error.filename or path}") from error


def relative_to(dir_fd: int | None) -> FileOpener:
    """Return an opener of names in a folder that follows no links; for None, an ordinary opener of any path."""
    no_link: int = 0 if dir_fd is None else os.O_NOFOLLOW

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | no_link, 0o666, dir_fd=dir_fd)

    return opener


def names_in(folder: str | os.PathLike[str], dir_fd: int | None = None) -> list[str]:
    """List a folder. Raise OSError if that fails.

    With `dir_fd`, list the folder of that descriptor, which need not be open for reading.
    """
    if dir_fd is None:
        return os.listdir(folder)
    descriptor = os.open(os.curdir, os.O_RDONLY, dir_fd=dir_fd)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def unblocking(opener: FileOpener) -> FileOpener:
    """Return an opener that does not wait for the other end of a pipe."""
    flag: int = getattr(os, "O_NONBLOCK", 0)
    return lambda path, flags: opener(path, flags | flag)


def open_file(path: str | os.PathLike[str], opener: FileOpener = os.open) -> BinaryIO:
    """Open a regular file for reading.

    Other kinds of files are rejected: opening a pipe would block, and a device may never end.

    Args:
        path: The file.
        opener: Opens it instead of `os.open`.

    Raises:
        FailedPreconditionError: it is a folder, a pipe, a socket or a device.
        NotFoundError, PermissionDeniedError, …: it cannot be read.
    """
    with file_errors(path):
        file = open(path, "rb", opener=unblocking(opener))  # noqa: SIM115 (the caller closes it)
        # Checked once it is open: before that, the name could come to mean another file.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise FailedPreconditionError(f"{os.fspath(path)} is no file", expected="a file", actual="something else")
        return file


def check_private(path: str | os.PathLike[str], status: os.stat_result | None = None) -> None:
    """Reject a file with a secret if other users may read or write it, as ssh does.

    A file of another user, such as root, may be readable by its group, so that this user can read it at all.

    Args:
        path: The file.
        status: Status of the file, if it is open. A pipe is not checked.

    Raises:
        InvalidArgumentError: its mode is too open; the error has the command that corrects it.
        NotFoundError, PermissionDeniedError, …: its status cannot be read.
    """
    if os.name != "posix":
        return
    with file_errors(path):
        status = status or os.stat(path)
    own = status.st_uid == os.geteuid()
    # 0o077 is any access by the group and others; 0o037 leaves the group the right to read.
    if stat.S_ISREG(status.st_mode) and status.st_mode & (0o077 if own else 0o037):
        raise InvalidArgumentError(
            f"other users may read or write {os.fspath(path)}, which has a secret",
            expected=f"chmod {'600' if own else '640'} {os.fspath(path)}",
            actual=f"mode {stat.S_IMODE(status.st_mode):03o}",
        )


def path_text(name: bytes) -> str:
    """Return a file's name as a string for Python's functions.

    Raises:
        InvalidArgumentError: it has a NUL byte, which no file name can contain.
    """
    if b"\0" in name:
        raise InvalidArgumentError("not a file name", expected="no NUL byte", actual=name)
    return name.decode(errors="surrogateescape")


def read_whole(path: str, opener: FileOpener | None = None) -> bytes:
    """Return the contents of a file. It is read piece by piece, since it may be a device that never ends.

    Args:
        path: The file.
        opener: Opens it instead of `os.open`.

    Raises:
        NotFoundError, PermissionDeniedError, …: it cannot be read.
        ResourceExhaustedError: it is larger than a value may be.
    """
    contents = BytesIO()
    with file_errors(path), open(path, "rb", buffering=0, opener=opener) as file:
        # The pieces are large, so a buffer below them would only add a copy.
        while piece := file.read(PIECE):
            reserve(contents.tell() + len(piece))
            contents.write(piece)
            checkpoint()
    return contents.getvalue()


def read_into(file: BinaryIO, target: memoryview) -> int:
    """Fill the bytes of `target`. Return their number, which is lower only at the end of the file.

    One `readinto` of a raw file, or of a store's, may return fewer.
    """
    opened: Any = file
    count = 0
    while count < len(target) and (got := opened.readinto(target[count:])):
        count += got
    return count


def read_up_to(file: BinaryIO, size: int) -> bytes:
    """Return the next `size` bytes, or fewer at the end of the file; see `read_into`."""
    parts: list[bytes] = []
    while size > 0 and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_whole(path: str, contents: bytes, opener: FileOpener) -> None:
    """Write or replace a file, piece by piece.

    Args:
        path: The file.
        contents: The new contents.
        opener: Opens it.

    Raises:
        PermissionDeniedError, FailedPreconditionError, …: it cannot be written.
    """
    with file_errors(path), open(path, "wb", opener=opener) as file:
        for part in blocks(len(contents), PIECE):
            file.write(memoryview(contents)[part])
