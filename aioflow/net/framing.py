"""The wire format of messages, without I/O: a fixed prefix, a small msgpack header, and raw tensor buffers.

    frame    prefix (32 bytes) · header · payload
    prefix   magic · version · kind · flags · request id · bytes of the header · tensors · bytes of the payload
    header   [[dtype, shape, bytes] for each tensor, document]
    payload  the tensors in order, each at a multiple of 64 bytes, zeros between

A message with a payload of at most INLINE_BYTES is one frame, in which the payload starts at a multiple of 64 bytes. A
larger one is a frame with MORE set and no payload, followed by CHUNK frames of at most CHUNK_BYTES that carry the
payload. Complete frames of small messages may be sent between the chunks; a second large message may not.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Buffer
from aioflow.net.frame_header import Packed, check_counts, encode_header
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.tensor_format import TensorHeader, to_wire

MAGIC: Final = b"aiof"
VERSION: Final = 2
OLDEST: Final = 2  # oldest version understood; two peers use the newest version that both understand
ALIGNMENT: Final = 64
# Little-endian, without padding: 4 + 1 + 1 + 2 + 8 + 4 + 4 + 8 = 32 bytes.
PREFIX: Final = struct.Struct("<4sBBHQIIQ")
INLINE_BYTES: Final = 64 << 10
CHUNK_BYTES: Final = 4 << 20
MORE: Final = 1
_ZEROS: Final = bytes(ALIGNMENT)


class FrameKind(enum.IntEnum):
    """The kind of a frame. Those below REQUEST are handled by the connection and never reach its user."""

    HEARTBEAT = 1
    CLOSE = 2
    CHUNK = 3
    REQUEST = 16
    REPLY = 17
    FAILURE = 18
    PUSH = 19
    CANCEL = 20
    MEMORY = 24  # this and LENT are handled by `shared_memory` and do not reach the user either
    LENT = 25


class WireMessage(NamedTuple):
    """A message to send, or a received one.

    Attributes:
        kind: Kind of the message.
        request: Number that relates a reply to its request; below 2**64.
        header: A small document: None, bool, int, float, str, lists, and maps with str keys. No bytes. The header of a
            received message must not be changed: other messages may share it.
        tensors: Arrays or NumPy scalars; they are received as arrays.
    """

    kind: FrameKind
    request: int = 0
    header: Mapping[str, Any] = {}
    tensors: Sequence[Any] = ()


class EncodedMessage(NamedTuple):
    """An encoded message.

    Attributes:
        head: Its first frame, complete.
        header: The header in that frame.
        request: Number of the request.
        payload: For a large message, the buffers to send in chunks, which are views of its tensors; otherwise empty.
        size: Bytes of header and payload, which count towards `Limits.unread_bytes`.
    """

    head: bytes
    header: bytes
    request: int
    payload: tuple[memoryview, ...]
    size: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors, with padding."""
        return self.size - len(self.header)

    def whole(self) -> list[Buffer]:
        """Return all frames, as buffers to write in order."""
        buffers: list[Buffer] = [self.head]
        for chunk in self.chunks():
            buffers += chunk
        return buffers

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[list[Buffer]]:
        """Yield the CHUNK frames, each as the buffers to write in order."""
        parts: list[Buffer] = []
        room = chunk_bytes
        for buffer in self.payload:
            start = 0
            while start < buffer.nbytes:
                part = buffer[start : start + room]
                # A chunk may span several tensors, and a tensor several chunks: the receiver fills its memory in order.
                parts.append(part)
                start += part.nbytes
                room -= part.nbytes
                if room == 0:
                    yield self._chunk(parts, chunk_bytes)
                    parts, room = [], chunk_bytes
        if parts:
            yield self._chunk(parts, chunk_bytes - room)

    def _chunk(self, parts: list[Buffer], size: int) -> list[Buffer]:
        return [PREFIX.pack(MAGIC, VERSION, FrameKind.CHUNK, 0, self.request, 0, 0, size), *parts]


def encode(message: WireMessage, limits: Limits = DEFAULT_LIMITS) -> EncodedMessage:
    """Encode a message. Tensor data is copied only for small messages or if it is not contiguous.

    Raises:
        InvalidArgumentError: the header is not a plain document.
        DTypeError: a tensor cannot be sent.
        ResourceExhaustedError: the message exceeds a limit.
    """
    specs: list[TensorHeader] = []
    buffers, total = [], 0
    for value in message.tensors:
        spec, buffer = to_wire(value, limits)
        specs.append(spec)
        start = aligned(total)
        if start != total:
            buffers.append(memoryview(_ZEROS)[: start - total])
        buffers.append(memoryview(buffer))
        total = start + spec.nbytes
    # The prefix has 64 bits for the number. Kinds below REQUEST belong to the connection itself.
    if not 0 <= message.request < 2**64 or message.kind < FrameKind.REQUEST:
        raise InvalidArgumentError("not a message that can be sent", actual=(message.kind, message.request))
    document = message.header
    header = document.header(specs, limits) if type(document) is Packed else encode_header(specs, document, limits)
    check_counts(len(header), len(specs), total, limits)
    large = total > INLINE_BYTES
    prefix = PREFIX.pack(
        MAGIC, VERSION, message.kind, MORE if large else 0, message.request, len(header), len(specs), total
    )
    size = len(header) + total
    if large:
        return EncodedMessage(prefix + header, header, message.request, tuple(buffers), size)
    gap = _ZEROS[: -(PREFIX.size + len(header)) % ALIGNMENT] if total else b""
    # Small tensors are copied into the frame. That takes one write, and frees the caller's arrays at once.
    return EncodedMessage(b"".join([prefix, header, gap, *buffers]), header, message.request, (), size)


def bare_frame(kind: FrameKind, number: int = 0) -> bytes:
    """Return a frame without content: a HEARTBEAT, which has a number, or a CLOSE."""
    return PREFIX.pack(MAGIC, VERSION, kind, 0, number, 0, 0, 0)


def aligned(offset: int) -> int:
    """Round up to a multiple of ALIGNMENT."""
    # In Python, −n mod a ≥ 0 is the distance from n to the next multiple of a.
    return offset + -offset % ALIGNMENT
