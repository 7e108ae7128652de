"""Comms within one process and event loop: "inproc://name".

They behave as TCP does: headers pass through the same encoding and checks. An array is shared if it and all its bases
are read-only, and copied otherwise. Received arrays are read-only.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from aioflow.concurrency.forking import in_child
from aioflow.errors import AlreadyExistsError, OpError, ResourceExhaustedError, UnavailableError
from aioflow.memory.values import Array, Value
from aioflow.net.accepting import Connections
from aioflow.net.comm import ClosedByBlock, CommOptions, Handler, Idle, gone, needed, nothing_to_tell
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.framing import EncodedMessage, WireMessage, decode_header, encode
from aioflow.net.inbox import Inbox

_LISTENERS: Final[dict[str, InprocListener]] = {}
in_child(_LISTENERS.clear)
_NUMBERS: Final = itertools.count(1)


class InprocComm(ClosedByBlock):
    """One end of an in-process connection."""

    def __init__(self, peer: str, options: CommOptions) -> None:
        self.peer = peer
        self.peer_incarnation = 0
        self.peer_is_task = False
        self.heard = 0
        self.silence = 0.0  # messages arrive immediately
        self.limits = options.limits
        self.host = ""
        self.idle: Callable[[], Idle | None] = needed
        self.tell: Callable[[], bool] = nothing_to_tell
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._inbox = Inbox(options.limits.unread_bytes, self._made_room)
        self._senders: deque[asyncio.Future[None]] = deque()  # tasks of the other end that wait for room in this inbox
        self._error: OpError | None = None
        self._other: InprocComm

    @classmethod
    def pair(cls, names: tuple[str, str], options: tuple[CommOptions, CommOptions]) -> tuple[InprocComm, InprocComm]:
        """Return two connected ends; `names[0]` is the first end's name for its peer."""
        first, second = (cls(name, option) for name, option in zip(names, options, strict=True))
        first._other, second._other = second, first
        first.peer_incarnation, second.peer_incarnation = options[1].incarnation, options[0].incarnation
        first.peer_is_task, second.peer_is_task = options[1].is_task, options[0].is_task
        return first, second

    @property
    def closed(self) -> bool:
        """True if messages can no longer be sent."""
        return self._error is not None

    def since(self, beat: int) -> float:
        """Return 0, since messages arrive immediately; see `Comm`."""
        return 0.0

    def post(self, message: WireMessage) -> bool:
        """Send a message unless the peer's inbox is full; see `Comm`."""
        if self._other._inbox.full:
            return False
        self._send(message)
        return True

    async def send(self, message: WireMessage, *, urgent: bool = False) -> None:
        """Send a message; see `Comm`."""
        self._send(message)
        other = self._other
        # The message itself is queued already; its sender waits on behalf of the next ones.
        while other._inbox.full and self._error is None:
            waiter = asyncio.get_running_loop().create_future()
            other._senders.append(waiter)
            await waiter

    def _send(self, message: WireMessage) -> None:
        encoded = encode(message, self.limits)
        self._require_open()
        other = self._other
        try:
            received = other._received(message, encoded)
        except OpError as error:
            # As over TCP, an invalid message ends the connection at the receiver and then at the sender.
            other._end(error)
            self._end(UnavailableError(f"{self.peer} has ended the connection: {error.message}"))
            return
        other._inbox.put(received, encoded.size)

    def _received(self, message: WireMessage, encoded: EncodedMessage) -> WireMessage:
        self.used_at = self._loop.time()
        limits = self.limits
        # The sender has checked its own limits in `encode`; these are the receiver's.
        if len(encoded.header) > limits.header_bytes or encoded.size - len(encoded.header) > limits.tensor_bytes:
            raise ResourceExhaustedError("bytes of one message", expected=limits, actual=encoded.size)
        specs, document = decode_header(encoded.header, limits)
        if len(specs) > limits.tensors:
            raise ResourceExhaustedError("tensors of one message", expected=limits.tensors, actual=len(specs))
        return WireMessage(message.kind, message.request, document, tuple(_kept(tensor) for tensor in message.tensors))

    async def receive(self) -> WireMessage | None:
        """Return the next message, or None; see `Comm`."""
        return await self._inbox.receive(self.peer)

    async def close(self) -> None:
        """Close the connection. The peer has received everything already."""
        if self._error is None:
            self._end_cleanly(f"the connection to {self.peer} is closed")
            self._other._end_cleanly(f"{self._other.peer} closed the connection")

    def abort(self, reason: str) -> None:
        """Close the connection immediately."""
        if self._error is None:
            self._end(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))
            self._other._end(UnavailableError(f"{self._other.peer} closed the connection unexpectedly"))

    def close_with(self, error: OpError) -> None:
        """Close the connection immediately and send the peer the reason; see `Comm`."""
        if self._error is None:
            # Answers that could not be sent are unknown to the peer, so their requests may have been applied.
            if not self.tell():
                error.may_have_been_applied = True
            document = encode_error(error, self.limits.header_bytes)
            self._end(error)
            self._other._end(decode_error(document, self._other.peer))

    def _end_cleanly(self, message: str) -> None:
        self._inbox.finish(None)
        self._end(UnavailableError(message))

    def _end(self, error: OpError) -> None:
        if self._error is None:
            self._error = error
        self._inbox.finish(error)
        # Wakes the senders at both ends: no room will be made any more.
        self._made_room()
        self._other._made_room()

    def _made_room(self) -> None:
        while self._senders:
            waiter = self._senders.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _require_open(self) -> None:
        if self._error is not None:
            raise gone(self.peer, self._error)


