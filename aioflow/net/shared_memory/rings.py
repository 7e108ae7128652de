"""Rings: a page of each end that the other reads, by which exported memory is returned without a message."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from contextlib import suppress
from typing import Final

import numpy as np

from aioflow.errors import DataLossError, OpError, UnavailableError
from aioflow.memory.mapping import mapped
from aioflow.memory.segments import NAME, TRAILER, Segment
from aioflow.memory.values import Array

# ── access to the memory of another process, which may name any file descriptor of any process ────────────────────────
#
# A file is only opened once it is known to be of the expected kind: it is located (`O_PATH`), examined, and then
# opened. So a name that leads to a pipe, a device or another program's file causes a refusal and no other effect.


_SHRINK: Final = 0x2  # F_SEAL_SHRINK
_MOST: Final = 2**31 - 1


class _Mapped(Array):
    """Mapped bytes as an array subclass, which NumPy keeps as the base of arrays over it.

    NumPy collapses the bases of plain arrays, past the arrays in between. It also looks through a memoryview, to memory
    below that counts as writable although it is not.
    """


class Opened:
    """Mapped memory of another process.

    Attributes:
        bytes: The whole mapping. Arrays over it keep it mapped.
        file: Device, inode and size of the file.
    """

    __slots__ = ("bytes", "file")

    def __init__(self, memory: memoryview, file: tuple[int, ...]) -> None:
        self.file = file
        self.bytes: Array = np.frombuffer(memory, np.uint8).view(_Mapped)


class Process:
    """Another process of this user on this host, or this one.

    Args:
        number: The process id that the peer has sent.

    Raises:
        OSError: there is no such process here, or it belongs to another user.
    """

    def __init__(self, number: int) -> None:
        if not 0 < number <= _MOST:
            raise FileNotFoundError(f"no process has the number {number}")
        self._files = os.open(f"/proc/{number}/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, fd: int, size: int, *, own: bool = False) -> Opened:
        """Map a file of the process.

        Args:
            fd: The file's descriptor in that process.
            size: Expected size of the file in bytes.
            own: Whether to map the file privately for writing. The other process does not see the writes: the system
                copies a page when it is first written to.

        Raises:
            UnavailableError: there is no such file; the process may have ended.
            DataLossError: the file is not of a kind that may be mapped.
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
        """Open no more files."""
        if self._files >= 0:
            os.close(self._files)
            self._files = -1

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # `__init__` has failed
            self.close()


def _mapped(found: int, size: int, own: bool) -> Opened:
    if sys.platform != "linux":
        raise OSError("there are no sealed files in memory")
    import fcntl  # does not exist on every platform

    place = f"/proc/self/fd/{found}"
    state = os.fstat(found)
    if not (stat.S_ISREG(state.st_mode) and os.readlink(place).startswith(f"/memfd:{NAME}")):
        raise _refusal("a file in memory", os.readlink(place))
    if state.st_uid != os.geteuid():
        raise _refusal(f"a file of user {os.geteuid()}", state.st_uid)
    file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A read beyond the end of a mapped file kills the process (SIGBUS): so the file must not be able to shrink, nor
        # run out of pages, as files with huge pages may.
        seals = 0
        with suppress(OSError):  # not a memory file in spite of its name
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        if not seals & _SHRINK:
            raise _refusal("a file that cannot shrink", "one that can")
        if os.fstatvfs(file).f_bsize != mmap.PAGESIZE:
            raise _refusal(f"pages of {mmap.PAGESIZE} bytes", os.fstatvfs(file).f_bsize)
        if os.fstat(file).st_size != size:
            raise _refusal(f"{size} bytes", os.fstat(file).st_size)
        return Opened(mapped(file, size, writable=own, private=own), (state.st_dev, state.st_ino, size))
    finally:
        # The mapping does not need the descriptor.
        os.close(file)


def _refusal(expected: object, actual: object) -> OpError:
    return DataLossError("not memory that can be lent", expected=expected, actual=actual)


# ── rings ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A byte is written by one process and read by the other, and its meaning does not depend on timing. The peer's bytes
# are trusted only about the tensors exported to that peer.


NONCE_BYTES: Final = 32
SLOTS: Final = 256
# A turn shares its byte with the SPOILED bit.
TURNS: Final = 127
SPOILED: Final = 128
# The layout: nonce (32 bytes), ready (1), padding up to 64, arrived (one byte a slot), returned (one byte a slot).
_READY: Final = NONCE_BYTES
_ARRIVED: Final = 64
_RETURNED: Final = _ARRIVED + SLOTS
_BYTES: Final = _RETURNED + SLOTS
# In Python, n − n mod −t is the next multiple of t.
FILE_BYTES: Final = _BYTES - _BYTES % -TRAILER + TRAILER


class Ring:
    """The own ring of this end.

    Args:
        nonce: The first bytes of the ring.

    Raises:
        OSError: the system does not provide the memory.
    """

    def __init__(self, nonce: bytes) -> None:
        self._segment = Segment(_BYTES)
        self._segment.reserve(_BYTES)  # allocate the pages now, so that later writes cannot fail
        self._bytes = np.frombuffer(self._segment.memory, np.uint8)
        self._bytes[:NONCE_BYTES] = np.frombuffer(nonce, np.uint8)

    @property
    def fd(self) -> int:
        """File descriptor of the ring."""
        return self._segment.fd

    def ready(self) -> None:
        """Declare that this end can reach the other's memory."""
        self._bytes[_READY] = 1

    def arrived(self, slot: int, turn: int) -> None:
        """Acknowledge the arrival of an imported tensor."""
        self._bytes[_ARRIVED + slot] = turn

    def returned(self, slot: int, turn: int) -> None:
        """Return an imported tensor. Does nothing in a forked child, which shares the page."""
        if self._segment.is_mine:
            self._bytes[_RETURNED + slot] = turn


class PeerRing:
    """The other end's ring."""

    def __init__(self, opened: Opened) -> None:
        self._bytes = opened.bytes

    def is_of(self, nonce: str) -> bool:
        """Return True if this is the ring that was announced with the nonce."""
        return self._bytes[:NONCE_BYTES].tobytes().hex() == nonce

    @property
    def ready(self) -> bool:
        """True if the other end can reach this end's memory."""
        return bool(self._bytes[_READY] == 1)

    def arrived(self, slot: int) -> int:
        """Return the turn of the last tensor that arrived in a slot."""
        return int(self._bytes[_ARRIVED + slot])

    def returned(self, slot: int) -> int:
        """Return the turn of the last tensor returned in a slot, plus SPOILED if a forked child may hold it."""
        return int(self._bytes[_RETURNED + slot])
