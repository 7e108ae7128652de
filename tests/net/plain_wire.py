"""The wire protocol in plain Python, written from docs/wire.md alone, as an oracle independent of aioflow.

A tensor is (dtype, shape, bytes) here, and a message is the content of its frames.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

__all__ = [
    "CANCEL",
    "CHUNK",
    "CLOSE",
    "CONNECTING",
    "FAILURE",
    "HEARTBEAT",
    "LISTENING",
    "OF_CLIENTS",
    "PREFIX",
    "PROVES",
    "PUSH",
    "REPLY",
    "REQUEST",
    "SEALS",
    "SHARES",
    "TASK",
    "Frame",
    "Sealing",
    "Tensor",
    "bare",
    "client_secret",
    "frame_key",
    "frames",
    "hello",
    "payload_of",
    "proof",
    "read_prefix",
    "tensors_in",
]

PREFIX: Final = struct.Struct("<4sBBHQIIQ")
HELLO: Final = struct.Struct("<8sHHIQQ")
HEARTBEAT, CLOSE, CHUNK, REQUEST, REPLY, FAILURE, PUSH, CANCEL = 1, 2, 3, 16, 17, 18, 19, 20
PROVES, SEALS, OF_CLIENTS, TASK, SHARES = 1, 2, 4, 8, 16
CONNECTING, LISTENING = b"connecting", b"listening"
INLINE: Final = 64 << 10

Tensor: TypeAlias = tuple[str, Sequence[int], bytes]


def hello(incarnation: int, flags: int = 0) -> bytes:
    """Return the first 32 bytes of a connection."""
    return HELLO.pack(b"aioflow\n", 2, 2, flags, incarnation, 0)


def proof(secret: bytes, role: bytes, connecting: bytes, listening: bytes) -> bytes:
    """Return the proof of an end.

    `role` names that end. `connecting` and `listening` are the 64 bytes with which each end opens the connection.
    """
    return hmac.digest(secret, b"aioflow proof: " + role + b"\n" + connecting + listening, "sha256")


def client_secret(secret: bytes) -> bytes:
    """Return the derived secret for processes that may only be clients."""
    return b"aioflow-client:" + hmac.digest(secret, b"aioflow client secret", "sha256").hex().encode()


def frame_key(secret: bytes, role: bytes, connecting: bytes, listening: bytes) -> bytes:
    """Return the key for the tags of the frames that the end of this role sends."""
    return hmac.digest(secret, b"aioflow frames: " + role + b"\n" + connecting + listening, "sha256")


class Sealing:
    """The tags of the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def tag(self, frame: bytes) -> bytes:
        """Return the tag of the next frame."""
        number = struct.pack("<Q", self._count)
        self._count += 1
        return hashlib.blake2b(number + frame, key=self._key, digest_size=16).digest()


class Frame(NamedTuple):
    """The fields of a prefix."""

    kind: int
    more: bool
    request: int
    header: int
    tensors: int
    payload: int

    @property
    def gap(self) -> int:
        """Bytes between the header and a payload in the same frame; 0 for a chunk."""
        return -(PREFIX.size + self.header) % 64 if self.inline and self.kind != CHUNK else 0

    @property
    def inline(self) -> int:
        """Bytes of the payload in the same frame."""
        return 0 if self.more else self.payload


def read_prefix(data: bytes) -> Frame:
    """Parse the 32 bytes before each frame."""
    magic, version, kind, flags, request, header, tensors, payload = PREFIX.unpack(data)
    if (magic, version) != (b"aiof", 2) or flags > 1:
        raise ValueError(f"not a frame: {data.hex()}")
    return Frame(kind, flags == 1, request, header, tensors, payload)


def bare(kind: int, number: int = 0) -> bytes:
    """Return a frame without header and payload."""
    return PREFIX.pack(b"aiof", 2, kind, 0, number, 0, 0, 0)


def payload_of(tensors: Sequence[Tensor]) -> bytes:
    """Return the tensors' bytes, each tensor at a multiple of 64."""
    payload = b""
    for _, _, data in tensors:
        payload += bytes(-len(payload) % 64) + data
    return payload


def frames(
    kind: int, request: int, document: dict[str, Any], tensors: Sequence[Tensor] = (), chunk: int = 4 << 20
) -> Iterator[bytes]:
    """Yield the frames of a message: one, or several if the payload is long."""
    described = [[dtype, list(shape), len(data)] for dtype, shape, data in tensors]
    header = msgpack.packb([described, document])
    payload = payload_of(tensors)
    more = len(payload) > INLINE
    prefix = PREFIX.pack(b"aiof", 2, kind, int(more), request, len(header), len(tensors), len(payload))
    if not more:
        yield prefix + header + (bytes(-(32 + len(header)) % 64) + payload if payload else b"")
        return
    yield prefix + header
    for start in range(0, len(payload), chunk):
        piece = payload[start : start + chunk]
        yield PREFIX.pack(b"aiof", 2, CHUNK, 0, request, 0, 0, len(piece)) + piece


def tensors_in(described: Sequence[Any], payload: bytes) -> list[Tensor]:
    """Return the tensors of a complete payload."""
    found: list[Tensor] = []
    end = 0
    for dtype, shape, size in described:
        start = end + -end % 64
        end = start + size
        found.append((dtype, tuple(shape), payload[start:end]))
    return found
