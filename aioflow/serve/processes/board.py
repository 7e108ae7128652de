"""What the processes of a service tell one another all the time, without asking: a page of memory that all map.

Each has a line there and writes nowhere else, so there is no lock. A process that stands still is known by its beat,
which goes on as long as its event loop turns.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from typing import Final

from aioflow.work.mapping import mapped

__all__ = ["FRESH", "Board", "new_board"]

_LINE: Final = struct.Struct("dddd")  # when it last beat, its connections, whether it is ready, its number
FRESH: Final = 1.0  # seconds after a beat in which a process is taken to run
_BEAT, _CONNECTIONS, _READY = range(3)


def new_board(lines: int) -> int:
    """A file without a name, for a board of so many lines."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("aioflow")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, lines * _LINE.size)
    return fd


class Board:
    """The board, as one process sees it. `time.monotonic` is the same for all of them.

    Args:
        fd: Its file, which may be closed afterwards.
        own: The line of this process; the supervisor has none.
    """

    def __init__(self, fd: int, own: int | None = None) -> None:
        size = os.fstat(fd).st_size
        self._cells = mapped(fd, size, writable=True).cast("d")
        self._width = _LINE.size // self._cells.itemsize
        self._lines = range(size // _LINE.size)
        self._own = own

    def write(self, connections: int, is_ready: bool) -> None:
        """This process runs, and has so many connections."""
        if self._own is not None:
            at = self._own * self._width
            self._cells[at + _BEAT] = time.monotonic()
            self._cells[at + _CONNECTIONS] = float(connections)
            self._cells[at + _READY] = float(is_ready)

    def begin(self, line: int) -> None:
        """Count a process as running from now on, until it writes its line itself."""
        self._cells[line * self._width + _BEAT] = time.monotonic()

    def clear(self, line: int) -> None:
        """There is no process with this line."""
        for cell in range(self._width):
            self._cells[line * self._width + cell] = 0.0

    def seconds_since_beat(self, line: int) -> float:
        """Return the seconds since the last beat of a process, or since it was started."""
        return time.monotonic() - self._cells[line * self._width + _BEAT]

    def ready(self) -> int:
        """How many processes can be asked."""
        return sum(1 for line in self._running() if self._cells[line * self._width + _READY])

    def ahead(self) -> int:
        """How many more connections this process has than the one with the fewest."""
        if self._own is None:
            return 0
        ready = [line for line in self._running() if self._cells[line * self._width + _READY]]
        counts = [self._cells[line * self._width + _CONNECTIONS] for line in ready]
        own = self._cells[self._own * self._width + _CONNECTIONS]
        return int(own - min(counts, default=own))

    def _running(self) -> list[int]:
        now = time.monotonic()
        return [line for line in self._lines if now - self._cells[line * self._width + _BEAT] <= FRESH]
