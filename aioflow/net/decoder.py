"""Incremental decoding of bytes to messages, without I/O. Encoding, and the format, are in `framing`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from aioflow.errors import DataLossError, UnimplementedError
from aioflow.memory.values import Array, Buffer
from aioflow.net.arriving import Arriving
from aioflow.net.framing import (
    ALIGNMENT,
    CHUNK_BYTES,
    INLINE_BYTES,
    MAGIC,
    MORE,
    PREFIX,
    VERSION,
    Document,
    FrameKind,
    WireMessage,
    aligned,
    check_counts,
    decode_header,
)
from aioflow.net.limits import DEFAULT_LIMITS, Limits
from aioflow.net.proving import TAG_BYTES, Seal
from aioflow.net.tensor_format import Destination, Strings, TensorHeader

_STAGING_BYTES: Final = 64 << 10
_SHORT_HEADER: Final = 384  # bytes; parsed headers up to this size are cached
_MOST_HEADERS: Final = 32
_KINDS: Final = {kind.value: kind for kind in FrameKind}
_BARE: Final = frozenset({FrameKind.HEARTBEAT, FrameKind.CLOSE})


def _check_layout(specs: Sequence[TensorHeader], tensors: int, payload: int) -> None:
    """Raise DataLossError unless the specs describe this number of tensors in this number of bytes."""
    total = 0
    for spec in specs:
        total = aligned(total) + spec.nbytes
    if len(specs) != tensors or total != payload:
        raise DataLossError(
            "the header of a frame does not match its prefix",
            expected=f"{tensors} tensors in {payload} bytes",
            actual=f"{len(specs)} in {total}",
        )


class _Prefix(NamedTuple):
    kind: FrameKind
    more: bool
    request: int
    header: int
    tensors: int
    payload: int

    @property
    def inline(self) -> int:
        """Bytes of the payload in this frame, including the padding before it."""
        if self.more or self.kind is FrameKind.CHUNK or not self.payload:
            return 0
        return -(PREFIX.size + self.header) % ALIGNMENT + self.payload


def _tensors_in(payload: memoryview, specs: Sequence[TensorHeader]) -> tuple[Array, ...]:
    """Return the tensors of a message that consists of one frame."""
    tensors, end = [], 0
    for spec in specs:
        start = aligned(end)
        if start != end:
            _check_pad(payload[end:start])
        end = start + spec.nbytes
        destination = Destination(spec)
        # Copied, because the staging buffer is reused.
        destination.buffer[:] = payload[start:end]
        tensors.append(destination.finish())
    return tuple(tensors)


def _check_pad(pad: Buffer) -> None:
    if any(pad):
        raise DataLossError("nonzero padding between tensors")


class _Assembly:
    """A large message whose tensors are arriving, with the memory that its next bytes go to."""

    __slots__ = ("_destinations", "_pads", "_places", "document", "left", "prefix")

    def __init__(self, prefix: _Prefix, specs: Sequence[TensorHeader], document: Document) -> None:
        self.prefix = prefix
        self.document = document
        self._destinations: list[Destination] = []
        self._pads: list[bytearray] = []
        self._places: deque[memoryview] = deque()
        self.left = 0
        for spec in specs:
            pad = bytearray(-self.left % ALIGNMENT)
            # Padding gets memory of its own, to be checked once the message is complete.
            self._pads.append(pad)
            self._add(memoryview(pad))
            destination = Destination(spec)
            self._destinations.append(destination)
            self._add(destination.buffer)

    def _add(self, place: memoryview) -> None:
        self.left += place.nbytes
        if place.nbytes:
            self._places.append(place)

    def place(self, most: int) -> memoryview:
        """Return the memory for the next bytes, at most `most` of them."""
        return self._places[0][:most]

    def filled(self, count: int) -> None:
        """Record that `count` bytes have been written there."""
        self.left -= count
        rest = self._places[0][count:]
        if rest.nbytes:
            self._places[0] = rest
        else:
            self._places.popleft()

    def copy(self, data: memoryview) -> None:
        """Copy bytes there that were received into another buffer."""
        while data.nbytes:
            place = self.place(data.nbytes)
            place[:] = data[: place.nbytes]
            data = data[place.nbytes :]
            self.filled(place.nbytes)

    def message(self, filling: list[Strings] | None) -> WireMessage:
        """Return the message.

        Args:
            filling: If not None, string tensors are returned unfilled and added to this list.

        Raises:
            DataLossError: the padding or the data of a tensor is malformed.
        """
        for pad in self._pads:
            _check_pad(pad)
        tensors = []
        for destination in self._destinations:
            found = destination.finish() if filling is None else destination.begin()
            if filling is not None and isinstance(found, Strings):
                filling.append(found)
            tensors.append(found.array if isinstance(found, Strings) else found)
        return WireMessage(self.prefix.kind, self.prefix.request, self.document, tuple(tensors))


class Decoder:
    """An incremental decoder: write the next bytes into `buffer`, then call `received` with their number.

    Frames are parsed in a staging buffer. Within a chunk, `buffer` is the memory of the tensor itself, so that the data
    of a large tensor is copied only by the system's read. After an error the position in the stream is lost: the
    connection must be closed.

    Args:
        limits: Limits of messages.
        seal: Checks the tag that follows each frame, before anything but its prefix is parsed; None if there are no
            tags.
        arriving: Counts the bytes of partially received messages; None if they are not counted.
        filling: Receives the string tensors of returned messages that take long to fill in. None to return messages
            only when they are complete.
    """

    __slots__ = (
        "_arriving",
        "_assembly",
        "_chunk_left",
        "_direct",
        "_end",
        "_headers",
        "_limits",
        "_seal",
        "_staging",
        "_start",
        "_tag_left",
        "filling",
        "frames",
    )

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        seal: Seal | None = None,
        arriving: Arriving | None = None,
        filling: list[Strings] | None = None,
    ) -> None:
        self._limits = limits
        self.filling = filling
        self._arriving = arriving
        self._seal = seal
        self._tag_left = False  # whether a chunk is complete but for its tag
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = self._end = 0
        self._direct: memoryview | None = None
        self._assembly: _Assembly | None = None
        self._chunk_left = 0
        self._headers: dict[bytes, tuple[list[TensorHeader], Document]] = {}
        self.frames = 0

    @property
    def idle(self) -> bool:
        """True if no message is partially received."""
        return self._start == self._end and self._assembly is None

    @property
    def mid_frame(self) -> bool:
        """True if a frame is partially received."""
        return self._start != self._end or self._chunk_left > 0 or self._tag_left

    def drop(self) -> None:
        """Release the memory of partially received messages. No more bytes may follow."""
        self._assembly = self._direct = None
        self._staging = memoryview(b"")
        self._headers.clear()
        self._start = self._end = self._chunk_left = 0
        if self._arriving is not None:
            self._arriving.clear()

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes. It is never empty, and valid until the next call of `received`."""
        return self._staging[self._end :] if self._direct is None else self._direct

    def received(self, count: int) -> list[WireMessage]:
        """Return the messages that are complete once `count` bytes have been written into `buffer()`.

        Raises:
            DataLossError: the bytes are malformed.
            ResourceExhaustedError: a message exceeds a limit.
            UnimplementedError: the peer uses another version.
        """
        found: list[WireMessage] = []
        if self._direct is not None and self._assembly is not None:
            if self._seal is not None:
                self._seal.update(self._direct[:count])
            self._assembly.filled(count)
            self._chunk_left -= count
            self._end_of_chunk(self._assembly, found)
        else:
            self._end += count
        # While bytes go straight into a tensor, nothing is staged.
        while self._direct is None and self._parse(found):
            pass
        self._compact()
        return found

    def _parse(self, found: list[WireMessage]) -> bool:
        """Parse one item of the staged bytes. Return False if more bytes are needed."""
        staged = self._end - self._start
        if self._chunk_left and self._assembly is not None:
            # The first bytes of a chunk arrive together with its prefix, so they are staged and have to be copied.
            count = min(staged, self._chunk_left)
            if self._seal is not None:
                self._seal.update(self._staging[self._start : self._start + count])
            self._assembly.copy(self._staging[self._start : self._start + count])
            self._start += count
            self._chunk_left -= count
            self._end_of_chunk(self._assembly, found)
            return count > 0
        if self._tag_left and self._assembly is not None and self._seal is not None:
            return self._check_chunk(self._assembly, self._seal, found)
        if staged < PREFIX.size:
            return False
        prefix = self._prefix()
        needed = PREFIX.size + prefix.header + prefix.inline
        if self._seal is not None and prefix.kind is not FrameKind.CHUNK:
            needed += TAG_BYTES
        if staged < needed:
            self._make_room(needed)
            return False
        frame = self._staging[self._start : self._start + needed]
        self._start += needed
        self.frames += 1
        self._frame(prefix, frame, found)
        return True

    def _end_of_chunk(self, assembly: _Assembly, found: list[WireMessage]) -> None:
        # Staged bytes precede those in the socket, so read directly into the tensor only after they have been consumed.
        if self._chunk_left:
            self._direct = assembly.place(self._chunk_left) if self._start == self._end else None
            return
        self._direct = None
        if self._seal is not None:
            self._tag_left = True
        else:
            self._end_of_frame(assembly, found)

    def _check_chunk(self, assembly: _Assembly, seal: Seal, found: list[WireMessage]) -> bool:
        tag = self._staging[self._start : min(self._end, self._start + TAG_BYTES)]
        if tag.nbytes < TAG_BYTES:
            return False
        seal.check(tag)
        self._start += TAG_BYTES
        self._tag_left = False
        self._end_of_frame(assembly, found)
        return True

    def _end_of_frame(self, assembly: _Assembly, found: list[WireMessage]) -> None:
        self.frames += 1
        if not assembly.left:
            self._assembly = None
            if self._arriving is not None:
                self._arriving.clear()
            found.append(assembly.message(self.filling))

    def _prefix(self) -> _Prefix:
        magic, version, kind, flags, request, header, tensors, payload = PREFIX.unpack_from(self._staging, self._start)
        # The magic and the version first: without them the other fields mean nothing.
        if magic != MAGIC:
            raise DataLossError("not a frame", expected=MAGIC, actual=magic)
        if version != VERSION:
            raise UnimplementedError("a frame of an unsupported version", expected=VERSION, actual=version)
        known = _KINDS.get(kind)
        if known is None or flags not in (0, MORE):
            raise DataLossError("an unknown kind of frame", expected="a known kind", actual=f"{kind}, flags {flags}")
        check_counts(header, tensors, payload, self._limits)
        prefix = _Prefix(known, flags == MORE, request, header, tensors, payload)
        # Before the rest of the frame arrives: a malformed prefix must not make this end wait for it.
        _CHECKS.get(known, _check_message)(prefix, self._assembly)
        return prefix

    def _frame(self, prefix: _Prefix, frame: memoryview, found: list[WireMessage]) -> None:
        if self._seal is not None:
            frame = self._opened(prefix, frame, self._seal)
        if prefix.kind is FrameKind.CHUNK:
            if self._arriving is not None:
                self._arriving.add(prefix.payload)
            self._chunk_left = prefix.payload
            self.frames -= 1  # a chunk is counted when it is complete
            return
        if prefix.kind in _BARE:
            found.append(WireMessage(prefix.kind, prefix.request))
            return
        body = PREFIX.size + prefix.header
        specs, document = self._header(frame[PREFIX.size : body])
        _check_layout(specs, prefix.tensors, prefix.payload)  # before memory is allocated
        if prefix.more:
            self._assembly = _Assembly(prefix, specs, document)
            return
        payload = frame[body + prefix.inline - prefix.payload :]
        found.append(WireMessage(prefix.kind, prefix.request, document, _tensors_in(payload, specs) if specs else ()))

    def _header(self, data: memoryview) -> tuple[list[TensorHeader], Document]:
        """Decode a header. Short ones are cached, because similar steps send identical headers."""
        if data.nbytes > _SHORT_HEADER:
            return decode_header(data, self._limits)
        # A copy: `data` is a view of the staging buffer, which is reused.
        known = bytes(data)
        found = self._headers.get(known)
        if found is None:
            # The peer chooses the headers, so the cache must be bounded.
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            found = self._headers[known] = decode_header(data, self._limits)
        return found

    def _opened(self, prefix: _Prefix, frame: memoryview, seal: Seal) -> memoryview:
        if prefix.kind is FrameKind.CHUNK:
            # The tag of a chunk follows its payload, so it is checked at the end of the chunk.
            seal.begin(frame)
            return frame
        seal.begin(frame[:-TAG_BYTES])
        seal.check(frame[-TAG_BYTES:])
        return frame[:-TAG_BYTES]

    def _make_room(self, needed: int) -> None:
        # Bounded: `_prefix` has checked the header against its limit, and an inline payload against INLINE_BYTES.
        if needed > self._staging.nbytes:
            larger = memoryview(bytearray(needed))
            larger[: self._end - self._start] = self._staging[self._start : self._end]
            self._staging, self._start, self._end = larger, 0, self._end - self._start

    def _compact(self) -> None:
        """Move the unparsed bytes to the front, so that there is always room behind them."""
        if self._start:
            left = self._end - self._start
            # The ranges may overlap: assigning between slices of one memoryview then acts like `memmove`.
            self._staging[:left] = self._staging[self._start : self._end]
            self._start, self._end = 0, left


