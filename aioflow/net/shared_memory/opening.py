"""Opening the memory of another process, which may name any file descriptor of any process.

Nothing is done to a file before it is known to be of the kind that is meant: it is found (`O_PATH`), looked at, and
only then opened. So a name that leads to a pipe, a device or somebody's file has no effect but a refusal.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
from contextlib import suppress
from typing import Any, Final

import numpy as np

from aioflow.errors import DataLossError, OpError, UnavailableError
from aioflow.graph.arrays import Array
from aioflow.work.mapping import mapped
from aioflow.work.segments import NAME

__all__ = ["Opened", "Process"]

_SHRINK: Final = 0x2  # F_SEAL_SHRINK
_MOST: Final = 2**31 - 1


class _Mapped(np.ndarray[Any, Any]):
    """Bytes that arrays are made over, and those again have for their base.

    NumPy looks through a plain array, past the arrays in between, and through a memoryview, to memory below it that
    counts as writable though it is not.
    """


class Opened:
    """Memory of another process.

    Attributes:
        bytes: All of it. Arrays over it keep it mapped.
        file: Which file it is, and how long.
    """

    __slots__ = ("bytes", "file")

    def __init__(self, memory: memoryview, file: tuple[int, ...]) -> None:
        self.file = file
        self.bytes: Array = np.frombuffer(memory, np.uint8).view(_Mapped)


class Process:
    """Another process of this user on this host, or this one.

    Args:
        number: As it says.

    Raises:
        OSError: there is none of that number here, or it is another user's.
    """

    def __init__(self, number: int) -> None:
        if not 0 < number <= _MOST:
            raise FileNotFoundError(f"no process has the number {number}")
        self._files = os.open(f"/proc/{number}/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, fd: int, size: int, *, own: bool = False) -> Opened:
        """Map a file of its.

        Args:
            size: Its bytes.
            own: Whether it is to be written to here, which the other process does not see: the system copies a page
                when it is first written to.

        Raises:
            UnavailableError: there is no such file; the process may have ended.
            DataLossError: it is not one that may be mapped.
        """
        try:
            found = os.open(str(fd), os.O_PATH | os.O_CLOEXEC, dir_fd=self._files)
        except OSError as error:
            raise UnavailableError(f"memory that was lent cannot be reached: {error}") from error
        try:
            return _mapped(found, size, own)
        except OSError as error:
            raise UnavailableError(f"memory that was lent cannot be mapped: {error}") from error
        finally:
            os.close(found)

    def close(self) -> None:
        """Nothing more is opened."""
        if self._files >= 0:
            os.close(self._files)
            self._files = -1

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # it was never there
            self.close()


def _mapped(found: int, size: int, own: bool) -> Opened:
    if sys.platform != "linux":
        raise OSError("there are no sealed files in memory")
    import fcntl  # not on every platform

    place = f"/proc/self/fd/{found}"
    state = os.fstat(found)
    if not (stat.S_ISREG(state.st_mode) and os.readlink(place).startswith(f"/memfd:{NAME}")):
        raise _refusal("a file in memory", os.readlink(place))
    if state.st_uid != os.geteuid():
        raise _refusal(f"a file of user {os.geteuid()}", state.st_uid)
    file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Who reads beyond the end of a file is killed: it must not shrink, nor want for pages, as huge ones may.
        seals = 0
        with suppress(OSError):  # it is a file that only has such a name
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        if not seals & _SHRINK:
            raise _refusal("a file that cannot shrink", "one that can")
        if os.fstatvfs(file).f_bsize != mmap.PAGESIZE:
            raise _refusal(f"pages of {mmap.PAGESIZE} bytes", os.fstatvfs(file).f_bsize)
        if os.fstat(file).st_size != size:
            raise _refusal(f"{size} bytes", os.fstat(file).st_size)
        return Opened(mapped(file, size, writable=own, private=own), (state.st_dev, state.st_ino, size))
    finally:
        os.close(file)


def _refusal(expected: Any, actual: Any) -> OpError:
    return DataLossError("not memory that can be lent", expected=expected, actual=actual)
