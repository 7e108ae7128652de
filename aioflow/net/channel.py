"""Calls and one-way pushes over one comm, any number at a time and both ways.

A call is a REQUEST that is answered by a REPLY or a FAILURE of the same number; a caller that gives up sends CANCEL,
and forgets it. Every task belongs to the channel: one for each request whose service waits, one for each large message
on its way out, so that a caller that gives up never cuts a message in two, and one that reads, unless the comm hands
messages over by itself. A push whose taker never waits needs none, and neither does a request that is answered at once.
Small messages go between the chunks of large ones, so neither pushes nor calls have an order among themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aioflow.checks.numbers import check_seconds
from aioflow.errors import DeadlineExceededError, OpError, UnavailableError
from aioflow.net.calls import Calls
from aioflow.net.comm import Comm, gone
from aioflow.net.exchange import Answer, Reply, Request, Sending, Service, Taker, packed
from aioflow.net.framing import Kind, Message
from aioflow.net.inbox import Dispatching
from aioflow.net.open_requests import OpenRequests
from aioflow.net.requests import Requests

__all__ = ["Answer", "Channel", "Reply", "Request", "Service", "Taker", "packed"]


class Channel:
    """Calls over a comm, which it closes in the end.

    Args:
        services: What the peer may call or push to, by kind: coroutine functions, or functions that answer at once
            where nothing has to be waited for. One that fails on a call answers with its error. A push has no answer:
            one that fails, or that nobody knows, aborts the connection.
        takers: Of pushes alone, by kind: functions that never wait. They are called as soon as the push has arrived.

        open_requests: Of the peer; by default they are bounded by the comm's limits. So are the calls that wait here.

    Attributes:
        calls: Those of this end, that have no answer yet.
        in_order: Whether the peer has said goodbye (`end`): what has no answer has not been begun, and will not be.
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
        self._broken = False  # whether what arrives is not looked at any more
        self._group = asyncio.TaskGroup()  # no task in it ever raises
        self._entered = False
        self._reader: asyncio.Task[None] | None = None
        self._sending = Sending(comm, self._group)
        self.calls = Calls(self._sending, self._require_open, comm.limits.open_requests)
        bounds = open_requests or OpenRequests(comm.limits)
        self._requests = Requests(self._sending, self._group, services or {}, takers or {}, bounds, self._break)
        self._on_kind: Mapping[Kind, Callable[[Message], None]] = {
            Kind.REQUEST: self._requests.on_request,
            Kind.REPLY: self.calls.on_reply,
            Kind.FAILURE: self.calls.on_failure,
            Kind.PUSH: self._requests.on_push,
            Kind.CANCEL: self._requests.on_cancel,
        }

    @property
    def peer(self) -> str:
        """The other end, as errors name it."""
        return self.comm.peer

    @property
    def is_busy(self) -> bool:
        """Whether anything is asked, served or awaited."""
        return self.calls.is_waiting or self._requests.is_serving

    @property
    def error(self) -> OpError | None:
        """Why nothing can be called any more, or None."""
        return self._error

    async def wait_ended(self) -> OpError:
        """Wait until the connection has ended; returns why."""
        await asyncio.shield(self._ended)
        return gone(self.peer, self._error or UnavailableError("ended"))

    # ── calling ──

    async def call(
        self, kind: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Any] = (), *, timeout: float | None
    ) -> Reply:
        """Ask the peer.

        Args:
            timeout: Seconds until there is an answer; the peer gets them too, and stops by itself. None where the
                caller has a deadline of its own.

        Raises:
            DeadlineExceededError: there was none in time.
            UnavailableError: the connection has ended.
            OpError: of any class, with "From <peer>:" before its message, if the service has failed.
        """
        check_seconds(timeout, "the time limit of a call")
        document = {"kind": kind, "timeout": timeout, "body": header or {}}
        if timeout is None:
            return await self.calls.ask(document, tensors)
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await self.calls.ask(document, tensors)
        except TimeoutError as error:
            if isinstance(error, OpError) or not deadline.expired():
                raise
            raise DeadlineExceededError(f"{self.peer} has not answered {kind!r} within {timeout:g} s") from error

    def post(self, document: Mapping[str, Any], tensors: Sequence[Any] = (), number: int = 0) -> bool:
        """As `push_packed`, unless it would have to wait; returns whether it was sent. The tensors must never change.

        Raises:
            UnavailableError: the connection has ended.
        """
        self._require_open()
        return self._sending.post(Message(Kind.PUSH, number, document, tensors))

    async def push(self, kind: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Any] = ()) -> None:
        """Send to a service of the peer without an answer; returns when the tensors are on their way.

        Raises:
            UnavailableError: the connection has ended.
        """
        await self.push_packed(packed(kind, header or {}), tensors)

    async def push_packed(self, document: Mapping[str, Any], tensors: Sequence[Any] = (), number: int = 0) -> None:
        """As `push`, with the whole header (`packed`), and a number that the service gets."""
        self._require_open()
        await self._sending.send(Message(Kind.PUSH, number, document, tensors))

    def notify(self, kind: str, header: Mapping[str, Any]) -> None:
        """`push` a header for one who does not wait; where the connection has ended, nothing is done."""
        if self._error is None:
            self._sending.start(Message(Kind.PUSH, 0, packed(kind, header)))

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

    def _on_message(self, message: Message) -> None:
        if self._broken:
            return
        try:
            self._on_kind[message.kind](message)
        except OpError as error:
            self._break(error, error.message)

    def _on_end(self, error: OpError | None) -> None:
        self.in_order = error is None and self._error is None
        self._finish(error or UnavailableError(f"{self.peer} has closed the connection"))

    def _break(self, error: OpError, reason: str) -> None:
        """End the connection because of what the peer has sent."""
        self._broken = True
        self._finish(error)  # first, since the end of the comm is another error
        self.comm.abort(reason)

    # ── beginning and end ──

    def _finish(self, error: OpError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._ended.set_result(None)
        self.calls.end(error, self.in_order)
        self._requests.end()

    async def answered(self) -> None:
        """Wait until what the peer has asked by now has its answers."""
        await self._requests.answered()

    def tell(self) -> bool:
        """Post the answers for which nobody has waited, as of `Comm.tell`."""
        return self._requests.tell_now()

    async def end(self, reason: str) -> None:
        """Take no more requests, answer those that are served, and let `wait_ended` return: whoever opened the channel
        closes it then, by which the peer knows.
        """
        self._requests.refuse()
        await self._requests.answered()
        self._requests.tell_all()
        self._finish(UnavailableError(reason))

    async def open(self) -> None:
        """Begin to read; `close` must follow."""
        await self._group.__aenter__()
        self._entered = True
        if isinstance(self.comm, Dispatching):
            self.comm.dispatch(self._on_message, self._on_end)
        else:
            self._reader = self._group.create_task(self._read())

    async def close(self) -> None:
        """End the connection once all that was sent has arrived; calls that wait fail, and services are cancelled."""
        self._finish(UnavailableError(f"the connection to {self.peer} is closed"))
        try:
            await self.comm.close()
        finally:
            await self._leave()

    async def abort(self, reason: str) -> None:
        """End the connection now."""
        self.comm.abort(reason)
        self._finish(UnavailableError(f"the connection to {self.peer} was aborted: {reason}"))
        await self._leave()

    async def _leave(self) -> None:
        if self._entered:
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
