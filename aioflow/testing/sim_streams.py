"""Connections of a simulated network, below asyncio's transports: the sockets of both systems and the wire.

A living connection neither loses nor reorders bytes: each direction is one queue, with one timer for its first item.
Arrival times and the split into pieces are random, by the seed. A receiver that does not read (its process is paused,
or called `pause_reading`) fills the window of the connection; the sender is then paused, as by a real socket.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

# b"" is an end of file and None a reset, beside bytes in one queue.
_FIN: Final = b""
_RST: Final = None
_LONGEST_READ: Final = 256 << 10
_SMALLEST_SEND: Final = 2 << 10  # TCP also waits for room rather than sending a few bytes at a time


@dataclass(eq=False)
class SimLink:
    """One direction between two hosts.

    Attributes:
        chance: Random source of this link.
        latency: Minimum delay of every byte, in seconds.
        jitter: Mean of the random additional delay, in seconds.
        cut: Probability that one write arrives in pieces.
        bandwidth: Bytes per second.
        window: Maximum number of bytes of a connection in transit or unread.
        blocked: Whether the link holds all traffic for now.
        waiting: Callbacks that resume the queues held by a blocked link.
    """

    chance: random.Random
    latency: float
    jitter: float
    cut: float
    bandwidth: float = 1e9
    window: int = 1 << 18
    blocked: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def delay(self) -> float:
        """Return the delay of data that is sent now, in seconds."""
        return self.latency + self.chance.expovariate(1.0) * self.jitter

    def release(self) -> None:
        """Unblock the link and resume its queues."""
        # The list is replaced first: a queue that is blocked again registers anew.
        self.blocked = False
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()


class Owner(Protocol):
    """The process that owns one end of a connection.

    Attributes:
        host_name: Name of its host.
        context: Context in which protocols are called.
        ends: Its ends of open connections.
    """

    host_name: str
    context: Context
    ends: dict[SimTransport, None]

    def note(self, kind: str, label: object) -> None:
        """Record an event in the trace."""


class SimSocket:
    """The part of a socket that comms use."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def setsockopt(self, *options: object) -> None:
        """Do nothing: the simulation does not delay packets to merge them."""

    def fileno(self) -> int:
        """Return -1: there is no file descriptor."""
        return -1

    def getsockname(self) -> tuple[str, int]:
        """Return the address."""
        return self._address


class _Pipe:
    """The data in transit to one end of a connection."""

    def __init__(self, link: SimLink, loop: asyncio.AbstractEventLoop, destination: SimTransport) -> None:
        self.link = link
        self._loop = loop
        self._destination = destination
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self._armed = False
        self.used = 0  # bytes in transit or unread
        self.dead = False

    @property
    def room(self) -> int:
        return self.link.window - self.used

    def push(self, data: bytes | None) -> None:
        """Send bytes, an end of file (no bytes), or a reset (None)."""
        if self.dead:
            return
        # Counted from the send to the read, like the receive window of TCP.
        self.used += len(data or b"")
        for piece in self._pieces(data):
            # Never before the previous item: a connection does not reorder data, whatever the random delays.
            due = max(self._last, self._loop.time() + self.link.delay())
            # The link is busy until the last byte has left.
            self._last = due + len(piece or b"") / self.link.bandwidth
            self._queue.append((self._last, piece))
        self._arm()

    def _pieces(self, data: bytes | None) -> list[bytes | None]:
        chance = self.link.chance
        if data is None or len(data) < 2 or chance.random() >= self.link.cut:
            return [data]
        places = sorted(chance.randrange(1, len(data)) for _ in range(chance.randint(1, 3)))
        ends = [0, *places, len(data)]
        return [data[start:end] for start, end in pairwise(ends) if start < end]

    def _arm(self) -> None:
        if self._queue and not self._armed:
            self._armed = True
            # In an empty context: the wire goes on while the process at either end is paused.
            self._loop.call_at(self._queue[0][0], self._arrive, context=Context())

    def _arrive(self) -> None:
        self._armed = False
        # The queue waits for `release`, which arms the timer again.
        if self.link.blocked and not self.dead:
            self.link.waiting.append(self._arm)
            return
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            self._destination.arrived(self._queue.popleft()[1])
        # The next item may be due later.
        self._arm()

    def drop(self) -> None:
        """Discard the data in transit, and all that is sent later."""
        self.dead = True
        self._queue.clear()


class SimTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        process: The process that owns this end.
        name: Name of the connection, for the trace.
        address: Address of this end.
        peer: Address of the other end.

    Attributes:
        context: Context in which the protocol is called.
    """

    def __init__(self, process: Owner, name: str, address: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "socket": SimSocket(address)})
        self._process = process
        self.name = name
        self._loop = asyncio.get_running_loop()
        self.context: Context = process.context
        self._protocol: Any = None
        self._unread: deque[bytes | None] = deque()
        self._unsent = bytearray()
        self._high = 64 << 10
        self._reading = True
        self._scheduled = False
        self._writing_paused = False
        self._ending = False  # True if an end of file follows the unsent bytes
        self._ended = False  # True if the end of file was sent
        self._closing = False
        self.near = process.host_name
        self.far = ""
        self.gone = False
        self.silent = False  # True if the host is switched off, so that arriving data is not answered by a reset
        self.out: _Pipe
        self.other: SimTransport

    # -- for the protocol ----------------------------------------------------------------------------------------------

    def begin(self, protocol: Any) -> None:
        """Attach the protocol to the established connection. Must be called in the context of the process."""
        self._protocol = protocol
        self._process.ends[self] = None
        protocol.connection_made(self)
        self._look()

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # Writing after the end is ignored, as by asyncio's transports.
        if self._closing or self._ending or self.gone:
            return
        # Copied: the caller may change its buffer afterwards.
        self._unsent += data
        self._flush()
        if len(self._unsent) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._ending:
            return
        self._ending = True
        self._flush()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._look()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            # Otherwise `_go_on` closes once everything is sent.
            if not self._unsent:
                self._loop.call_soon(self._lose, None, context=self.context)

    def abort(self) -> None:
        self._force(None)

    # -- out -----------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        # A few bytes at the end are always sent.
        while self._unsent and self.out.room >= min(len(self._unsent), _SMALLEST_SEND):
            size = min(self.out.room, len(self._unsent))
            self.out.push(bytes(self._unsent[:size]))
            del self._unsent[:size]
        if self._ending and not self._unsent and not self._ended:
            self._ended = True
            self.out.push(_FIN)

    def made_room(self) -> None:
        """Continue sending after the other end has read."""
        if self._unsent and not self.gone:
            # In a later turn and in the owner's context: the other end must not run this process's code.
            self._loop.call_soon(self._go_on, context=self.context)

    def _go_on(self) -> None:
        if self.gone:
            return
        self._flush()
        if not self._unsent:
            if self._writing_paused:
                self._writing_paused = False
                self._protocol.resume_writing()
            if self._closing:
                self._lose(None)

    # -- in ------------------------------------------------------------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        """Accept bytes, an end of file (no bytes), or a reset (None) on behalf of the process's system."""
        if data is _RST:
            self._process.note("reset", self.name)
            # As in TCP, a reset discards data that was not read.
            self._unread.clear()
            self._loop.call_soon(
                self._force, ConnectionResetError(104, "connection reset by peer"), context=self.context
            )
            return
        if self.gone:
            # A closed end answers data by a reset; a host that is off does not.
            if data and not self.silent:
                self.out.push(_RST)
            return
        self._process.note("bytes" if data else "end of file", f"{self.name} {len(data)}")
        self._unread.append(data)
        self._look()

    def _look(self) -> None:
        if self._unread and self._reading and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._readable, context=self.context)

    def _readable(self) -> None:
        self._scheduled = False
        # The protocol may have paused or closed since the callback was scheduled.
        if self._closing or self._protocol is None or not self._reading or not self._unread:
            return
        data = self._unread.popleft()
        if data:
            self._read(data)
        elif not self._protocol.eof_received():
            # A protocol that returns False wants the transport closed.
            self.close()
        self._look()

    def _read(self, data: bytes) -> None:
        buffer = self._protocol.get_buffer(-1)
        size = min(len(buffer), len(data), _LONGEST_READ)
        buffer[:size] = data[:size]
        # The rest stays first in the queue.
        if size < len(data):
            self._unread.appendleft(data[size:])
        # Only reading makes room: a receiver that does not read stops its sender.
        self.other.out.used -= size
        self.other.made_room()
        self._protocol.buffer_updated(size)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _force(self, error: Exception | None) -> None:
        if self.gone:
            return
        self._unsent.clear()
        self._closing = True
        self._loop.call_soon(self._lose, error, context=self.context)

    def _lose(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = True
        self._process.ends.pop(self, None)
        self._process.note("closed", self.name)
        # After an error the system has dropped the connection, so nothing is sent.
        if error is None:
            self._hang_up()
        self._unread.clear()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _hang_up(self) -> None:
        """Notify the other end of the close: by a reset if received data was never read, else by an end of file."""
        # Ends of file among the unread items are no data.
        if any(self._unread):
            self.out.push(_RST)
        elif not self._ended:
            self._ended = True
            self.out.push(_FIN)

    def answer(self) -> None:
        """Respond again after the host was switched on: data that arrives is answered by a reset."""
        self.silent = self.out.dead = False

    def cut(self, silent: bool, error: Exception) -> None:
        """Close this end because its process died. If `silent`, the host is gone too, and the other end is not told."""
        if self.gone:
            return
        if silent:
            self.silent = True
            self.out.drop()
        else:
            self._hang_up()
        self._closing = self.gone = True
        self._unsent.clear()
        self._unread.clear()
        self._process.ends.pop(self, None)
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.context)

    def reset(self) -> None:
        """Reset this end as if the network had lost the connection. Data in transit from it is lost."""
        self.out.drop()
        # In an empty context: the reset arrives even while the process is paused.
        self._loop.call_soon(self.arrived, _RST, context=Context())


def connected(
    name: str, near: Owner, far: Owner, links: tuple[SimLink, SimLink], addresses: tuple[tuple[str, int], ...]
) -> tuple[SimTransport, SimTransport]:
    """Return the two ends of a connection from `near` to `far`, over the links there and back."""
    loop = asyncio.get_running_loop()
    one = SimTransport(near, name, addresses[0], addresses[1])
    two = SimTransport(far, name, addresses[1], addresses[0])
    one.other, two.other = two, one
    one.far, two.far = two.near, one.near
    one.out, two.out = _Pipe(links[0], loop, two), _Pipe(links[1], loop, one)
    return one, two
