"""The interface of a comm: one bidirectional connection for messages, over any transport.

The contract, which `aioflow.testing.check_comm` checks for every transport:

- Messages of one sender arrive whole, once and in order, except that an `urgent` one may overtake large ones.
- When `send` returns, the sender may change its arrays. Received arrays never change, and may be read-only.
- Any number of tasks may send; only one may receive.
- `send` waits while the peer does not read: the amount of unread data is bounded (`Limits.unread_bytes`).
- `close` is graceful: the peer receives all that was sent, and then None. `close_with` sends the peer a reason. Any
  other end (an abort, a dead process, silence) raises UnavailableError at the peer, with the name of this end.
- A malformed or oversized message ends its connection with an error that states the violation.
- Cancelling `receive` loses nothing. Cancelling `send` between the chunks of a large message aborts the connection.
- `post` sends a message that needs no waiting, without a task; the sender must not change the arrays afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

from aioflow.arguments import check_number, check_whole
from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnavailableError
from aioflow.net.chance import fresh_number
from aioflow.net.credentials import Credentials
from aioflow.net.framing import WireMessage
from aioflow.net.limits import DEFAULT_LIMITS, Limits


def fresh_incarnation() -> int:
    """Return a new random number that identifies a process."""
    return fresh_number(63)


def _may_share() -> bool:
    said = os.environ.get("AIOFLOW_SHARED_MEMORY", "1")
    if said not in ("0", "1"):
        raise InvalidArgumentError("the environment variable AIOFLOW_SHARED_MEMORY", expected="0 or 1", actual=said)
    return said == "1"


@dataclass(frozen=True, slots=True)
class CommOptions:
    """The settings of connections.

    Attributes:
        limits: Limits on what a peer may request.
        heartbeat: Interval of heartbeats in seconds, by the clock of the event loop.
        misses: Number of missing heartbeats after which the peer counts as dead: with the defaults, two seconds.
        handshake_timeout: Time limit of the handshake, in seconds.
        close_timeout: Seconds that `close` waits until the peer has received everything, before it aborts.
        connections: Maximum number of client connections of a listener. For a further one, the connection that has been
            idle longest is evicted; if none is idle, the new one is rejected.
        connections_per_host: Maximum number of these from one non-loopback address; further ones are rejected.
        peers: Maximum number of connections from tasks of the cluster, counted separately; further ones are rejected.
        unauthenticated: Maximum number of connections that have not completed the handshake or not authenticated,
            counted separately. For a further one, the oldest of them is dropped.
        incarnation: Number by which peers distinguish this process from an earlier one; random by default.
        shared_memory: Whether large tensors may be sent through shared memory, if both ends turn out to be processes of
            one user on one host. True by default, unless AIOFLOW_SHARED_MEMORY is 0.
        credentials: Credentials of this process; by default those in the environment.
        is_task: Whether this process connects as a task of the cluster instead of as a client.
    """

    limits: Limits = DEFAULT_LIMITS
    heartbeat: float = 0.5
    misses: int = 3
    handshake_timeout: float = 5.0
    close_timeout: float = 5.0
    connections: int = 256
    connections_per_host: int = 1024
    peers: int = 4096
    unauthenticated: int = 1024
    incarnation: int = field(default_factory=fresh_incarnation)
    shared_memory: bool = field(default_factory=_may_share)
    credentials: Credentials = field(default_factory=Credentials.from_environment)
    is_task: bool = False

    def __post_init__(self) -> None:
        for name in ("heartbeat", "handshake_timeout", "close_timeout"):
            check_number(getattr(self, name), f"CommOptions.{name}", above=0)
        given: object = self.credentials
        if not isinstance(given, Credentials):
            found = type(given).__name__  # not the value: it may be the secret
            raise DTypeError("wrong type for credentials", expected="aioflow.distributed.Credentials", actual=found)
        for name, least in (("connections", 0), ("connections_per_host", 1), ("peers", 0), ("unauthenticated", 1)):
            check_whole(getattr(self, name), f"CommOptions.{name}", least)
        if not (self.heartbeat > 0 and self.misses > 0 and 0 < self.incarnation < 2**64):
            raise InvalidArgumentError("heartbeat, misses and incarnation must be positive", actual=self)


class Idle(NamedTuple):
    """The idleness of a connection. The smallest is evicted first.

    Attributes:
        keeps: Whether state is kept for the connection here.
        since: Time of its last use, by the clock of the event loop.
    """

    keeps: bool
    since: float


def needed() -> None:
    """Return None: the default of `Comm.idle`, for a connection that is never idle."""


def nothing_to_tell() -> bool:
    """Return True: the default of `Comm.tell`, for a connection that holds nothing back."""
    return True


class Comm(Protocol):
    """One end of a connection."""

    peer: str
    """The name of the other end, for error messages. May be set once the peer is identified."""
    peer_incarnation: int
    """The incarnation number of the peer's process."""
    peer_is_task: bool
    """True if the peer is a task of the cluster: it has declared so, and has authenticated if that is required."""
    host: str
    """The address of the peer's machine; "" for this machine."""
    limits: Limits
    """The limits on the peer's requests to this end."""
    used_at: float
    """The time of the peer's last message, by the clock of the event loop."""
    idle: Callable[[], Idle | None]
    """Returns the idleness of the connection; None if it must not be evicted. Set by the owner of the comm."""
    tell: Callable[[], bool]
    """Sends answers held back until eviction; returns whether all could be sent. Set by the owner of the comm."""
    heard: int
    """The number of the last heartbeat received from the peer; 0 is its hello."""

    @property
    def closed(self) -> bool:
        """True if messages can no longer be sent."""

    @property
    def silence(self) -> float:
        """Seconds since data last arrived from the peer."""

    def since(self, beat: int) -> float:
        """Return the seconds since this end sent the heartbeat of that number; infinity if it is not a recent one."""

    def post(self, message: WireMessage) -> bool:
        """Send a message unless it would have to wait, and return whether it was sent. Its arrays must never change.

        Messages posted in one turn of the event loop may be sent together at its end.

        Raises:
            As `send`.
        """

    async def send(self, message: WireMessage, *, urgent: bool = False) -> None:
        """Send a message. When this returns, the caller may change its arrays.

        Raises:
            InvalidArgumentError, DTypeError, ResourceExhaustedError: the message cannot be sent; the connection stays
                open.
            UnavailableError: the connection has ended.
        """

    async def receive(self) -> WireMessage | None:
        """Return the next message, or None after the peer has closed gracefully.

        Raises:
            UnavailableError: the connection has ended in another way.
            DataLossError, ResourceExhaustedError, UnimplementedError: it ended because of an invalid message of the
                peer.
            FailedPreconditionError: another task is receiving.
        """

    async def close(self) -> None:
        """Wait until the peer has received everything, and close the connection."""

    def abort(self, reason: str) -> None:
        """Close the connection immediately. Data that has not arrived is lost."""

    def close_with(self, error: OpError) -> None:
        """Close the connection immediately and send the peer the reason.

        The peer's `receive` raises an error of the same class. It states that unanswered requests were not applied only
        if `tell` could send all answers.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection, or abort it if the block raised an error."""


class ClosedByBlock:
    """Mixin for comms that are closed at the end of their `async with` block."""

    async def close(self) -> None:
        """Close the connection; see `Comm.close`."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Abort the connection; see `Comm.abort`."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort(f"{type(error).__name__} in the block that used it")


Handler: TypeAlias = Callable[[Comm], Awaitable[None]]


class Listener(Protocol):
    """An acceptor of connections, active until the block of `listen` is left."""

    @property
    def address(self) -> str:
        """The address for peers to connect to, with the port that was chosen."""


def bare(error: OpError) -> OpError:
    """Return a copy of the error without its traceback, which would keep local variables alive."""
    found = type(error)(error.message, expected=error.expected, actual=error.actual)
    if not error.may_have_been_applied:
        found.may_have_been_applied = False
    return found


def gone(peer: str, error: OpError) -> OpError:
    """Return a copy of a connection's error to raise in a further caller."""
    found = bare(error)
    if not isinstance(error, UnavailableError):
        found.message = f"the connection to {peer} has ended: {error.message}"
    return found
