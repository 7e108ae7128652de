"""The unanswered calls of one end of a channel."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aioflow.errors import OpError
from aioflow.memory.values import Value
from aioflow.net.comm import gone
from aioflow.net.errors_codec import decode_error
from aioflow.net.exchange import Reply, ReplyReceiver, Sending, payload_bytes
from aioflow.net.frame_header import Document
from aioflow.net.framing import CHUNK_BYTES, FrameKind, WireMessage

_OWN_NUMBERS: Final = 1 << 62  # first number assigned here; callers may choose any number below


class Calls:
    """Sent requests by number, with the receivers of their answers.

    Args:
        sending: Sends messages over the comm.
        require_open: Raises UnavailableError if the connection has ended.
        most: Maximum number of open calls; further ones wait.
    """

    def __init__(self, sending: Sending, require_open: Callable[[], None], most: int) -> None:
        self._sending = sending
        self._require_open = require_open
        self._most = most
        # Steps use their ids as request numbers, so these must not collide with them.
        self._numbers = itertools.count(_OWN_NUMBERS)
        self._answers: dict[int, ReplyReceiver] = {}
        self._queue: deque[asyncio.Future[None]] = deque()  # callers that wait for a free slot
        self._ended = False

    @property
    def is_waiting(self) -> bool:
        """True if any call has no answer yet."""
        return bool(self._answers)

    async def ask(self, document: Document, tensors: Sequence[Value], number: int = 0) -> Reply:
        """Send a request to the peer and wait for the answer.

        Args:
            document: As for `begin`.
            tensors: As for `begin`, but they may change once the call has returned.
            number: As for `begin`; 0 chooses a free number.

        Raises:
            OpError: as `Channel.call`.
        """
        # Tested again after waiting: a caller that did not have to wait may have taken the slot first.
        while len(self._answers) >= self._most:
            await self._queued()
        self._require_open()
        message = WireMessage(FrameKind.REQUEST, number or next(self._numbers), document, tensors)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # Before sending: a refusal, for instance, may arrive while a large request is still being sent.
        self._answers[message.request] = answer
        sent: asyncio.Task[OpError | None] | None = None
        try:
            # A large message is sent by its own task, so that cancelling this call does not truncate it.
            if payload_bytes(message) > CHUNK_BYTES:
                sent = self._sending.start(message)
                await self._sending.finish(sent)
            elif not self._sending.post(message):
                await self._sending.send(message)
            return await answer
        finally:
            if answer.done() and not answer.cancelled():
                # Marks it as retrieved, in case the caller was cancelled in the same turn of the loop.
                answer.exception()
                self.forget(message.request)
            else:
                self.give_up(message.request, sent)

    def begin(self, number: int, document: Document, tensors: Sequence[Value], answer: ReplyReceiver) -> bool:
        """Send a request if that needs no waiting, and return whether it was sent.

        If it was sent, `forget` or `give_up` must follow.

        Args:
            number: Number of the request: below 2**62, and not in use by another open call.
            document: The complete header of the request (`packed`).
            tensors: The tensors, which must never change.
            answer: Receives the reply or error; need not be a future (see `ReplyReceiver`).

        Raises:
            UnavailableError: the connection has ended.
            OpError: the message cannot be sent.
        """
        self._require_open()
        if len(self._answers) >= self._most or not self._sending.post(
            WireMessage(FrameKind.REQUEST, number, document, tensors)
        ):
            return False
        self._answers[number] = answer
        return True

    def forget(self, number: int) -> None:
        """Remove a call whose answer has arrived or is not needed."""
        del self._answers[number]
        self._admit_next()

    def give_up(self, number: int, sent: asyncio.Task[OpError | None] | None = None) -> None:
        """Abandon a call, and send CANCEL to the peer.

        Args:
            number: Number of the call.
            sent: The task that still sends the request. CANCEL must not overtake it: the peer would ignore it.
        """
        self.forget(number)
        if self._ended:
            return
        cancel = WireMessage(FrameKind.CANCEL, number)
        with suppress(OpError):  # the connection has ended, which `end` has not announced yet
            # Posted at once, so that the peer frees the slot before the next request, which takes it, arrives.
            if sent is None and self._sending.post(cancel):
                return
        self._sending.start(cancel, sent)

    async def _queued(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # this caller had been woken, so wake the next one instead
                self._admit_next()
            raise

    def _admit_next(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def on_reply(self, message: WireMessage) -> None:
        """Handle a REPLY message."""
        answer = self._answers.get(message.request)
        if answer is not None and not answer.done():  # otherwise the caller has given up
            answer.set_result(Reply(message.header, message.tensors))

    def on_failure(self, message: WireMessage) -> None:
        """Handle a FAILURE message. Raises DataLossError if it is malformed."""
        error = decode_error(message.header, self._sending.comm.peer)
        answer = self._answers.get(message.request)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def end(self, error: OpError, in_order: bool) -> None:
        """Fail all open calls because the connection has ended.

        Args:
            error: Why it has ended.
            in_order: Whether the peer closed gracefully, so that unanswered requests were not and will not be started.
        """
        self._ended = True
        # A copy: an answer that fails may call `forget` at once.
        for answer in list(self._answers.values()):
            if not answer.done():
                lost = gone(self._sending.comm.peer, error)
                if in_order:
                    lost.may_have_been_applied = False
                answer.set_exception(lost)
        # Wake all waiting callers: each then raises in `_require_open`.
        for waiter in self._queue:
            if not waiter.done():
                waiter.set_result(None)
