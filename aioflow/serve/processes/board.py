"""Memory shared by all processes of a service: heartbeats, readiness and connection counts.

Each process writes only to its own slot, so no lock is needed. The event loop writes the heartbeat, so it stops when
the loop is stuck.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Final

from aioflow.memory.mapping import mapped

_SLOT: Final = struct.Struct("dddd")  # last heartbeat, connections, readiness, acceptance
# Seconds after a heartbeat for which a process counts as alive; long, because a machine may be busy.
_ALIVE: Final = 5.0
_RESPONSIVE: Final = 1.0  # seconds after a heartbeat for which a process is expected to accept connections
_BEAT, _CONNECTIONS, _READY, _ACCEPTING = range(4)


def new_board(slots: int) -> int:
    """Create an anonymous file for a board. Return its descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("aioflow")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, slots * _SLOT.size)
    return fd


class Board:
    """One process's view of the board.

    Args:
        fd: The descriptor of the board's file, which may be closed afterwards.
        slot: The slot of this process; None for the supervisor.
        clock: Returns seconds on a clock that all processes of the machine share.
    """

    def __init__(self, fd: int, slot: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        size = os.fstat(fd).st_size
        self._cells = mapped(fd, size, writable=True).cast("d")
        self._width = _SLOT.size // self._cells.itemsize
        self._slots = range(size // _SLOT.size)
        self._own = slot
        self._clock = clock

    def write(self, connections: int, is_ready: bool, is_accepting: bool | None = None) -> None:
        """Write a heartbeat of this process, with its state.

        Args:
            connections: The number of open connections.
            is_ready: Whether the process counts for the readiness of the service.
            is_accepting: Whether it accepts connections, as it also does if one of its models has failed; by default
                `is_ready`.
        """
        if self._own is not None:
            at = self._own * self._width
            self._cells[at + _BEAT] = self._clock()
            self._cells[at + _CONNECTIONS] = float(connections)
            self._cells[at + _READY] = float(is_ready)
            self._cells[at + _ACCEPTING] = float(is_ready if is_accepting is None else is_accepting)

    def begin(self, slot: int) -> None:
        """Write the first heartbeat of a process that is being started."""
        self._cells[slot * self._width + _BEAT] = self._clock()

    def clear(self, slot: int) -> None:
        """Clear the slot of a process that has ended."""
        for cell in range(self._width):
            self._cells[slot * self._width + cell] = 0.0

    def seconds_since_beat(self, slot: int) -> float:
        """Return the seconds since the last heartbeat of a process."""
        return self._clock() - self._cells[slot * self._width + _BEAT]

    def ready(self) -> int:
        """Return the number of processes that are alive and ready."""
        return len(self._connections(_ALIVE, _READY))

    def ahead(self) -> int:
        """Return how many more connections this process has than the accepting and responsive one with the fewest.

        Return 0 for the supervisor, and if no process accepts connections and is responsive.
        """
        if self._own is None:
            return 0
        own = self._cells[self._own * self._width + _CONNECTIONS]
        return int(own - min(self._connections(_RESPONSIVE, _ACCEPTING), default=own))

    def _connections(self, seconds: float, state: int) -> list[float]:
        """Return the connections of each process that has this state, and a heartbeat in the last `seconds`."""
        earliest = self._clock() - seconds
        at = [slot * self._width for slot in self._slots]
        alive = [each for each in at if self._cells[each + _BEAT] >= earliest]
        return [self._cells[each + _CONNECTIONS] for each in alive if self._cells[each + state]]
