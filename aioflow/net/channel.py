"""Calls and one-way pushes over one comm, concurrently and in both directions."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from aioflow.arguments import check_seconds
from aioflow.errors import DeadlineExceededError, OpError, UnavailableError
from aioflow.memory.values import Value
from aioflow.net.comm import Comm, gone
from aioflow.net.errors_codec import decode_error
from aioflow.net.exchange import Reply, ReplyReceiver, Sending, Service, ServiceRequest, Taker, packed, payload_bytes
from aioflow.net.framing import CHUNK_BYTES, Document, FrameKind, WireMessage
from aioflow.net.inbox import Dispatching
from aioflow.net.requests import OpenRequests, RequestHandler

__all__ = ["Channel", "Reply", "ReplyReceiver", "Service", "ServiceRequest", "Taker", "packed"]


# ── unanswered calls of one end of a channel ──────────────────────────────────────────────────────────────────────────


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


# ── the channel ───────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A call is a REQUEST that is answered by a REPLY or a FAILURE of the same number. A caller that gives up sends CANCEL
# and forgets the call. The channel owns all tasks:
#
# - one for each request whose service waits;
# - one for each large outgoing message, so that a cancelled caller never truncates a message;
# - one reader, unless the comm dispatches messages itself.
#
# Pushes to a taker, which never waits, and requests that are answered immediately need no task. Small messages are sent
# between the chunks of large ones, so neither pushes nor calls are ordered among themselves.


class Channel:
    """Calls over a comm, which the channel closes at its end.

    Args:
        comm: The connection.
        services: Handlers of the peer's calls and pushes, by kind: coroutine functions, or plain functions that answer
            immediately. If a handler of a call fails, its error is the answer. A push has no answer: if its handler
            fails, or its kind is unknown, the connection is aborted.
        takers: Handlers of pushes only, by kind: functions that never wait. They run as soon as the push has arrived.
        open_requests: Limits on the peer's requests; by default those of the comm. The comm's limits also bound the
            calls of this end.

    Attributes:
        calls: The unanswered calls of this end.
        in_order: Whether the peer has closed gracefully (`end`): unanswered requests were not and will not be started.
    """

    def __init__(
        self,
        comm: Comm,
        services: Mapping[str, Service] | None = None,
        takers: Mapping[str, Taker] | None = None,
        open_requests: OpenRequests | None = None,
    ) -> None:
        self.comm = comm
        self.in_order = False
        self._error: OpError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = False  # whether further messages are ignored
        self._group = asyncio.TaskGroup()  # no task in it ever raises
        self._entered = False
        self._reader: asyncio.Task[None] | None = None
        self._sending = Sending(comm, self._group)
        self.calls = Calls(self._sending, self._require_open, comm.limits.open_requests)
        bounds = open_requests or OpenRequests(comm.limits)
        self._requests = RequestHandler(self._sending, self._group, services or {}, takers or {}, bounds, self._break)
        self._on_kind: Mapping[FrameKind, Callable[[WireMessage], None]] = {
            FrameKind.REQUEST: self._requests.on_request,
            FrameKind.REPLY: self.calls.on_reply,
            FrameKind.FAILURE: self.calls.on_failure,
            FrameKind.PUSH: self._requests.on_push,
            FrameKind.CANCEL: self._requests.on_cancel,
        }

    @property
    def peer(self) -> str:
        """The name of the other end, for error messages."""
        return self.comm.peer

    @property
    def is_busy(self) -> bool:
        """True if a call is open or a request is being served."""
        return self.calls.is_waiting or self._requests.is_serving

    @property
    def error(self) -> OpError | None:
        """The reason why calls are no longer possible, or None."""
        return self._error

    async def wait_ended(self) -> OpError:
        """Wait until the connection has ended, and return the reason."""
        # Several callers may wait for this future: a cancelled one must not cancel it for the others.
        await asyncio.shield(self._ended)
        return gone(self.peer, self._error or UnavailableError("ended"))

    # ── calling ──

    async def call(
        self, kind: str, header: Document | None = None, tensors: Sequence[Value] = (), *, timeout: float | None
    ) -> Reply:
        """Call a service of the peer and return its answer.

        Args:
            kind: Kind of the service.
            header: Arguments of the service.
            tensors: Tensors of the request.
            timeout: Time limit in seconds. It is sent to the peer, which stops by itself. None if the caller enforces
                its own deadline.

        Raises:
            DeadlineExceededError: no answer arrived in time.
            UnavailableError: the connection has ended.
            OpError: the service failed; any subclass, with "From <peer>:" before its message.
        """
        check_seconds(timeout, "the time limit of a call")
        document = {"kind": kind, "timeout": timeout, "body": header or {}}
        if timeout is None:
            return await self.calls.ask(document, tensors)
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await self.calls.ask(document, tensors)
        except TimeoutError as error:
            # DeadlineExceededError is a TimeoutError, too: one from the peer passes unchanged.
            if isinstance(error, OpError) or not deadline.expired():
                raise
            raise DeadlineExceededError(f"{self.peer} did not answer {kind!r} within {timeout:g} s") from error

    def post(self, document: Document, tensors: Sequence[Value] = (), number: int = 0) -> bool:
        """Like `push_packed`, but return False instead of waiting. The tensors must never change.

        Raises:
            UnavailableError: the connection has ended.
        """
        self._require_open()
        return self._sending.post(WireMessage(FrameKind.PUSH, number, document, tensors))

    async def push(self, kind: str, header: Document | None = None, tensors: Sequence[Value] = ()) -> None:
        """Send a message without an answer to a service of the peer. Return once the tensors are being sent.

        Raises:
            UnavailableError: the connection has ended.
        """
        await self.push_packed(packed(kind, header or {}), tensors)

    async def push_packed(self, document: Document, tensors: Sequence[Value] = (), number: int = 0) -> None:
        """Like `push`, with a complete header (`packed`), and a number that is passed to the service."""
        self._require_open()
        await self._sending.send(WireMessage(FrameKind.PUSH, number, document, tensors))

    def notify(self, kind: str, header: Document) -> None:
        """Start to push a header without waiting. Does nothing if the connection has ended."""
        if self._error is None:
            self._sending.start(WireMessage(FrameKind.PUSH, 0, packed(kind, header)))

    def _require_open(self) -> None:
        if self._error is not None:
            error = gone(self.peer, self._error)
            error.may_have_been_applied = False  # nothing has been sent
            raise error

    # ── being called ──

    async def _read(self) -> None:
        try:
            while (message := await self.comm.receive()) is not None:
                self._on_message(message)
        except OpError as error:
            self._on_end(error)
        else:
            self._on_end(None)

    def _on_message(self, message: WireMessage) -> None:
        # After an abort, `Comm.receive` still returns the messages that were queued before it.
        if self._broken:
            return
        try:
            self._on_kind[message.kind](message)
        except OpError as error:
            self._break(error, error.message)

    def _on_end(self, error: OpError | None) -> None:
        # Only a graceful close tells which requests were started; after any other end it is unknown.
        self.in_order = error is None and self._error is None
        self._finish(error or UnavailableError(f"{self.peer} has closed the connection"))

    def _break(self, error: OpError, reason: str) -> None:
        """Abort the connection because of an invalid message."""
        self._broken = True
        self._finish(error)  # before the abort, which would end the channel with another error
        self.comm.abort(reason)

    # ── start and end ──

    def _finish(self, error: OpError) -> None:
        if self._error is not None:
            return
        # Set before the answers fail: an `ReplyReceiver` may act on its error at once, and must find the channel ended.
        self._error = error
        self._ended.set_result(None)
        self.calls.end(error, self.in_order)
        self._requests.end()

    async def answered(self) -> None:
        """Wait until the requests that the peer has sent so far are answered."""
        await self._requests.answered()

    def tell(self) -> bool:
        """Send the answers that have been held back, as `Comm.tell`. Return True if all could be sent."""
        return self._requests.tell_now()

    async def end(self, reason: str) -> None:
        """Reject new requests, answer those being served, and let `wait_ended` return.

        The owner of the channel then closes it, which tells the peer.
        """
        self._requests.refuse()
        await self._requests.answered()
        self._requests.tell_all()
        self._finish(UnavailableError(reason))

    async def open(self) -> None:
        """Start reading; `close` must follow."""
        # Entered by hand: the group lives from `open` to `close`, which need not stand in one block.
        await self._group.__aenter__()
        self._entered = True
        if isinstance(self.comm, Dispatching):
            self.comm.dispatch(self._on_message, self._on_end)
        else:
            self._reader = self._group.create_task(self._read())

    async def close(self) -> None:
        """Close the connection once everything sent has arrived. Open calls fail, and services are cancelled."""
        # Before the comm closes, which may take seconds: requests that arrive meanwhile are no longer started.
        self._finish(UnavailableError(f"the connection to {self.peer} is closed"))
        try:
            await self.comm.close()
        finally:
            await self._leave()

    async def abort(self, reason: str) -> None:
        """Close the connection immediately."""
        self.comm.abort(reason)
        self._finish(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))
        await self._leave()

    async def _leave(self) -> None:
        if self._entered:
            # Cleared before any await, so that a second close, or an abort during a close, does not leave the group
            # again.
            self._entered = False
            self._requests.close()
            if self._reader is not None:
                self._reader.cancel()
            await self._group.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort(f"{type(error).__name__} in the block that used it")
