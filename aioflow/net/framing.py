"""The wire format of messages, without I/O: a fixed prefix, a small msgpack header, and raw tensor buffers."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import msgpack

from aioflow.arguments import brief
from aioflow.errors import DataLossError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.memory.values import Buffer
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.tensor_format import TensorHeader, parse_spec, to_wire

# ── the header of a frame: a small msgpack document, checked by both sender and receiver ──────────────────────────────


# The encoding of empty bytes, which may also occur inside another value. Other bytes are rejected by `max_bin_len`.
_NO_BYTES: Final = b"\xc4\x00"


Document: TypeAlias = Mapping[str, Any]  # the part of a header that is for the receiver; untrusted until parsed


class Packed(dict[str, Any]):
    """A document that is sent many times, mostly with tensors of the same specs, so that its encoded header is cached.

    It must not be changed.
    """

    __slots__ = ("_known",)

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        # One tuple, replaced as a whole, because several threads may send the document.
        self._known: tuple[list[TensorHeader] | None, bytes] = None, b""

    def header(self, specs: list[TensorHeader], limits: Limits) -> bytes:
        """Return the encoded header; see `encode_header`."""
        known, header = self._known
        if specs != known:
            header = encode_header(specs, self, limits)
            self._known = specs, header
        return header


def encode_header(specs: Sequence[TensorHeader], document: Document, limits: Limits) -> bytes:
    """Encode the specs of the tensors and the document.

    Raises:
        InvalidArgumentError: the document has values that are not plain data.
        ResourceExhaustedError: the header exceeds a limit.
    """
    try:
        header: bytes = msgpack.packb([[spec.document() for spec in specs], document])
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"the header of a message cannot be encoded: {error}") from error
    check_counts(len(header), len(specs), 0, limits)
    try:
        # Decode it here as the peer will, which would close the connection over an invalid header. The slower check of
        # pairs is needed only for bytes, because the keys of a dictionary are unique already.
        unpacked = _unpack(header, limits, _unique if _NO_BYTES in header else None)[1]
    except DataLossError as error:
        raise InvalidArgumentError(f"the header of a message is not a plain document: {error.message}") from error
    if type(unpacked) is not dict:
        raise InvalidArgumentError("the header of a message is not a map", actual=type(document).__name__)
    return header


def decode_header(data: Buffer, limits: Limits) -> tuple[list[TensorHeader], dict[str, Any]]:
    """Decode a header to the specs of the tensors and the document.

    Raises:
        DataLossError: it is malformed, or has values that are not plain data.
        ResourceExhaustedError: a spec exceeds a limit.
    """
    decoded = _unpack(data, limits, _unique)
    if not (isinstance(decoded, list) and len(decoded) == 2 and isinstance(decoded[0], list)):
        raise DataLossError("a malformed header", expected="tensors and a document", actual=type(decoded).__name__)
    if not isinstance(decoded[1], dict):
        raise DataLossError("a malformed header", expected="a map", actual=type(decoded[1]).__name__)
    return [parse_spec(item, limits) for item in decoded[0]], decoded[1]


def _unpack(data: Buffer, limits: Limits, pairs: Callable[[list[tuple[object, object]]], object] | None) -> Any:
    try:
        # `unpackb` creates a new unpacker, so that a failure leaves no state behind.
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=True,
            strict_map_key=True,
            object_pairs_hook=pairs,
            ext_hook=_refuse_extension,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=limits.header_items,
            max_map_len=limits.header_items,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        if isinstance(error, OpError):
            raise
        raise DataLossError(f"a malformed header: {type(error).__name__}: {error}") from error


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise DataLossError("an extension type in a header", expected="plain values", actual=f"extension {code}")


def _unique(pairs: list[tuple[object, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        # `strict_map_key` of msgpack also admits bytes as keys, and a repeated key would replace the earlier value.
        if type(key) is not str or key in found or isinstance(value, bytes):
            raise DataLossError("a header has a duplicate or non-text key, or bytes", actual=brief(key))
        found[key] = value
    return found


def check_counts(header: int, tensors: int, payload: int, limits: Limits) -> None:
    """Raise ResourceExhaustedError if a size of a message exceeds its limit."""
    # One test for the usual case; the loop only finds the limit to name in the error.
    if header <= limits.header_bytes and tensors <= limits.tensors and payload <= limits.tensor_bytes:
        return
    for what, actual, most in (
        ("header bytes", header, limits.header_bytes),
        ("tensors", tensors, limits.tensors),
        ("tensor bytes", payload, limits.tensor_bytes),
    ):
        if actual > most:
            raise ResourceExhaustedError(f"{what} of one message", expected=f"at most {most}", actual=actual)


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
#     frame    prefix (32 bytes) · header · payload
#     prefix   magic · version · kind · flags · request id · bytes of the header · tensors · bytes of the payload
#     header   [[dtype, shape, bytes] for each tensor, document]
#     payload  the tensors in order, each at a multiple of 64 bytes, zeros between
#
# A message with a payload of at most INLINE_BYTES is one frame, in which the payload starts at a multiple of 64 bytes.
# A larger one is a frame with MORE set and no payload, followed by CHUNK frames of at most CHUNK_BYTES that carry the
# payload. Complete frames of small messages may be sent between the chunks; a second large message may not.


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
