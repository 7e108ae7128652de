"""Tags of frames: what comes from the end that has proved itself, whole and in its order, is told from all else.

A tag is BLAKE2b(number · frame) with the direction's key, 16 bytes, where the number is that of the frame, 64 bits and
little-endian, from 0. So a frame that was altered, left out, sent again or in another place has a wrong one. It hides
nothing: that is TLS's to do.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any, Final

from aioflow.errors import DataLossError
from aioflow.net.framing import Encoded
from aioflow.net.tensor_format import Buffer

__all__ = ["SEALED_CHUNK_BYTES", "TAG_BYTES", "Seal"]

TAG_BYTES: Final = 16
SEALED_CHUNK_BYTES: Final = 1 << 20  # which takes about a millisecond, for which the event loop waits
_NUMBER: Final = struct.Struct("<Q")


class Seal:
    """The tags of one direction, made at one end and checked at the other.

    Args:
        key: 32 bytes, of this connection and direction alone.
    """

    __slots__ = ("_count", "_hash", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._hash: Any = None

    def begin(self, *parts: Buffer) -> None:
        """The next frame begins."""
        self._hash = hashlib.blake2b(_NUMBER.pack(self._count), key=self._key, digest_size=TAG_BYTES)
        self._count += 1
        for part in parts:
            self._hash.update(part)

    def update(self, part: Buffer) -> None:
        """The frame goes on."""
        self._hash.update(part)

    def check(self, tag: Buffer) -> None:
        """The frame has ended. Raises DataLossError unless this is its tag."""
        if not hmac.compare_digest(self._hash.digest(), tag):
            raise DataLossError("a frame that the peer has not sent, or not here: its tag is wrong")

    def sealed(self, frame: Sequence[Buffer]) -> list[Buffer]:
        """The next frame, with its tag."""
        self.begin(*frame)
        return [*frame, self._hash.digest()]

    def whole(self, encoded: Encoded) -> list[Buffer]:
        """As `Encoded.whole`, of a message that is sent now."""
        buffers = self.sealed([encoded.head])
        for chunk in encoded.chunks(SEALED_CHUNK_BYTES):
            buffers += self.sealed(chunk)
        return buffers
