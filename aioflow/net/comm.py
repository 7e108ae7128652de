"""What a comm is: one connection that carries messages both ways, whatever is under it.

The contract, which `aioflow.testing.check_comm` holds every transport to:

- Messages of one sender arrive whole, once and in order, except that an `urgent` one may overtake large ones.
- When `send` returns, the sender may change its arrays; what was received never changes, and may be read-only.
- Any number of tasks may send; one may receive.
- `send` waits while the peer does not read: what nobody has taken yet is bounded (`Limits.unread_bytes`).
- `close` says goodbye: the peer receives all that was sent, and then None. `dismiss` tells it another reason. Any other
  end is an UnavailableError there, which names the peer: an abort, a dead process, silence.
- A malformed or over-long message ends the connection that it came by with the error that says what was wrong.
- Cancelling `receive` loses nothing. Cancelling `send` between the chunks of a large message aborts the connection.
- `post` sends what needs no waiting, without a task; the sender must not change the arrays afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from aioflow.checks.numbers import check_number, check_whole
from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnavailableError
from aioflow.net.chance import fresh_number
from aioflow.net.credentials import Credentials
from aioflow.net.framing import Message
from aioflow.net.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "ClosedByBlock",
    "Comm",
    "CommOptions",
    "Handler",
    "Idle",
    "Listener",
    "bare",
    "fresh_incarnation",
    "gone",
    "needed",
    "nothing_to_tell",
]


def fresh_incarnation() -> int:
    """The number of one more process, which nobody has had."""
    return fresh_number(63)


def _may_share() -> bool:
    said = os.environ.get("AIOFLOW_SHARED_MEMORY", "1")
    if said not in ("0", "1"):
        raise InvalidArgumentError("the environment variable AIOFLOW_SHARED_MEMORY", expected="0 or 1", actual=said)
    return said == "1"


@dataclass(frozen=True, slots=True)
class CommOptions:
    """How connections behave.

    Attributes:
        limits: What a peer may ask for.
        heartbeat: Seconds between heartbeats, by the clock of the event loop.
        misses: Heartbeats that may be missing before the peer counts as dead: with the defaults, two seconds.
        handshake_timeout: Seconds for the first words.
        close_timeout: Seconds that `close` waits for the peer to have everything before it aborts.
        connections: Connections of clients that a listener has at a time. For one more the one that has been idle
            longest is dropped; where none is idle, it is refused.
        connections_per_host: Of these, those from one address beyond the loopback; further ones are refused.
        peers: Connections of tasks of the cluster, beside those; further ones are refused.
        strangers: Connections that have not said hello or not proved themselves, beside those; for one more the oldest
            of them is dropped.
        incarnation: This process's number, which peers tell it from an earlier one by; random by default.
        shared_memory: Whether large tensors may go through memory that both ends have mapped, where they turn out to be
            processes of one user on one host; by default they may, unless AIOFLOW_SHARED_MEMORY is 0.
        credentials: By what this process proves itself; by default what the environment says.
        is_task: Whether this process connects as a task of the cluster, and not as a client.
    """

    limits: Limits = DEFAULT_LIMITS
    heartbeat: float = 0.5
    misses: int = 3
    handshake_timeout: float = 5.0
    close_timeout: float = 5.0
    connections: int = 256
    connections_per_host: int = 1024
    peers: int = 4096
    strangers: int = 1024
    incarnation: int = field(default_factory=fresh_incarnation)
    shared_memory: bool = field(default_factory=_may_share)
    credentials: Credentials = field(default_factory=Credentials.from_environment)
    is_task: bool = False

    def __post_init__(self) -> None:
        for name in ("heartbeat", "handshake_timeout", "close_timeout"):
            check_number(getattr(self, name), f"CommOptions.{name}", above=0)
        given: Any = self.credentials
        if not isinstance(given, Credentials):
            found = type(given).__name__  # not the value, which may be the secret
            raise DTypeError("wrong type for credentials", expected="aioflow.distributed.Credentials", actual=found)
        for name, least in (("connections", 0), ("connections_per_host", 1), ("peers", 0), ("strangers", 1)):
            check_whole(getattr(self, name), f"CommOptions.{name}", least)
        if not (self.heartbeat > 0 and self.misses > 0 and 0 < self.incarnation < 2**64):
            raise InvalidArgumentError("heartbeat, misses and incarnation must be positive", actual=self)


class Idle(NamedTuple):
    """How idle a connection is; the least gives way first.

    Attributes:
        keeps: Whether something is kept for it here.
        since: When it has last been used, by the clock of the event loop.
    """

    keeps: bool
    since: float


def needed() -> None:
    """A connection is never idle (`Comm.idle`)."""


def nothing_to_tell() -> bool:
    """The peer knows all (`Comm.tell`)."""
    return True


class Comm(Protocol):
    """One end of a connection."""

    peer: str
    """The other end, as errors name it. May be set once it is known who that is."""
    peer_incarnation: int
    """The number of the peer's process."""
    peer_is_task: bool
    """Whether the peer is a task of the cluster: it says so, and has proved what is asked for."""
    host: str
    """The address of the peer's machine; "" for this one."""
    limits: Limits
    """What the peer may ask of this end."""
    used_at: float
    """When the peer has last sent a message, by the clock of the event loop."""
    idle: Callable[[], Idle | None]
    """Whether the connection may be dropped for another one's sake: None while it is needed. Set by its user."""
    tell: Callable[[], bool]
    """Posts what the peer need not have known until it is dismissed; returns whether all of it. Set by its user."""
    heard: int
    """The number of the last heartbeat of the peer that has come; 0 is its hello."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    @property
    def silence(self) -> float:
        """Seconds for which nothing has come from the peer."""

    def since(self, beat: int) -> float:
        """Seconds since this end sent the heartbeat of that number; infinitely many if it is not one of the last."""

    def post(self, message: Message) -> bool:
        """Send a message whose arrays never change, unless it would have to wait; returns whether it was sent.

        What is posted in one turn of the event loop may go together at its end.

        Raises:
            As `send`.
        """

    async def send(self, message: Message, *, urgent: bool = False) -> None:
        """Send a message; returns when its arrays may be changed.

        Raises:
            InvalidArgumentError, DTypeError, ResourceExhaustedError: it cannot be sent; the connection goes on.
            UnavailableError: the connection has ended.
        """

    async def receive(self) -> Message | None:
        """The next message, or None after the peer has closed.

        Raises:
            UnavailableError: the connection has ended in another way.
            DataLossError, ResourceExhaustedError, UnimplementedError: it ended because of what the peer sent.
            FailedPreconditionError: another task is receiving.
        """

    async def close(self) -> None:
        """Let the peer have all that was sent, and end the connection."""

    def abort(self, reason: str) -> None:
        """End the connection now; what has not arrived is lost."""

    def dismiss(self, error: OpError) -> None:
        """End the connection now, and tell the peer why: its `receive` raises an error of the same class. By that error
        nothing without an answer was applied only if all could be told (`tell`).
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, or abort where the block has failed."""


class ClosedByBlock:
    """What every comm does at the end of its `async with`."""

    async def close(self) -> None:
        """As `Comm.close`."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """As `Comm.abort`."""
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
    """What accepts connections, until the block of `listen` is left."""

    @property
    def address(self) -> str:
        """Where peers connect, with the port that was chosen."""


def bare(error: OpError) -> OpError:
    """The error without where it was raised, which would keep all that was at hand there."""
    found = type(error)(error.message, expected=error.expected, actual=error.actual)
    if not error.may_have_been_applied:
        found.may_have_been_applied = False
    return found


def gone(peer: str, error: OpError) -> OpError:
    """The error of a connection, for one more of those who meet it."""
    found = bare(error)
    if not isinstance(error, UnavailableError):
        found.message = f"the connection to {peer} has ended: {error.message}"
    return found
