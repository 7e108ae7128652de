"""One end of a connection that may share memory, for the comm that carries its messages.

If the system refuses something (no such files, too many, another user's process), tensors are sent over the connection
as usual; only malformed data from the peer ends the connection.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DataLossError, OpError, ResourceExhaustedError
from aioflow.graph.dtypes import DType
from aioflow.memory.segments import SHARED, has_segments, loan_of
from aioflow.memory.values import Array
from aioflow.net.chance import fresh_number
from aioflow.net.framing import CHUNK_BYTES, Document, EncodedMessage, FrameKind, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.shared_memory.rings import FILE_BYTES, NONCE_BYTES, PeerRing, Process, Ring
from aioflow.net.shared_memory.tensors import Exporter, Importer, large

_PIECE: Final = 1 << 20  # bytes copied at a time
_TURN: Final = 0.5e-3  # seconds after which a copy yields to the event loop
_IDLE_SECONDS: Final = 30.0  # for which memory is kept for reuse
_LENT: Final = frozenset({"kind", "header", "lent"})
_INNER: Final = {kind.value: kind for kind in (FrameKind.REQUEST, FrameKind.REPLY, FrameKind.PUSH)}


class _Offer(NamedTuple):
    """The contents of a MEMORY message."""

    process: int
    board: int  # the ring; the name crosses the wire
    nonce: str
    bytes: int
    unread: int


class Sharing:
    """The memory sharing of one comm.

    Args:
        limits: Limits of this end.
        wanted: Whether this end is configured to share memory.
    """

    def __init__(self, limits: Limits, wanted: bool) -> None:
        self._limits = limits
        self._wanted = wanted
        self._ring: Ring | None = None
        self._importer: Importer | None = None
        self._exporter: Exporter | None = None

    def offered(self, socket: Any) -> bool:
        """Return True if this end can share memory with the peer of a socket."""
        self._wanted = self._wanted and socket.fileno() >= 0 and has_segments()  # simulated sockets have no file
        return self._wanted

    def begin(self) -> WireMessage | None:
        """Create this end's ring and return the first message to send, if any. Call once both ends can share."""
        nonce = fresh_number(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")
        try:
            self._ring = Ring(nonce)
        except OSError:
            return None
        limits = self._limits
        offer = _Offer(os.getpid(), self._ring.fd, nonce.hex(), limits.shared_bytes, limits.unread_bytes)
        return WireMessage(FrameKind.MEMORY, 0, offer._asdict())

    # ── in ──

    def within(self, messages: Iterable[WireMessage]) -> Iterator[WireMessage]:
        """Yield received messages: those enclosed in a LENT are extracted; a MEMORY is consumed.

        Args:
            messages: The received messages.

        Raises:
            DataLossError: a message is malformed, or arrived although no memory is shared.
            ResourceExhaustedError: a limit is exceeded.
            UnavailableError: the memory no longer exists.
        """
        for message in messages:
            if message.kind < FrameKind.MEMORY:
                yield message
            elif message.kind is FrameKind.MEMORY:
                self._met(message)
            else:
                yield self._opened(message)

    def _met(self, message: WireMessage) -> None:
        offer = _offer(message)
        if self._ring is None or self._importer is not None:
            raise DataLossError("an unexpected offer of shared memory", actual=brief(dict(message.header)))
        ring: PeerRing | None = None
        with suppress(OSError, OpError):  # of another host or user, or the id belongs to another process now
            process = Process(offer.process)
            ring = PeerRing(process.open(offer.board, FILE_BYTES))
        # In another container the same number belongs to another process: the nonce proves that the file is the peer's.
        if ring is None or not ring.is_of(offer.nonce):
            return
        self._importer = Importer(process, self._ring, self._limits)
        self._exporter = Exporter(ring, min(offer.bytes, self._limits.shared_bytes), offer.unread, self._limits)
        self._ring.ready()

    def _opened(self, message: WireMessage) -> WireMessage:
        if self._importer is None:
            raise DataLossError("the peer sent a shared tensor without offering shared memory")
        (kind, header, exported), limits = _loan(message), self._limits
        total = len(exported) + len(message.tensors)
        if total > limits.tensors:
            raise ResourceExhaustedError("tensors of one message", expected=limits.tensors, actual=total)
        arrays: dict[int, Array] = {}
        for index, array in (self._importer.import_array(each, own=kind is FrameKind.REPLY) for each in exported):
            if index >= total or index in arrays:
                raise DataLossError(
                    "a shared tensor has an invalid index in its message", expected=f"below {total}", actual=index
                )
            arrays[index] = array
        size = sum(array.nbytes for array in (*arrays.values(), *message.tensors))
        if size > limits.tensor_bytes:
            raise ResourceExhaustedError("tensor bytes of one message", expected=limits.tensor_bytes, actual=size)
        rest = iter(message.tensors)
        tensors = tuple(arrays[index] if index in arrays else next(rest) for index in range(total))
        return WireMessage(kind, message.request, header, tensors)

    # ── out ──

    def takes(self, message: WireMessage) -> bool:
        """Return True if tensors of a message may be exported."""
        return self._exporter is not None and large(message)

    async def encode(self, message: WireMessage) -> EncodedMessage:
        """Encode a message, with tensors exported where possible. Raises as `framing.encode`."""
        if self._exporter is None:
            return encode(message, self._limits)
        arrays = {}
        for index, (dtype, array) in self._exporter.picked(message).items():
            lying = await _copied(array)
            if lying is not None:
                arrays[index] = dtype, lying
        return self._encoded(message, arrays) or encode(message, self._limits)

    def encode_now(self, message: WireMessage, most: int) -> EncodedMessage | None:
        """Encode a message without waiting. Return None if that takes long, or the payload exceeds `most` bytes."""
        encoded = None
        if self._exporter is not None and large(message):
            picked = self._exporter.picked(message)
            if sum(array.nbytes for _, array in picked.values() if not _is_in_segment(array)) > CHUNK_BYTES:
                return None
            arrays = {index: (dtype, _copied_now(array)) for index, (dtype, array) in picked.items()}
            lying = {index: (dtype, array) for index, (dtype, array) in arrays.items() if array is not None}
            encoded = self._encoded(message, lying, most)
        encoded = encoded or encode(message, self._limits)
        return encoded if encoded.payload_bytes <= most else None

    def _encoded(
        self, message: WireMessage, arrays: Mapping[int, tuple[DType, Array]], most: int | None = None
    ) -> EncodedMessage | None:
        if self._exporter is None or not arrays:
            return None
        exported = dict(self._exporter.export(arrays))
        header = {"kind": int(message.kind), "header": message.header, "lent": list(exported.values())}
        rest = tuple(tensor for index, tensor in enumerate(message.tensors) if index not in arrays)
        with suppress(OpError):  # then the plain message is encoded, which raises the message's own errors
            encoded = encode(WireMessage(FrameKind.LENT, message.request, header, rest), self._limits)
            if most is None or encoded.payload_bytes <= most:
                return encoded
        self._exporter.revoke(exported)
        return None

    # ── time, and the end ──

    def tick(self) -> None:
        """Collect returned tensors and release unused memory. Call periodically."""
        if self._exporter is not None and self._importer is not None:
            self._exporter.collect()
            self._importer.trim()
            SHARED.trim(_IDLE_SECONDS)

    def end(self) -> None:
        """Stop sharing: the connection has ended. Exported segments are not reused; imported arrays stay valid."""
        if self._exporter is not None and self._importer is not None:
            self._exporter.end()
            self._importer.end()
        self._exporter = self._importer = self._ring = None


def _loan(message: WireMessage) -> tuple[FrameKind, Document, list[object]]:
    """Return the kind and header of the message in a LENT, and the entries of its tensors. Raises DataLossError."""
    said = message.header
    kind, header, exported = said.get("kind"), said.get("header"), said.get("lent")
    if said.keys() == _LENT and type(kind) is int and isinstance(header, dict) and isinstance(exported, list):
        found = _INNER.get(kind)
        if found is not None:
            return found, header, exported
    raise DataLossError("a malformed message with shared tensors", expected=sorted(_LENT), actual=brief(dict(said)))


def _offer(message: WireMessage) -> _Offer:
    """Return the contents of a MEMORY. Raises DataLossError."""
    said = message.header
    if said.keys() == set(_Offer._fields) and not message.tensors:
        nonce, numbers = said["nonce"], [said[key] for key in ("process", "board", "bytes", "unread")]
        if isinstance(nonce, str) and all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            return _Offer(**said)
    raise DataLossError("a malformed offer of shared memory", expected=_Offer._fields, actual=brief(dict(said)))


def _new(array: Array, reserve: bool) -> Array | None:
    return SHARED.empty(array.shape, array.dtype.newbyteorder("="), reserve=reserve)


def _is_in_segment(array: Array) -> bool:
    """Return True if the array lies in a segment, in the layout that the other end expects."""
    loan = loan_of(array)
    native = bool(array.dtype.isnative and array.flags.c_contiguous and array.flags.aligned)
    return loan is not None and native


def _copied_now(array: Array) -> Array | None:
    if _is_in_segment(array):
        return array
    copy = _new(array, reserve=True)
    if copy is not None:
        copy[...] = array
    return copy


async def _copied(array: Array) -> Array | None:
    """Return the array in a segment, copied there in pieces if necessary; None if there is no memory."""
    if _is_in_segment(array) or not (array.flags.c_contiguous and array.dtype.isnative):
        return _copied_now(array)
    copy = _new(array, reserve=False)
    loan = None if copy is None else loan_of(copy)
    if copy is None or loan is None or loan.segment is None:
        return None
    source, target = array.reshape(-1).view(np.uint8), copy.reshape(-1).view(np.uint8)
    began = time.perf_counter()
    for start in range(0, source.size, _PIECE):
        stop = min(start + _PIECE, source.size)
        try:
            # Allocates the pages, since a write to a file without space would kill the process (SIGBUS).
            loan.segment.reserve(stop)
        except OSError:
            return None
        target[start:stop] = source[start:stop]
        if time.perf_counter() - began > _TURN:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return copy
