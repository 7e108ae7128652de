"""Comms over TCP: "tcp://127.0.0.1:2222".

The protocol receives into buffers chosen by the decoder: within a large tensor, the tensor's own memory. `sender` has
the other direction.

Until both ends have proved themselves (`proving`), only the few bytes of the handshake are read, and no memory is
allocated.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aioflow.errors import OpError, UnauthenticatedError, UnavailableError
from aioflow.net.addresses import is_loopback, resolved, split_host
from aioflow.net.arriving import Arrivals
from aioflow.net.chance import fresh_number
from aioflow.net.comm import ClosedByBlock, CommOptions, Idle, bare, gone, needed, nothing_to_tell
from aioflow.net.decoder import Decoder
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.framing import FrameKind, WireMessage, bare_frame, encode
from aioflow.net.heartbeat import Heartbeat, SentHeartbeats
from aioflow.net.inbox import Inbox, OnEnd, OnMessage
from aioflow.net.inherited import Inherited
from aioflow.net.proving import NONCE_BYTES, ConnectionEnd, Proving
from aioflow.net.sender import Sender
from aioflow.net.shared_memory.sharing import Sharing
from aioflow.net.tensor_format import Strings

_CLOSE: Final = bare_frame(FrameKind.CLOSE)


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
        self, role: ConnectionEnd, options: CommOptions, peer: str | None = None, arrivals: Arrivals | None = None
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
        self._inbox = Inbox(options.limits.unread_bytes, self._resume_reading)
        self._strings: list[Strings] = []  # string tensors of received messages, still to be decoded
        self._reading = True
        self._error: OpError | None = None
        self._closed_gracefully = False  # True once the peer has closed gracefully
        self._heartbeat = Heartbeat(options.misses)
        self._beats = SentHeartbeats(self._loop.time())
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._inherited = Inherited()
        self._sharing = Sharing(options.limits, options.shared_memory)
        self._sender = Sender(options.limits, self._sharing, self._require_open, self.abort)

    # ── callbacks of asyncio ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        self._connected = True
        sock, address = stream.get_extra_info("socket"), stream.get_extra_info("peername")
        if self._error is None and address is None:  # reset before it was accepted
            self._error = UnavailableError(f"{self.peer} is no longer reachable: the connection was lost")
        if self._error is not None:
            self._fail(self._error)
            return
        self._inherited.add(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._over_tls = stream.get_extra_info("ssl_object") is not None
        self._sender.start(stream, self._over_tls)
        self.host = "" if is_loopback(address[0]) else address[0]
        if not self._named:
            self.peer = tcp_address(*address[:2])
        self._timer = self._loop.call_later(self._options.handshake_timeout, self._late)
        # The opening below counts as heartbeat 0. Its time is that of the connection, not of the comm's construction.
        self._beats = SentHeartbeats(self._loop.time())
        self._proving = self._opened(sock)
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
                self._prove(self._proving, nbytes)
                return
            messages = self._decoder.received(nbytes)
            if self._strings:
                self._hold(messages)
            else:
                self._take(messages)
        except OpError as error:
            self._fail(bare(error))

    def eof_received(self) -> bool:
        """Process the end of the peer's data; the transport then closes itself."""
        if not self._closed_gracefully:
            self._fail(UnavailableError(f"{self.peer} closed the connection unexpectedly{self._perhaps()}"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after the connection has closed."""
        if isinstance(error, ssl.SSLError) and self._connected and self._proving is not None:
            self._fail(UnauthenticatedError(f"{self.peer} rejected this process's certificate: {error}"))
        because = ("the connection was lost" if error is None else f"{type(error).__name__}: {error}") + self._perhaps()
        # The first error is kept, so this one counts only if nothing else has ended the connection.
        self._fail(UnavailableError(f"{self.peer} is no longer reachable: {because}"))
        if self._timer is not None:
            self._timer.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        self._sharing.end()
        if self._begun:  # now: this object is part of a reference cycle, and would wait for the collector
            self._decoder.drop()

    def pause_writing(self) -> None:
        """Make senders wait: the system accepts no more data for now."""
        self._sender.pause()

    def resume_writing(self) -> None:
        """Wake waiting senders: the system has accepted everything."""
        self._sender.resume()

    # ── handshake ──

    def _opened(self, sock: socket.socket) -> Proving:
        options, nonce = self._options, b""
        credentials = options.credentials
        if credentials.secret is not None:
            nonce = fresh_number(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "little")
        seals = credentials.seals_loopback or (not self._over_tls and bool(self.host))
        shares = self._sharing.offered(sock)
        return Proving(self._role, options.incarnation, credentials.secret, seals, nonce, options.is_task, shares)

    def _prove(self, proving: Proving, nbytes: int) -> None:
        try:
            answer = proving.filled(nbytes)
        except OpError as error:
            if not proving.last_words:
                raise
            # Not `_fail`: it aborts the transport, which would drop the last words.
            self._end(error, error)
            self._transport.write(proving.last_words)
            self._transport.close()
            return
        if answer:
            self._transport.write(answer)
        if proving.done and proving.peer is not None:
            self.peer_incarnation, self.peer_is_task = proving.peer.incarnation, proving.peer_is_task
            self._begin(proving)
            first = self._sharing.begin() if proving.shares else None
            if first is not None:
                self.post(first)

    def _late(self) -> None:
        seconds = self._options.handshake_timeout
        self._fail(UnavailableError(f"{self.peer} did not complete the handshake within {seconds:g} s"))

    def _perhaps(self) -> str:
        """Return a further possible cause of the end of a connection."""
        # TLS 1.3 does not always notify the connecting end that its certificate was refused.
        if self._proving is None:
            return ""
        if self._over_tls:
            return "; it may have rejected this process's certificate"
        return "; it may require TLS with a certificate"

    def _begin(self, proving: Proving) -> None:
        """Start to exchange messages after the handshake."""
        self._begun, self.used_at = True, self._heard_at
        seals, self._proving = proving.seals(), None
        if seals is not None:
            self._sender.seal_with(seals[0])
        arriving = None if self._arrivals is None else self._arrivals.one(self._fail)
        self._decoder = Decoder(self.limits, None if seals is None else seals[1], arriving, self._strings)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._options.heartbeat, self._tick)
        if not self.greeted.done():
            self.greeted.set_result(None)

    # ── in ──

    def _tick(self) -> None:
        """Check the peer's heartbeat and send this end's."""
        decoder, interval = self._decoder, self._options.heartbeat
        reason = self._heartbeat.tick(self._reading and not self._filling, decoder.frames, decoder.mid_frame)
        if reason is not None:
            self._fail(UnavailableError(f"{self.peer} is not responding: {reason} of {interval:g} s"))
            return
        self._timer = self._loop.call_later(interval, self._tick)
        self._sharing.tick()
        # While writing is paused, data is on its way, which counts as a sign of life.
        if self._sender.is_ready and not self._transport.is_closing():
            self._sender.write_bare(bare_frame(FrameKind.HEARTBEAT, self._beats.sent(self._loop.time())))

    def _take(self, messages: Sequence[WireMessage]) -> None:
        for message in self._sharing.within(messages):
            self._arrived(message)

    def _hold(self, messages: Sequence[WireMessage]) -> None:
        """Decode strings in several turns of the event loop, then hand the messages over. Read nothing before."""
        self._filling = True
        self._transport.pause_reading()
        self._loop.call_soon(self._fill, messages)

    def _fill(self, messages: Sequence[WireMessage]) -> None:
        if self._strings and self._error is None:
            if self._strings[-1].take():
                self._strings.pop()
            self._loop.call_soon(self._fill, messages)
            return
        # After an error some strings are left. They need no decoding: the inbox drops the messages.
        self._strings.clear()
        self._filling = False
        try:
            self._take(messages)
        except OpError as error:
            self._fail(bare(error))
        if self._reading and not self._transport.is_closing():
            self._transport.resume_reading()

    def _resume_reading(self) -> None:
        """Resume reading: the inbox has room again."""
        if not self._reading:
            self._reading = True
            if not self._filling and not self._transport.is_closing():
                self._transport.resume_reading()

    def _arrived(self, message: WireMessage) -> None:
        if message.kind >= FrameKind.REQUEST:
            if message.kind is FrameKind.FAILURE and not message.request:
                raise decode_error(message.header, self.peer)  # the peer has closed with a reason
            self.used_at = self._heard_at
            size = sum(tensor.nbytes for tensor in message.tensors)
            self._inbox.put(message, size + _MESSAGE_BYTES)
            if self._inbox.full and self._reading:
                self._reading = False
                self._transport.pause_reading()
        elif message.kind is FrameKind.HEARTBEAT:
            self.heard = max(self.heard, message.request)
        elif message.kind is FrameKind.CLOSE:
            # Queued messages can still be received, followed by None.
            self._closed_gracefully = True
            self._end(UnavailableError(f"{self.peer} closed the connection"), None)

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
        self._sender.end()

    # ── out ──

    @property
    def closed(self) -> bool:
        """True if nothing can be sent any more."""
        return self._error is not None

    def _require_open(self) -> None:
        if self._error is not None:
            raise gone(self.peer, self._error)

    def post(self, message: WireMessage) -> bool:
        """Send a message in one piece if no waiting is needed; see `Comm`."""
        return self._sender.post(message)

    async def send(self, message: WireMessage, *, urgent: bool = False) -> None:
        """Send a message; see `Comm`."""
        await self._sender.send(message, urgent=urgent)

    @property
    def silence(self) -> float:
        """Seconds since the peer's last data; see `Comm`."""
        return self._loop.time() - self._heard_at

    def since(self, beat: int) -> float:
        """Return the seconds since this end sent a heartbeat; see `Comm`."""
        return self._beats.since(beat, self._loop.time())

    async def receive(self) -> WireMessage | None:
        """Return the next message, or None; see `Comm`."""
        return await self._inbox.receive(self.peer)

    def dispatch(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Hand messages over as they arrive; see `Dispatching`."""
        self._inbox.dispatch(self.peer, on_message, on_end)

    # ── the end ──

    async def opened(self) -> None:
        """Wait for the end of the handshake. Raises the error if it failed."""
        await asyncio.shield(self.greeted)
        if not self._closed_gracefully:  # the peer may have closed right after the handshake
            self._require_open()

    async def close(self) -> None:
        """Send all pending data and close the connection; abort it after `CommOptions.close_timeout`."""
        try:
            async with asyncio.timeout(self._options.close_timeout):
                # A long message that is being sent comes first: the CLOSE frame must not come between its chunks.
                async with self._sender.turn:
                    if self._error is None:
                        self._sender.flush()
                        self._sender.write_bare(_CLOSE)
                        self._end(UnavailableError(f"the connection to {self.peer} is closed"), None)
                        self._resume_reading()  # up to the peer's end of file; further data is dropped
                        _end_writing(self._transport)
                await asyncio.shield(self.lost)
        except OSError:  # timed out, or the system closed the connection
            self._transport.abort()
        except BaseException:
            self.abort("its close was cancelled")
            raise

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        self._fail(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))

    def close_with(self, error: OpError) -> None:
        """Close the connection with a reason for the peer; see `Comm`."""
        # A long message would have to be completed first.
        if self._error is None and not self._sender.turn.locked():
            if not self.tell():
                error.may_have_been_applied = True
            reason = WireMessage(FrameKind.FAILURE, 0, encode_error(error, self.limits.header_bytes))
            self._sender.write(encode(reason, self.limits))
            self._end(error, error)
            # Closing first flushes the transport's buffer, which takes forever if the peer does not read: hence the
            # timer.
            self._transport.close()
            self._timer = self._loop.call_later(self._options.close_timeout, self._transport.abort)
        else:
            self._fail(error)


_MESSAGE_BYTES: Final = 512  # approximate memory of a message without tensors


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
        UnauthenticatedError: the two ends do not have the same secret, or refuse each other's certificates.
        UnavailableError: nothing listens there, or no peer answers.
        DataLossError, UnimplementedError: the other end is not a peer, or has another version of the protocol.
    """
    host, port = split_host(place)
    address, port = await resolved(host, port, anywhere=options.credentials.prove)
    tls = options.credentials.tls
    secured: dict[str, Any] = {}
    if tls is not None:
        # `host` is the name that the caller gave, not the resolved address: the certificate is checked against it.
        secured = dict(ssl=tls.connecting(), server_hostname=host, **tls_times(options))
    comm = TcpComm(ConnectionEnd.CONNECTING, options, peer)
    try:
        await _connected(comm, f"{host}:{port}", (address, port), secured)
        await comm.opened()
    except BaseException:
        comm.abort("the handshake failed")
        comm.connection_lost(None)  # uvloop closes the transport of a cancelled connect without this call
        raise
    return comm


async def _connected(comm: TcpComm, place: str, at: tuple[str, int], secured: dict[str, Any]) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: comm, *at, **secured)
    except ssl.SSLError as error:
        raise UnauthenticatedError(f"TLS handshake with {comm.peer} failed: {error}") from error
    except OSError as error:
        said = str(error) if error.errno is None else f"{os.strerror(error.errno)} ({place})"
        raise UnavailableError(said) from error
