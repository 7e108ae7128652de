"""What goes through a channel: requests and answers as values, and messages on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from aioflow.errors import OpError
from aioflow.net.comm import Comm
from aioflow.net.frame_header import Packed
from aioflow.net.framing import ALIGNMENT, CHUNK_BYTES, Message

__all__ = [
    "REMEMBERED",
    "UNANSWERED",
    "Answer",
    "Reply",
    "Request",
    "Sending",
    "Service",
    "Taker",
    "packed",
    "payload_bytes",
]


class Request(NamedTuple):
    """What a service is asked.

    Attributes:
        kind: Which service this is.
        header: The caller's document, which the service must check.
        peer: Who asks, as errors name it.
        timeout: Seconds after which the service is cancelled, or None.
        number: That of the request, by which no other of this peer is open; of a push, what the sender has chosen.
    """

    kind: str
    header: dict[str, Any]
    tensors: Sequence[Any]
    peer: str
    timeout: float | None
    number: int = 0


class Reply(NamedTuple):
    """What a call returns."""

    header: Mapping[str, Any] = {}
    tensors: Sequence[Any] = ()


Service: TypeAlias = Callable[[Request], Reply | Awaitable[Reply | None]]
Taker: TypeAlias = Callable[[Request], None]


REMEMBERED: Final = 2048  # requests for whose answer nobody has waited, of which the peer is told when it has to know
UNANSWERED: Final = Reply()  # what a service returns whose caller does not wait for an answer


class Answer(Protocol):
    """Who waits for the answer to a call; a future does."""

    def done(self) -> bool:
        """Whether nothing is waited for any more."""

    def set_result(self, reply: Reply, /) -> None:
        """The reply has come."""

    def set_exception(self, error: OpError, /) -> None:
        """The service has failed, or the connection has ended."""


def packed(kind: str, header: Mapping[str, Any]) -> Packed:
    """The whole header of a request or a push, for one that is sent many times."""
    return Packed({"kind": kind, "timeout": None, "body": header})


def payload_bytes(message: Message) -> int:
    """The bytes of its tensors, at most; of strings, too many: to count them takes as long as to encode them."""
    total = 0
    for tensor in message.tensors:
        dtype = getattr(tensor, "dtype", None)
        if dtype is not None and dtype.hasobject:
            return CHUNK_BYTES + 1
        total += getattr(tensor, "nbytes", CHUNK_BYTES) + ALIGNMENT
    return total


class Sending:
    """Sends the messages of one channel. A message that goes in several chunks has a task of its own, so that a sender
    who gives up does not cut it in two.

    Args:
        group: Owns the tasks, none of which ever raises.
    """

    def __init__(self, comm: Comm, group: asyncio.TaskGroup) -> None:
        self.comm = comm
        self._group = group

    def start(
        self, message: Message, after: asyncio.Task[OpError | None] | None = None
    ) -> asyncio.Task[OpError | None]:
        """Send a message for one who does not wait.

        Args:
            after: What must have been sent before.
        """
        return self._group.create_task(self._send(message, after))

    async def send(self, message: Message) -> None:
        """Send a message. Raises OpError."""
        if payload_bytes(message) > CHUNK_BYTES:
            await self.finish(self.start(message))
        else:
            await self.comm.send(message, urgent=True)

    def post(self, message: Message) -> bool:
        """Send a message whose arrays never change, unless it would have to wait. Raises OpError."""
        return payload_bytes(message) <= CHUNK_BYTES and self.comm.post(message)

    async def finish(self, sending: asyncio.Task[OpError | None]) -> None:
        """Wait for a message on its way, which goes on without the caller. Raises OpError."""
        error = await asyncio.shield(sending)
        if error is not None:
            raise error

    async def _send(self, message: Message, after: asyncio.Task[OpError | None] | None) -> OpError | None:
        if after is not None:
            await asyncio.wait([after])
        try:
            await self.comm.send(message, urgent=True)
        except OpError as error:
            return error
        return None
