"""The boards: a page of each end that the other reads, by which what was lent comes back without a message.

A byte is written by one process and read by the other, and means the same whenever that happens. What the peer writes
is believed only about what was lent to the peer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.net.shared_memory.opening import Opened
from aioflow.work.segments import TRAILER, Segment

__all__ = ["FILE_BYTES", "NONCE_BYTES", "SLOTS", "SPOILED", "TURNS", "Board", "PeerBoard"]

NONCE_BYTES: Final = 32
SLOTS: Final = 256
TURNS: Final = 127
SPOILED: Final = 128
_READY: Final = NONCE_BYTES
_ARRIVED: Final = 64
_RETURNED: Final = _ARRIVED + SLOTS
_BYTES: Final = _RETURNED + SLOTS
FILE_BYTES: Final = _BYTES - _BYTES % -TRAILER + TRAILER


class Board:
    """This end's own.

    Raises:
        OSError: there can be none.
    """

    def __init__(self, nonce: bytes) -> None:
        self._segment = Segment(_BYTES)
        self._segment.reserve(_BYTES)  # what is written from now on needs nothing of the system
        self._bytes = np.frombuffer(self._segment.memory, np.uint8)
        self._bytes[:NONCE_BYTES] = np.frombuffer(nonce, np.uint8)

    @property
    def fd(self) -> int:
        """Its file."""
        return self._segment.fd

    def ready(self) -> None:
        """This end can reach the other's memory."""
        self._bytes[_READY] = 1

    def arrived(self, slot: int, turn: int) -> None:
        """What was lent has come."""
        self._bytes[_ARRIVED + slot] = turn

    def returned(self, slot: int, turn: int) -> None:
        """And is held no more. A forked child, which has the same page, says nothing."""
        if self._segment.is_mine:
            self._bytes[_RETURNED + slot] = turn


class PeerBoard:
    """The other end's."""

    def __init__(self, opened: Opened) -> None:
        self._bytes = opened.bytes

    def is_of(self, nonce: str) -> bool:
        """Whether it is the one that was announced."""
        return self._bytes[:NONCE_BYTES].tobytes().hex() == nonce

    @property
    def ready(self) -> bool:
        """Whether the other end can reach this one's memory."""
        return bool(self._bytes[_READY] == 1)

    def arrived(self, slot: int) -> int:
        """The turn in which something came last."""
        return int(self._bytes[_ARRIVED + slot])

    def returned(self, slot: int) -> int:
        """The turn in which something came back last, and perhaps SPOILED."""
        return int(self._bytes[_RETURNED + slot])
