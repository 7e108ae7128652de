"""Comms over TCP, of this machine's loopback only: "tcp://127.0.0.1:2222", port 0 for any.

The protocol receives into buffers that the decoder names: within a large tensor, its own memory. The transport has a
high-water mark of zero, so that `send` knows when the system has everything. What is not long goes to it at once, in
one call of the system, with whatever else was posted in the same turn of the event loop. A long message goes one
buffer at a time, so that none is joined with others, and after every chunk the loop gets its turn, and small messages
with it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, cast

from aioflow.errors import AlreadyExistsError, OpError, UnavailableError
from aioflow.net.accepting import Connections
from aioflow.net.addresses import loopback, reserved_socket, split_host
from aioflow.net.comm import CommOptions, Handler, gone
from aioflow.net.decoder import Decoder
from aioflow.net.framing import Encoded, Kind, Message, bare_frame, encode
from aioflow.net.handshake import HELLO_BYTES, Hello, parse_hello
from aioflow.net.heartbeat import Beats, Heartbeat
from aioflow.net.inbox import Inbox, OnEnd, OnMessage
from aioflow.net.inherited import Inherited
from aioflow.net.tensor_format import Buffer

__all__ = ["TcpComm", "TcpListener", "connect_tcp", "listen_tcp"]

_CLOSE: Final = bare_frame(Kind.CLOSE)


class TcpComm(asyncio.BufferedProtocol):
    """One end of a TCP connection: the protocol that asyncio drives, and the comm that is used.

    Args:
        peer: What to call the other end, or None for its address.
        refusal: Why the connection is to be ended as soon as it is there, or None.

    Attributes:
        greeted: Done when the peer has said hello, or the connection has ended before.
    """

    peer: str
    peer_incarnation: int = 0
    heard: int = 0
    _transport: asyncio.Transport

    def __init__(self, options: CommOptions, peer: str | None = None, refusal: str | None = None) -> None:
        self.peer = peer or "a TCP peer"
        self._named = peer is not None
        self._options = options
        self.limits = options.limits
        self._loop = asyncio.get_running_loop()
        self._connected = False
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._hello: bytearray | None = bytearray(HELLO_BYTES)
        self._hello_count = 0
        self._decoder = Decoder(options.limits)
        self._inbox = Inbox(options.limits.unread_bytes, self._resume_reading)
        self._reading = True
        self._error: OpError | None = None if refusal is None else UnavailableError(refusal)
        self._goodbye = False  # whether the peer has said it
        self._heartbeat = Heartbeat(options.misses)
        self._beats = Beats(self._loop.time())
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()  # of who sends in order
        self._writing = True
        self._writers: deque[asyncio.Future[None]] = deque()
        self._posted: list[Buffer] = []
        self._posted_bytes = 0
        self._inherited = Inherited()

    # ── what asyncio calls ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = stream = cast("asyncio.Transport", transport)  # what uvloop gives is none by its class
        self._connected = True
        sock, address = stream.get_extra_info("socket"), stream.get_extra_info("peername")
        if self._error is None and address is None:  # it was reset before it was accepted
            self._error = UnavailableError(f"{self.peer} cannot be reached any more: the connection is gone")
        if self._error is not None:
            self._fail(self._error)
            return
        self._inherited.add(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.set_write_buffer_limits(high=0)
        if not self._named:
            self.peer = _address(*address[:2])
        self._timer = self._loop.call_later(self._options.handshake_timeout, self._late)
        self._beats = Beats(self._loop.time())
        stream.write(Hello(self._options.incarnation).to_bytes())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._hello is not None:
            return memoryview(self._hello)[self._hello_count :]
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self._heartbeat.heard()
        self._heard_at = self._loop.time()
        try:
            if self._hello is not None:
                self._greeted(self._hello, nbytes)
                return
            for message in self._decoder.received(nbytes):
                self._arrived(message)
        except OpError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """The peer sends no more; the transport closes itself."""
        if not self._goodbye:
            self._fail(UnavailableError(f"{self.peer} has ended without a goodbye"))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        because = "the connection is gone" if error is None else f"{type(error).__name__}: {error}"
        self._fail(UnavailableError(f"{self.peer} cannot be reached any more: {because}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """The system takes no more for now."""
        self._writing = False

    def resume_writing(self) -> None:
        """The system has taken everything."""
        self._writing = True
        self._wake_writers()

    # ── in ──

    def _greeted(self, hello: bytearray, nbytes: int) -> None:
        self._hello_count += nbytes
        if self._hello_count < HELLO_BYTES:
            return
        self._hello = None
        self.peer_incarnation = parse_hello(hello).incarnation
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._options.heartbeat, self._tick)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _arrived(self, message: Message) -> None:
        if message.kind >= Kind.REQUEST:
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

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _late(self) -> None:
        seconds = self._options.handshake_timeout
        self._fail(UnavailableError(f"{self.peer} has not said hello within {seconds:g} s"))

    def _tick(self) -> None:
        reason = self._heartbeat.tick(self._reading, self._decoder.frames, self._decoder.mid_frame)
        if reason is not None:
            interval = self._options.heartbeat
            self._fail(UnavailableError(f"{self.peer} does not answer: {reason} of {interval:g} s"))
            return
        self._timer = self._loop.call_later(self._options.heartbeat, self._tick)
        if self._writing and not self._transport.is_closing():  # otherwise there is no lack of data on the way to it
            self._transport.write(bare_frame(Kind.HEARTBEAT, self._beats.sent(self._loop.time())))

    def _fail(self, error: OpError) -> None:
        """End at once because of an error, unless it has ended already."""
        self._end(error, error)
        if self._connected:
            self._transport.abort()

    def _end(self, error: OpError, received: OpError | None) -> None:
        """Nothing more is sent, or received after what has come: senders get `error`, receivers `received`."""
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
        """Whether nothing can be sent any more."""
        return self._error is not None

    def _require_open(self) -> None:
        if self._error is not None:
            raise gone(self.peer, self._error)

    def post(self, message: Message) -> bool:
        """Send a message that goes in one piece, unless something is in the way; see `Comm`."""
        self._require_open()
        if not self._writing or self._turn.locked():
            return False
        encoded = encode(message, self.limits)
        if not encoded.is_whole:
            return False
        if self._posted_bytes + encoded.size > _JOINED:
            self._write_posted()
        if not self._posted:
            self._loop.call_soon(self._write_posted)
        self._posted += encoded.whole()
        self._posted_bytes += encoded.size
        return True

    def _write_posted(self) -> None:
        """Hand over what was posted in this turn of the event loop."""
        buffers, size = self._posted, self._posted_bytes
        self._posted, self._posted_bytes = [], 0
        if buffers and self._error is None:
            self._write(buffers, size)

    async def send(self, message: Message, *, urgent: bool = False) -> None:
        """Send a message; see `Comm`."""
        encoded = encode(message, self.limits)
        self._require_open()
        self._write_posted()
        free = self._writing and not self._turn.locked()
        if (urgent and not encoded.payload) or (free and encoded.is_whole):
            self._write(encoded.whole(), encoded.size)
            if not self._writing:
                await self._written()
            return
        async with self._turn:
            await self._written()
            self._require_open()
            if encoded.is_whole:
                self._write(encoded.whole(), encoded.size)
            else:
                await self._write_in_chunks(encoded)
            await self._written()

    def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        stream = self._transport
        if len(buffers) > 1 and size <= _JOINED:
            stream.writelines(buffers)
            if self._writing and stream.get_write_buffer_size():
                # `writelines` of asyncio before 3.12.9 and 3.13.2 pauses nobody (CVE-2024-12254); this does.
                stream.set_write_buffer_limits(high=0)
        else:
            for buffer in buffers:
                stream.write(buffer)

    async def _write_in_chunks(self, encoded: Encoded) -> None:
        self._transport.write(encoded.head)
        try:
            for buffers in encoded.chunks():
                for buffer in buffers:
                    self._transport.write(buffer)
                await self._written()
                await asyncio.sleep(0)  # small messages go here
                self._require_open()
        except BaseException:
            self.abort("a send was stopped in the middle of a message")
            raise

    async def _written(self) -> None:
        """Wait until the system has everything."""
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
        """Seconds for which nothing has come; see `Comm`."""
        return self._loop.time() - self._heard_at

    def since(self, beat: int) -> float:
        """Seconds since this end sent a heartbeat; see `Comm`."""
        return self._beats.since(beat, self._loop.time())

    async def receive(self) -> Message | None:
        """The next message, or None; see `Comm`."""
        return await self._inbox.receive(self.peer)

    def dispatch(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Hand messages over as they arrive; see `Dispatching`."""
        self._inbox.dispatch(self.peer, on_message, on_end)

    # ── the end ──

    async def opened(self) -> None:
        """Wait for the peer's hello. Raises what went wrong."""
        await asyncio.shield(self.greeted)
        self._require_open()

    async def close(self) -> None:
        """Let the peer have everything, and end the connection; aborts after `CommOptions.close_timeout`."""
        try:
            async with asyncio.timeout(self._options.close_timeout):
                async with self._turn:
                    if self._error is None:
                        self._write_posted()
                        self._transport.write(_CLOSE)
                        self._end(UnavailableError(f"the connection to {self.peer} is closed"), None)
                        self._resume_reading()  # up to the peer's end of file; what comes is dropped
                        self._transport.write_eof()
                await asyncio.shield(self._lost)
        except OSError:  # the time is up, or the system has ended the connection already
            self._transport.abort()
        except BaseException:
            self.abort("its close was stopped")
            raise

    def abort(self, reason: str) -> None:
        """End the connection now."""
        self._fail(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort(f"{type(error).__name__} in the block that used it")


_MESSAGE_BYTES: Final = 512  # what a message without tensors takes, about
_JOINED: Final = 1 << 20  # bytes; some transports join buffers, which is cheaper than another call up to about this


class TcpListener:
    """A listening socket."""

    def __init__(self, address: str) -> None:
        self.address = address


def _address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@asynccontextmanager
async def listen_tcp(place: str, handler: Handler, options: CommOptions) -> AsyncIterator[TcpListener]:
    """Accept connections for as long as the block runs.

    Raises:
        PermissionDeniedError: the address is not of the loopback.
        AlreadyExistsError: it is taken. (Not UnavailableError: who supervises a session would try again, and talk to
            the process that has taken it.)
        UnavailableError: it is not of this machine.
    """
    host, port = await loopback(*split_host(place))
    waiting: dict[TcpComm, None] = {}  # connected, and not greeted

    def accept() -> TcpComm:
        full = len(waiting) + connections.count >= options.connections
        comm = TcpComm(options, refusal="there are too many connections" if full else None)
        waiting[comm] = None
        comm.greeted.add_done_callback(lambda _: greeted(comm))
        return comm

    def greeted(comm: TcpComm) -> None:
        waiting.pop(comm, None)
        if not comm.closed:
            connections.start(comm)

    async with Connections(handler) as connections:
        try:
            loop, reserved = asyncio.get_running_loop(), reserved_socket(place)
            if reserved is None:
                server = await loop.create_server(accept, host, port)
            else:
                server = await loop.create_server(accept, sock=reserved)
        except OSError as error:
            kind = AlreadyExistsError if error.errno == errno.EADDRINUSE else UnavailableError
            raise kind(f"cannot listen at {_address(host, port)}: {error}") from error
        _inherited = Inherited(server.sockets)  # for as long as they listen
        try:
            yield TcpListener(_address(*server.sockets[0].getsockname()[:2]))
        finally:
            server.close()
            for comm in list(waiting):
                comm.abort("nobody listens any more")


async def connect_tcp(place: str, options: CommOptions, peer: str) -> TcpComm:
    """Connect to a listener, and exchange hellos.

    Raises:
        PermissionDeniedError: the address is not of the loopback.
        UnavailableError: nothing listens there, or no peer answers.
        DataLossError, UnimplementedError: what answers is not a peer, or one of another version.
    """
    host, port = await loopback(*split_host(place))
    loop = asyncio.get_running_loop()
    try:
        _, comm = await loop.create_connection(lambda: TcpComm(options, peer), host, port)
    except OSError as error:
        raise UnavailableError(str(error)) from error
    try:
        await comm.opened()
    except BaseException:
        comm.abort("the handshake has failed")
        raise
    return comm
