"""The calls of one end of a channel that have no answer yet."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aioflow.errors import OpError
from aioflow.net.comm import gone
from aioflow.net.errors_codec import decode_error
from aioflow.net.exchange import Answer, Reply, Sending, payload_bytes
from aioflow.net.framing import CHUNK_BYTES, Kind, Message

__all__ = ["Calls"]

_OWN_NUMBERS: Final = 1 << 62  # from here on; a caller's own are below


class Calls:
    """Requests that were sent, by their numbers, and who waits for the answers.

    Args:
        require_open: Raises UnavailableError where the connection has ended.
        most: How many there may be; further ones wait.
    """

    def __init__(self, sending: Sending, require_open: Callable[[], None], most: int) -> None:
        self._sending = sending
        self._require_open = require_open
        self._most = most
        self._numbers = itertools.count(_OWN_NUMBERS)
        self._answers: dict[int, Answer] = {}
        self._queue: deque[asyncio.Future[None]] = deque()  # of callers, where there are too many
        self._ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether any answer is waited for."""
        return bool(self._answers)

    async def ask(self, document: Mapping[str, Any], tensors: Sequence[Any], number: int = 0) -> Reply:
        """Ask the peer, and wait for the answer.

        Args:
            document, number: As of `begin`; the number may be 0 for any.

        Raises:
            OpError: as of `Channel.call`.
        """
        while len(self._answers) >= self._most:
            await self._queued()
        self._require_open()
        message = Message(Kind.REQUEST, number or next(self._numbers), document, tensors)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[message.request] = answer
        sent: asyncio.Task[OpError | None] | None = None
        try:
            if payload_bytes(message) > CHUNK_BYTES:
                sent = self._sending.start(message)
                await self._sending.finish(sent)
            elif not self._sending.post(message):
                await self._sending.send(message)
            return await answer
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, even where the caller was stopped in the same moment
                self.forget(message.request)
            else:
                self.give_up(message.request, sent)

    def begin(self, number: int, document: Mapping[str, Any], tensors: Sequence[Any], answer: Answer) -> bool:
        """Ask the peer, if that takes no waiting; returns whether it was asked. If so, `forget` or `give_up` must
        follow.

        Args:
            number: Below 2**62, and of no other call that is open.
            document: The whole header of the request (`packed`).
            tensors: They must never change.

        Raises:
            UnavailableError: the connection has ended.
            OpError: this cannot be sent.
        """
        self._require_open()
        if len(self._answers) >= self._most or not self._sending.post(Message(Kind.REQUEST, number, document, tensors)):
            return False
        self._answers[number] = answer
        return True

    def forget(self, number: int) -> None:
        """The answer to a call has come, or is not needed."""
        del self._answers[number]
        self._admit_next()

    def give_up(self, number: int, sent: asyncio.Task[OpError | None] | None = None) -> None:
        """Nobody waits for the answer any more, which the peer is told.

        Args:
            sent: The request on its way, which a CANCEL must not overtake: it would be forgotten.
        """
        self.forget(number)
        if self._ended:
            return
        cancel = Message(Kind.CANCEL, number)
        with suppress(OpError):  # the connection has ended, and nobody has been told yet
            if sent is None and self._sending.post(cancel):  # before whatever is asked next, which has its place
                return
        self._sending.start(cancel, sent)

    async def _queued(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was this one's turn
                self._admit_next()
            raise

    def _admit_next(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def on_reply(self, message: Message) -> None:
        """A REPLY has come."""
        answer = self._answers.get(message.request)
        if answer is not None and not answer.done():  # otherwise the caller has given up
            answer.set_result(Reply(message.header, message.tensors))

    def on_failure(self, message: Message) -> None:
        """A FAILURE has come. Raises DataLossError: it is malformed."""
        error = decode_error(message.header, self._sending.comm.peer)
        answer = self._answers.get(message.request)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def end(self, error: OpError, in_order: bool) -> None:
        """The connection has ended: all that wait get the error.

        Args:
            in_order: Whether what has no answer has not been begun, and will not be.
        """
        self._ended = True
        for answer in list(self._answers.values()):
            if not answer.done():
                lost = gone(self._sending.comm.peer, error)
                if in_order:
                    lost.may_have_been_applied = False
                answer.set_exception(lost)
        for waiter in self._queue:
            if not waiter.done():
                waiter.set_result(None)
