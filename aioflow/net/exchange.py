"""The values that pass through a channel (requests and replies), and the sending of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from aioflow.errors import OpError
from aioflow.net.comm import Comm
from aioflow.net.framing import ALIGNMENT, CHUNK_BYTES, Document, Packed, WireMessage


class ServiceRequest(NamedTuple):
    """A request to a service.

    Attributes:
        kind: Kind of the service.
        header: The caller's document, which the service must check.
        tensors: The caller's tensors.
        peer: Name of the caller, for error messages.
        timeout: Seconds after which the service is cancelled, or None.
        number: Number of the request, unique among the peer's open ones; for a push, chosen by the sender.
    """

    kind: str
    header: Document
    tensors: Sequence[Any]
    peer: str
    timeout: float | None
    number: int = 0


class Reply(NamedTuple):
    """The result of a call."""

    header: Mapping[str, Any] = {}
    tensors: Sequence[Any] = ()


Service: TypeAlias = Callable[[ServiceRequest], Reply | Awaitable[Reply | None]]
Taker: TypeAlias = Callable[[ServiceRequest], None]


REMEMBERED: Final = 2048  # replies without a waiting caller that are held back until the peer has to know of them
UNANSWERED: Final = Reply()  # returned by a service if the caller does not wait for a reply


class ReplyReceiver(Protocol):
    """The receiver of the answer to a call; futures conform to it."""

    def done(self) -> bool:
        """Return True if the answer is no longer needed."""

    def set_result(self, reply: Reply, /) -> None:
        """Accept the reply."""

    def set_exception(self, error: OpError, /) -> None:
        """Accept the error of the service or of the connection."""


def packed(kind: str, header: Document) -> Packed:
    """Return the complete header of a request or push that is sent many times."""
    return Packed({"kind": kind, "timeout": None, "body": header})


def payload_bytes(message: WireMessage) -> int:
    """Return an upper bound of the bytes of the tensors; with strings, just any number above CHUNK_BYTES."""
    total = 0
    for tensor in message.tensors:
        dtype = getattr(tensor, "dtype", None)
        # Counting the bytes of strings takes as long as encoding them, so treat them as large.
        if dtype is not None and dtype.hasobject:
            return CHUNK_BYTES + 1
        # A value of unknown size counts as large; the alignment bounds the padding before each tensor.
        total += getattr(tensor, "nbytes", CHUNK_BYTES) + ALIGNMENT
    return total


class Sending:
    """The sending end of one channel.

    A message of several chunks has its own task, so that a cancelled sender does not truncate it.

    Args:
        comm: The connection.
        group: Owner of the tasks, which never raise.
    """

    def __init__(self, comm: Comm, group: asyncio.TaskGroup) -> None:
        self.comm = comm
        self._group = group

    def start(
        self, message: WireMessage, after: asyncio.Task[OpError | None] | None = None
    ) -> asyncio.Task[OpError | None]:
        """Start sending a message without waiting.

        Args:
            message: The message.
            after: A task that must end before the message is sent.
        """
        return self._group.create_task(self._send(message, after))

    async def send(self, message: WireMessage) -> None:
        """Send a message. Raises OpError."""
        if payload_bytes(message) > CHUNK_BYTES:
            await self.finish(self.start(message))
        else:
            await self.comm.send(message, urgent=True)

    def post(self, message: WireMessage) -> bool:
        """Send a message unless it would have to wait, and return whether it was sent. Raises OpError.

        Its arrays must never change.
        """
        return payload_bytes(message) <= CHUNK_BYTES and self.comm.post(message)

    async def finish(self, sending: asyncio.Task[OpError | None]) -> None:
        """Wait for a message that is being sent. Cancelling the caller does not stop it. Raises OpError."""
        error = await asyncio.shield(sending)
        if error is not None:
            raise error

    async def _send(self, message: WireMessage, after: asyncio.Task[OpError | None] | None) -> OpError | None:
        if after is not None:
            await asyncio.wait([after])
        try:
            await self.comm.send(message, urgent=True)
        except OpError as error:
            # Returned instead of raised: an exception in one task cancels the whole task group, and with it the
            # channel.
            return error
        return None
