"""The sending half of a TCP connection.

Short messages are passed to the system at once, in one call together with all messages posted in the same turn of the
event loop. A long message is written buffer by buffer, so that buffers are not joined. After every chunk it yields to
the event loop, and small messages can be sent in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from aioflow.memory.values import Buffer
from aioflow.net.framing import CHUNK_BYTES, EncodedMessage, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.proving import SEALED_CHUNK_BYTES, Seal
from aioflow.net.shared_memory.sharing import Sharing

# Bytes; some transports join buffers, which up to about this size is cheaper than another call.
_JOINED: Final = 1 << 20


class Sender:
    """The writer of messages to a transport, in order. Senders wait while the system accepts no more.

    Args:
        limits: Limits of messages.
        sharing: Encodes tensors that pass through shared memory.
        require_open: Raises OpError if the connection has ended.
        abort: Closes the connection at once, for a reason.

    Attributes:
        is_ready: True unless the transport has paused writing.
        turn: Lock that is held while a long message is being sent.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        limits: Limits,
        sharing: Sharing,
        require_open: Callable[[], None],
        abort: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._sharing = sharing
        self._require_open = require_open
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._high = 0
        self._seal: Seal | None = None
        self._piece = CHUNK_BYTES  # longest payload sent in one piece
        self.turn = asyncio.Lock()
        self.is_ready = True
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._posted: list[Buffer] = []
        self._posted_bytes = 0

    def start(self, transport: asyncio.Transport, over_tls: bool) -> None:
        """Write to this transport from now on."""
        self._transport = transport
        if over_tls:
            self._piece = SEALED_CHUNK_BYTES
            self._high = 1  # the buffer of TLS never reaches 0
        # As low as possible, so that `send` knows when the system has accepted everything.
        transport.set_write_buffer_limits(high=self._high)

    def seal_with(self, seal: Seal) -> None:
        """Add a tag to each frame from now on."""
        self._seal, self._piece = seal, SEALED_CHUNK_BYTES

    def post(self, message: WireMessage) -> bool:
        """Send a message in one piece if no waiting is needed; see `Comm`."""
        self._require_open()
        if not self.is_ready or self.turn.locked():
            return False
        encoded = self._sharing.encode_now(message, self._piece)
        if encoded is None:
            return False
        if self._seal is not None:  # at once: tags depend on the order in which frames are written
            self._write(self._seal.whole(encoded), encoded.size)
            return True
        # Keeps the batch within the size that `_write` passes to the system in one call.
        if self._posted_bytes + encoded.size > _JOINED:
            self.flush()
        if not self._posted:
            # A `send` may flush earlier in this turn. This call then finds nothing, or only later messages.
            self._loop.call_soon(self.flush)
        self._posted += encoded.whole()
        self._posted_bytes += encoded.size
        return True

    async def send(self, message: WireMessage, *, urgent: bool = False) -> None:
        """Send a message; see `Comm`."""
        if self._sharing.takes(message):
            self._require_open()
            async with self.turn:
                await self._send_in_turn(await self._sharing.encode(message))
            return
        encoded = encode(message, self._limits)
        self._require_open()
        self.flush()
        # An urgent message of one frame needs no turn: it may be written between the chunks of a large one.
        free = self.is_ready and not self.turn.locked()
        if (urgent and not encoded.payload) or (free and encoded.payload_bytes <= self._piece):
            self.write(encoded)
            if not self.is_ready:
                await self._written()
            return
        async with self.turn:
            await self._send_in_turn(encoded)

    async def _send_in_turn(self, encoded: EncodedMessage) -> None:
        await self._written()
        self._require_open()
        if encoded.payload_bytes <= self._piece:
            self.write(encoded)
        else:
            self.flush()
            await self._write_in_chunks(encoded)
        # The transport may hold views of the caller's arrays, which may change once this has returned.
        await self._written()

    async def _write_in_chunks(self, encoded: EncodedMessage) -> None:
        self.write_bare(encoded.head)
        try:
            for buffers in encoded.chunks(self._piece):
                for buffer in buffers if self._seal is None else self._seal.sealed(buffers):
                    self._put(buffer)
                await self._written()
                await asyncio.sleep(0)  # small messages are sent in between
                self._require_open()
        except BaseException:
            # The peer still expects the rest of the message, so the connection cannot carry another one.
            self._abort("a send was stopped in the middle of a message")
            raise

    def write(self, encoded: EncodedMessage) -> None:
        """Write a message in one piece, after the posted messages."""
        self.flush()
        self._write(encoded.whole() if self._seal is None else self._seal.whole(encoded), encoded.size)

    def write_bare(self, frame: bytes) -> None:
        """Write a frame without a payload at once."""
        self._put(frame if self._seal is None else b"".join(self._seal.sealed([frame])))

    def pause(self) -> None:
        """Make senders wait: the system accepts no more data for now."""
        self.is_ready = False

    def resume(self) -> None:
        """Wake waiting senders: the system has accepted everything."""
        self.is_ready = True
        self._wake()

    def end(self) -> None:
        """Drop the posted messages and wake waiting senders, which then raise: the connection has ended."""
        self._posted, self._posted_bytes = [], 0
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _written(self) -> None:
        """Wait until the system has accepted everything."""
        # Tested again after waking: another sender, woken earlier, may have filled the buffer once more.
        while not self.is_ready:
            self._require_open()
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def flush(self) -> None:
        """Write the messages that were posted in this turn of the event loop."""
        buffers, size = self._posted, self._posted_bytes
        self._posted, self._posted_bytes = [], 0
        if buffers:
            self._write(buffers, size)

    def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        stream = self._transport
        if stream.is_closing():
            return
        if len(buffers) > 1 and size <= _JOINED:
            stream.writelines(buffers)
            if self.is_ready and stream.get_write_buffer_size():
                # `writelines` of asyncio before 3.12.9 and 3.13.2 does not pause writing (CVE-2024-12254); this does.
                stream.set_write_buffer_limits(high=self._high)
        else:
            for buffer in buffers:
                self._put(buffer)

    def _put(self, buffer: Buffer) -> None:
        # After a failed write the transport is closing, but reports that only in the next turn of the event loop. Until
        # then asyncio would log a warning for each further write.
        if not self._transport.is_closing():
            self._transport.write(buffer)