def _check_message(prefix: _Prefix, assembly: _Assembly | None) -> None:
    if prefix.more and assembly is not None:
        raise DataLossError("a large message begins inside another", expected="its chunks", actual=prefix.kind.name)
    if prefix.more and not prefix.payload:
        raise DataLossError("a large message without a payload", expected="a payload", actual=prefix.payload)
    if not prefix.more and prefix.payload > INLINE_BYTES:
        raise DataLossError("a payload too large for one frame", expected=INLINE_BYTES, actual=prefix.payload)


def _check_chunk(prefix: _Prefix, assembly: _Assembly | None) -> None:
    if assembly is None or assembly.prefix.request != prefix.request:
        raise DataLossError("a chunk without a message", expected="a large message before it", actual=prefix.request)
    fits = 0 < prefix.payload <= min(CHUNK_BYTES, assembly.left)
    if not fits or prefix.header or prefix.tensors or prefix.more:
        raise DataLossError("a malformed chunk", expected=f"at most {assembly.left} bytes", actual=tuple(prefix))


def _check_bare(prefix: _Prefix, assembly: _Assembly | None) -> None:
    if any(prefix._replace(request=0)[1:]) or (prefix.request and prefix.kind is FrameKind.CLOSE):
        raise DataLossError(f"a {prefix.kind.name} frame with contents", expected="none", actual=tuple(prefix))


_CHECKS: Final = {FrameKind.CHUNK: _check_chunk, FrameKind.HEARTBEAT: _check_bare, FrameKind.CLOSE: _check_bare}
