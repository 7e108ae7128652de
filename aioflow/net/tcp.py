"""Comms over TCP: "tcp://127.0.0.1:2222".

The protocol receives into buffers chosen by the decoder: within a large tensor, the tensor's own memory. The
transport's high-water mark is zero, so that `send` knows when the system has accepted everything.

Short messages are passed to the system at once, in one call together with all messages posted in the same turn of the
event loop. A long message is written buffer by buffer, so that buffers are not joined. After every chunk it yields to
the event loop, and small messages can be sent in between.

Until both ends have proved themselves (`proving`), only the few bytes of the handshake are read, and no memory is
allocated.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from aioflow.errors import OpError, UnauthenticatedError, UnavailableError
from aioflow.net.addresses import is_loopback, resolved, split_host
from aioflow.net.arriving import Arrivals
from aioflow.net.chance import fresh_number
from aioflow.net.comm import ClosedByBlock, CommOptions, Idle, bare, gone, needed, nothing_to_tell
from aioflow.net.decoder import Decoder
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.framing import CHUNK_BYTES, Encoded, Kind, Message, bare_frame, encode
from aioflow.net.heartbeat import Beats, Heartbeat
from aioflow.net.inbox import Inbox, OnEnd, OnMessage
from aioflow.net.inherited import Inherited
from aioflow.net.proving import NONCE_BYTES, Proving, Role
from aioflow.net.sealing import SEALED_CHUNK_BYTES, Seal
from aioflow.net.shared_memory.sharing import Sharing
from aioflow.net.tensor_format import Buffer, Strings

__all__ = ["TcpComm", "connect_tcp", "tcp_address", "tls_times"]

_CLOSE: Final = bare_frame(Kind.CLOSE)


class TcpComm(ClosedByBlock, asyncio.BufferedProtocol):
    """One end of a TCP connection: an asyncio protocol and a comm.

    Args:
        role: The end of the connection that this is.
        options: Options of the connection.
        peer: Name of the other end in errors, or None for its address.
        arrivals: Limits the bytes arriving over this and other connections; None for no limit.

    Attributes:
        greeted: Done when both ends have proved themselves, or the connection has ended before that.
        lost: Done when the connection is closed.
    """

    peer: str
    peer_incarnation: int = 0
    peer_is_task: bool = False
    host: str = ""
    used_at: float = 0.0
    heard: int = 0
    _transport: asyncio.Transport
    _proving: Proving | None = None  # during the handshake
    _decoder: Decoder  # after the handshake
    _begun = _filling = False

    def __init__(
        self, role: Role, options: CommOptions, peer: str | None = None, arrivals: Arrivals | None = None
    ) -> None:
        self._role, self._arrivals = role, arrivals
        self.peer = peer or "a TCP peer"
        self._named = peer is not None
        self._options = options
        self.limits = options.limits
        self.idle: Callable[[], Idle | None] = needed
        self.tell: Callable[[], bool] = nothing_to_tell
        self._loop = asyncio.get_running_loop()
        self._connected = self._over_tls = False
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._seal: Seal | None = None  # of outgoing frames
        self._piece = CHUNK_BYTES  # longest payload sent in one piece
        self._inbox = Inbox(options.limits.unread_bytes, partial(_resume_reading, self))
        self._strings: list[Strings] = []  # string tensors of received messages, still to be decoded
        self._reading = True
        self._error: OpError | None = None
        self._goodbye = False  # True once the peer has closed gracefully
        self._heartbeat = Heartbeat(options.misses)
        self._beats = Beats(self._loop.time())
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()  # held by the sender of a long message
        self._writing = True
        self._writers: deque[asyncio.Future[None]] = deque()
        self._posted: list[Buffer] = []
        self._posted_bytes = 0
        self._inherited = Inherited()
        self._sharing = Sharing(options.limits, options.shared_memory)

    # ── what asyncio calls ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        self._connected = True
        sock, address = stream.get_extra_info("socket"), stream.get_extra_info("peername")
        if self._error is None and address is None:  # reset before it was accepted
            self._error = UnavailableError(f"{self.peer} cannot be reached any more: the connection is gone")
        if self._error is not None:
            self._fail(self._error)
            return
        self._inherited.add(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._over_tls = stream.get_extra_info("ssl_object") is not None
        stream.set_write_buffer_limits(high=_high(self))
        self.host = "" if is_loopback(address[0]) else address[0]
        if not self._named:
            self.peer = tcp_address(*address[:2])
        self._timer = self._loop.call_later(self._options.handshake_timeout, _late, self)
        self._beats = Beats(self._loop.time())
        if self._over_tls:
            self._piece = SEALED_CHUNK_BYTES
        self._proving = _opened(self, sock)
        stream.write(self._proving.opening)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        if self._proving is not None:
            return self._proving.buffer()
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` bytes written to the buffer."""
        self._heartbeat.heard()
        self._heard_at = self._loop.time()
        try:
            if self._proving is not None:
                _prove(self, self._proving, nbytes)
                return
            messages = self._decoder.received(nbytes)
            if self._strings:
                _hold(self, messages)
            else:
                _take(self, messages)
        except OpError as error:
            self._fail(bare(error))

    def eof_received(self) -> bool:
        """Process the end of the peer's data; the transport then closes itself."""
        if not self._goodbye:
            self._fail(UnavailableError(f"{self.peer} has ended without a goodbye{_perhaps(self)}"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed."""
        if isinstance(error, ssl.SSLError) and self._connected and self._proving is not None:
            self._fail(UnauthenticatedError(f"{self.peer} does not take this process's certificate: {error}"))
        because = ("the connection is gone" if error is None else f"{type(error).__name__}: {error}") + _perhaps(self)
        self._fail(UnavailableError(f"{self.peer} cannot be reached any more: {because}"))
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        self._sharing.end()
        if self._begun:  # now: this object is part of a reference cycle, and would wait for the collector
            self._decoder.drop()

    def pause_writing(self) -> None:
        """Make senders wait: the system accepts no more data for now."""
        self._writing = False

    def resume_writing(self) -> None:
        """Wake waiting senders: the system has accepted everything."""
        self._writing = True
        self._wake_writers()

    # ── in ──

    def _begin(self, proving: Proving) -> None:
        """Start to exchange messages after the handshake."""
        self._begun, self.used_at = True, self._heard_at
        seals, self._proving = proving.seals(), None
        if seals is not None:
            self._seal, self._piece = seals[0], SEALED_CHUNK_BYTES
        arriving = None if self._arrivals is None else self._arrivals.one(self._fail)
        self._decoder = Decoder(self.limits, None if seals is None else seals[1], arriving, self._strings)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._options.heartbeat, _tick, self)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _arrived(self, message: Message) -> None:
        if message.kind >= Kind.REQUEST:
            if message.kind is Kind.FAILURE and not message.request:
                raise decode_error(message.header, self.peer)  # the peer has closed with a reason
            self.used_at = self._heard_at
            size = sum(tensor.nbytes for tensor in message.tensors)
            self._inbox.put(message, size + _MESSAGE_BYTES)
            if self._inbox.full and self._reading:
                self._reading = False
                self._transport.pause_reading()
        elif message.kind is Kind.HEARTBEAT:
            self.heard = max(self.heard, message.request)
        elif message.kind is Kind.CLOSE:
            self._goodbye = True
            self._end(UnavailableError(f"{self.peer} has closed the connection"), None)

    def _fail(self, error: OpError) -> None:
        """End the connection at once because of an error, unless it has already ended."""
        self._end(error, error)
        if self._connected:
            self._transport.abort()

    def _end(self, error: OpError, received: OpError | None) -> None:
        """Stop sending and receiving.

        Further sends raise `error`. Once the received messages are consumed, receives raise `received`, if not None.
        """
        if self._error is None:
            self._error = error
        self._inbox.finish(received)
        if self._timer is not None:
            self._timer.cancel()
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._wake_writers()

    # ── out ──

    @property
    def closed(self) -> bool:
        """True if nothing can be sent any more."""
        return self._error is not None

    def _require_open(self) -> None:
        if self._error is not None:
            raise gone(self.peer, self._error)

    def post(self, message: Message) -> bool:
        """Send a message in one piece if no waiting is needed; see `Comm`."""
        self._require_open()
        if not self._writing or self._turn.locked():
            return False
        encoded = self._sharing.encode_now(message, self._piece)
        if encoded is None:
            return False
        if self._seal is not None:  # at once: tags depend on the order in which frames are written
            _write(self, self._seal.whole(encoded), encoded.size)
            return True
        if self._posted_bytes + encoded.size > _JOINED:
            self._write_posted()
        if not self._posted:
            self._loop.call_soon(self._write_posted)
        self._posted += encoded.whole()
        self._posted_bytes += encoded.size
        return True

    def _write_posted(self) -> None:
        """Write the messages that were posted in this turn of the event loop."""
        buffers, size = self._posted, self._posted_bytes
        self._posted, self._posted_bytes = [], 0
        if buffers and self._error is None:
            _write(self, buffers, size)

    async def send(self, message: Message, *, urgent: bool = False) -> None:
        """Send a message; see `Comm`."""
        if self._sharing.takes(message):
            self._require_open()
            async with self._turn:
                await self._send_in_turn(await self._sharing.encode(message))
            return
        encoded = encode(message, self.limits)
        self._require_open()
        self._write_posted()
        free = self._writing and not self._turn.locked()
        if (urgent and not encoded.payload) or (free and encoded.payload_bytes <= self._piece):
            _write(self, encoded.whole() if self._seal is None else self._seal.whole(encoded), encoded.size)
            if not self._writing:
                await self._written()
            return
        async with self._turn:
            await self._send_in_turn(encoded)

    async def _send_in_turn(self, encoded: Encoded) -> None:
        await self._written()
        self._require_open()
        self._write_posted()  # posted while `_turn` was free; `post` refuses messages while it is held
        if encoded.payload_bytes <= self._piece:
            _write(self, encoded.whole() if self._seal is None else self._seal.whole(encoded), encoded.size)
        else:
            await self._write_in_chunks(encoded)
        await self._written()

    def _write_bare(self, frame: bytes) -> None:
        self._transport.write(frame if self._seal is None else b"".join(self._seal.sealed([frame])))

    async def _write_in_chunks(self, encoded: Encoded) -> None:
        self._write_bare(encoded.head)
        try:
            for buffers in encoded.chunks(self._piece):
                for buffer in buffers if self._seal is None else self._seal.sealed(buffers):
                    self._transport.write(buffer)
                await self._written()
                await asyncio.sleep(0)  # small messages are sent in between
                self._require_open()
        except BaseException:
            self.abort("a send was stopped in the middle of a message")
            raise

    async def _written(self) -> None:
        """Wait until the system has accepted everything."""
        while not self._writing:
            self._require_open()
            waiter = self._loop.create_future()
            self._writers.append(waiter)
            await waiter

    def _wake_writers(self) -> None:
        while self._writers:
            waiter = self._writers.popleft()
            if not waiter.done():
                waiter.set_result(None)

    @property
    def silence(self) -> float:
        """Seconds since the peer's last data; see `Comm`."""
        return self._loop.time() - self._heard_at

    def since(self, beat: int) -> float:
        """Return the seconds since this end sent a heartbeat; see `Comm`."""
        return self._beats.since(beat, self._loop.time())

    async def receive(self) -> Message | None:
        """Return the next message, or None; see `Comm`."""
        return await self._inbox.receive(self.peer)

    def dispatch(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Hand messages over as they arrive; see `Dispatching`."""
        self._inbox.dispatch(self.peer, on_message, on_end)

    # ── the end ──

    async def opened(self) -> None:
        """Wait for the end of the handshake. Raises the error if it failed."""
        await asyncio.shield(self.greeted)
        if not self._goodbye:  # the peer may have closed right after the handshake
            self._require_open()

    async def close(self) -> None:
        """Send all pending data and close the connection; abort it after `CommOptions.close_timeout`."""
        try:
            async with asyncio.timeout(self._options.close_timeout):
                async with self._turn:
                    if self._error is None:
                        self._write_posted()
                        self._write_bare(_CLOSE)
                        self._end(UnavailableError(f"the connection to {self.peer} is closed"), None)
                        _resume_reading(self)  # up to the peer's end of file; further data is dropped
                        _end_writing(self._transport)
                await asyncio.shield(self.lost)
        except OSError:  # timed out, or the system has closed the connection
            self._transport.abort()
        except BaseException:
            self.abort("its close was stopped")
            raise

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self._fail(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))

    def dismiss(self, error: OpError) -> None:
        """Close the connection with a reason for the peer; see `Comm`."""
        if self._error is None and not self._turn.locked():  # otherwise a long message would have to be completed first
            if not self.tell():
                error.may_have_been_applied = True
            self._write_posted()
            _end_with(self, error)
        else:
            self._fail(error)


_MESSAGE_BYTES: Final = 512  # approximate memory of a message without tensors
# Bytes; some transports join buffers, which up to about this size is cheaper than another call.
_JOINED: Final = 1 << 20


def _opened(comm: TcpComm, sock: socket.socket) -> Proving:
    options, nonce = comm._options, b""
    credentials = options.credentials
    if credentials.secret is not None:
        nonce = fresh_number(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")
    seals = credentials.seals_loopback or (not comm._over_tls and bool(comm.host))
    shares = comm._sharing.offered(sock)
    return Proving(comm._role, options.incarnation, credentials.secret, seals, nonce, options.is_task, shares)


def _prove(comm: TcpComm, proving: Proving, nbytes: int) -> None:
    try:
        answer = proving.filled(nbytes)
    except OpError as error:
        if not proving.last_words:
            raise
        comm._end(error, error)
        comm._transport.write(proving.last_words)
        comm._transport.close()
        return
    if answer:
        comm._transport.write(answer)
    if proving.done and proving.peer is not None:
        comm.peer_incarnation, comm.peer_is_task = proving.peer.incarnation, proving.peer_is_task
        comm._begin(proving)
        first = comm._sharing.begin() if proving.shares else None
        if first is not None:
            comm.post(first)


def _late(comm: TcpComm) -> None:
    seconds = comm._options.handshake_timeout
    comm._fail(UnavailableError(f"{comm.peer} has not said who it is within {seconds:g} s"))


def _tick(comm: TcpComm) -> None:
    """Check the peer's heartbeat and send this end's."""
    reason = comm._heartbeat.tick(comm._reading and not comm._filling, comm._decoder.frames, comm._decoder.mid_frame)
    interval = comm._options.heartbeat
    if reason is not None:
        comm._fail(UnavailableError(f"{comm.peer} does not answer: {reason} of {interval:g} s"))
        return
    comm._timer = comm._loop.call_later(interval, _tick, comm)
    comm._sharing.tick()
    # While writing is paused, data is on its way, which counts as a sign of life.
    if comm._writing and not comm._transport.is_closing():
        comm._write_bare(bare_frame(Kind.HEARTBEAT, comm._beats.sent(comm._loop.time())))


def _resume_reading(comm: TcpComm) -> None:
    """Resume reading: the inbox has room again."""
    if not comm._reading:
        comm._reading = True
        if not comm._filling and not comm._transport.is_closing():
            comm._transport.resume_reading()


def _take(comm: TcpComm, messages: Sequence[Message]) -> None:
    for message in comm._sharing.within(messages):
        comm._arrived(message)


def _hold(comm: TcpComm, messages: Sequence[Message]) -> None:
    """Hand messages over once their strings are decoded, in several turns of the event loop. Read nothing before."""
    comm._filling = True
    comm._transport.pause_reading()
    comm._loop.call_soon(_fill, comm, messages)


def _fill(comm: TcpComm, messages: Sequence[Message]) -> None:
    if comm._strings and comm._error is None:
        if comm._strings[-1].take():
            comm._strings.pop()
        comm._loop.call_soon(_fill, comm, messages)
        return
    comm._strings.clear()
    comm._filling = False
    try:
        _take(comm, messages)
    except OpError as error:
        comm._fail(bare(error))
    if comm._reading and not comm._transport.is_closing():
        comm._transport.resume_reading()


def _perhaps(comm: TcpComm) -> str:
    """Return a further possible cause of the end of a connection."""
    # TLS 1.3 does not always notify the connecting end that its certificate was refused.
    if comm._proving is None:
        return ""
    return (
        ", and may not take this process's certificate" if comm._over_tls else ", and may ask for a certificate (TLS)"
    )


def _write(comm: TcpComm, buffers: Sequence[Buffer], size: int) -> None:
    stream = comm._transport
    if len(buffers) > 1 and size <= _JOINED:
        stream.writelines(buffers)
        if comm._writing and stream.get_write_buffer_size():
            # `writelines` of asyncio before 3.12.9 and 3.13.2 does not pause writing (CVE-2024-12254); this call does.
            stream.set_write_buffer_limits(high=_high(comm))
    else:
        for buffer in buffers:
            stream.write(buffer)


def _end_with(comm: TcpComm, error: OpError) -> None:
    """Close the connection with the error as a failure of request 0."""
    last = encode(Message(Kind.FAILURE, 0, encode_error(error, comm.limits.header_bytes)), comm.limits)
    _write(comm, last.whole() if comm._seal is None else comm._seal.whole(last), last.size)
    comm._end(error, error)
    comm._transport.close()
    comm._timer = comm._loop.call_later(comm._options.close_timeout, comm._transport.abort)


def _high(comm: TcpComm) -> int:
    """Return a high-water mark that acts as zero: over TLS, 0 would never be reached."""
    return 1 if comm._over_tls else 0


def _end_writing(transport: asyncio.Transport) -> None:
    if transport.can_write_eof():
        transport.write_eof()
    else:  # TLS has no half-close; closing still sends the written data first
        transport.close()


def tcp_address(host: str, port: int) -> str:
    """Return the comm address of a host and port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def tls_times(options: CommOptions) -> dict[str, Any]:
    """Return the time limits of TLS as arguments for event loop methods."""
    return {"ssl_handshake_timeout": options.handshake_timeout, "ssl_shutdown_timeout": options.close_timeout}


async def connect_tcp(place: str, options: CommOptions, peer: str) -> TcpComm:
    """Connect to a listener and complete the handshake.

    Raises:
        PermissionDeniedError: the address is beyond the loopback, and this process has no credentials.
        UnauthenticatedError: the two ends do not have the same secret.
        UnavailableError: nothing listens there, or no peer answers.
        DataLossError, UnimplementedError: the other end is not a peer, or has another version of the protocol.
    """
    host, port = split_host(place)
    address, port = await resolved(host, port, anywhere=options.credentials.prove)
    tls = options.credentials.tls
    secured: dict[str, Any] = {}
    if tls is not None:
        secured = dict(ssl=tls.connecting(), server_hostname=host, **tls_times(options))
    comm = TcpComm(Role.CONNECTING, options, peer)
    try:
        await _connected(comm, f"{host}:{port}", (address, port), secured)
        await comm.opened()
    except BaseException:
        comm.abort("the handshake has failed")
        comm.connection_lost(None)  # uvloop closes the transport of a cancelled connect without this call
        raise
    return comm


async def _connected(comm: TcpComm, place: str, at: tuple[str, int], secured: dict[str, Any]) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: comm, *at, **secured)
    except ssl.SSLError as error:
        raise UnauthenticatedError(
            f"{comm.peer} and this process do not take each other's certificates: {error}"
        ) from error
    except OSError as error:
        said = str(error) if error.errno is None else f"{os.strerror(error.errno)} ({place})"
        raise UnavailableError(said) from error