def _kept(value: Value) -> Array:
    """Return a read-only array for the receiver that shares no writable memory with the sender."""
    array = np.asarray(value)
    if not _frozen(array):
        array = array.copy()  # in C order, as after transmission
    kept = array.astype(array.dtype.newbyteorder("="), copy=False).view()
    kept.flags.writeable = False
    return kept


def _frozen(array: Array) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        # A read-only view changes with the writable array below it.
        if base.flags.writeable:
            return False
        base = base.base
    # Memory that does not belong to NumPy may change although all arrays are read-only.
    return base is None and array.flags.c_contiguous


class InprocListener:
    """A name under which connections are accepted."""

    def __init__(self, name: str, connections: Connections, options: CommOptions) -> None:
        self.address = f"inproc://{name}"
        self.options = options
        self.loop = asyncio.get_running_loop()
        self._connections = connections

    def accept(self, comm: InprocComm) -> None:
        """Pass a connection to the handler. Raises UnavailableError if there are too many."""
        self._connections.admit(comm)


@asynccontextmanager
async def listen_inproc(place: str, handler: Handler, options: CommOptions) -> AsyncIterator[InprocListener]:
    """Accept connections to a name during the block. Raises AlreadyExistsError if the name is in use."""
    if place in _LISTENERS:
        raise AlreadyExistsError(f"something already listens at inproc://{place}", expected="a free name", actual=place)
    async with Connections(handler, options) as connections:
        listener = _LISTENERS[place] = InprocListener(place, connections, options)
        try:
            yield listener
        finally:
            del _LISTENERS[place]


async def connect_inproc(place: str, options: CommOptions, peer: str) -> InprocComm:
    """Connect to a name.

    Raises:
        UnavailableError: no listener of this event loop has that name, or it has too many connections.
    """
    listener = _LISTENERS.get(place)
    if listener is None or listener.loop is not asyncio.get_running_loop():
        # The same cause as over TCP: callers use it to distinguish a missing listener from a silent one.
        refusal = ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
        raise UnavailableError(f"nothing listens at inproc://{place} on this event loop") from refusal
    names = (peer, f"inproc://{place}#{next(_NUMBERS)}")
    ours, theirs = InprocComm.pair(names, (options, listener.options))
    listener.accept(theirs)
    return ours
