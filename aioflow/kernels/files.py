"""Files from kernels: work on them is done in threads, and what the operating system reports becomes a typed error."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from aioflow.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnknownError,
)

__all__ = ["file_errors", "in_thread", "path_text"]

T = TypeVar("T")

_KINDS: Final[dict[int, type[OpError]]] = {
    errno.ENOENT: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOTDIR: FailedPreconditionError,
    errno.EINVAL: InvalidArgumentError,
    errno.ENAMETOOLONG: InvalidArgumentError,
    errno.ENOSPC: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.EMFILE: ResourceExhaustedError,
    errno.ENFILE: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
}


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Turn an OSError about `path` into the error of the matching code."""
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, UnknownError)
        raise kind(f"{path}: {error.strerror or error}") from error


def path_text(name: bytes) -> str:
    """A file's name as Python takes it.

    Raises:
        InvalidArgumentError: it has a NUL byte, which no file name can have.
    """
    if b"\0" in name:
        raise InvalidArgumentError("not a file name", expected="no NUL byte", actual=name)
    return name.decode(errors="surrogateescape")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)` in a thread. If the caller is cancelled, it still waits until the thread is done.

    So nothing of a step touches a file after the step has ended.
    """
    job = asyncio.get_running_loop().run_in_executor(None, partial(function, *args))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # looked at, so that the loop does not report it as forgotten
        raise
