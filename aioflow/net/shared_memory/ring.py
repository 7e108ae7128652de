"""Rings: a page of each end that the other reads, by which exported memory is returned without a message.

A byte is written by one process and read by the other, and its meaning does not depend on timing. The peer's bytes are
trusted only about the tensors exported to that peer.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.memory.segments import TRAILER, Segment
from aioflow.net.shared_memory.opening import Opened

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
