"""Authentication tags of frames, which detect frames that are forged, altered, omitted, repeated or reordered.

A tag is BLAKE2b(number · frame) with the direction's key, 16 bytes. The number counts the frames from 0: 64 bits,
little-endian. Tags do not encrypt; that is the task of TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any, Final

from aioflow.errors import DataLossError
from aioflow.memory.values import Buffer
from aioflow.net.framing import EncodedMessage

TAG_BYTES: Final = 16
SEALED_CHUNK_BYTES: Final = 1 << 20  # hashing one takes about a millisecond of the event loop
_NUMBER: Final = struct.Struct("<Q")


class Seal:
    """The tags of one direction: created at one end, verified at the other.

    Args:
        key: 32 bytes, used for this connection and direction only.
    """

    __slots__ = ("_count", "_hash", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._hash: Any = None

    def begin(self, *parts: Buffer) -> None:
        """Start the tag of the next frame with these parts."""
        # The number is hashed but not sent: a frame that is repeated, left out or moved has a wrong tag.
        self._hash = hashlib.blake2b(_NUMBER.pack(self._count), key=self._key, digest_size=TAG_BYTES)
        self._count += 1
        for part in parts:
            self._hash.update(part)

    def update(self, part: Buffer) -> None:
        """Add a part of the frame."""
        self._hash.update(part)

    def check(self, tag: Buffer) -> None:
        """End the frame. Raises DataLossError unless the tag matches."""
        # In constant time, so that the duration tells nothing about the expected tag.
        if not hmac.compare_digest(self._hash.digest(), tag):
            raise DataLossError("wrong tag: the frame was not sent by the peer, or not at this position")

    def sealed(self, frame: Sequence[Buffer]) -> list[Buffer]:
        """Return the next frame followed by its tag."""
        self.begin(*frame)
        return [*frame, self._hash.digest()]

    def whole(self, encoded: EncodedMessage) -> list[Buffer]:
        """Return the buffers of a message with tags, in the form of `EncodedMessage.whole`.

        Frames are numbered, so send these before any other frame is sealed.
        """
        buffers = self.sealed([encoded.head])
        for chunk in encoded.chunks(SEALED_CHUNK_BYTES):
            buffers += self.sealed(chunk)
        return buffers
