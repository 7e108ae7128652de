"""Calls and one-way pushes over one comm, any number at a time and both ways.

A call is a REQUEST that is answered by a REPLY or a FAILURE of the same number; a caller that gives up sends CANCEL,
and forgets it. Every task belongs to the channel: one for each request that is being served, one for each large message
on its way out, so that a caller that gives up never cuts a message in two, and one that reads, unless the comm hands
messages over by itself. A push whose taker never waits needs none. Small messages go between the chunks of large ones,
so neither pushes nor calls have an order among themselves.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from aioflow.checks.brief import brief
from aioflow.checks.numbers import check_seconds
from aioflow.errors import (
    DataLossError,
    DeadlineExceededError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.net.comm import Comm, gone
from aioflow.net.errors_codec import decode_error, encode_error
from aioflow.net.framing import ALIGNMENT, CHUNK_BYTES, Kind, Message
from aioflow.net.inbox import Dispatching

__all__ = ["Channel", "Reply", "Request", "Service", "Taker"]


_LONGEST: Final = 86_400.0 * 365  # seconds; not every event loop takes longer ones


class Request(NamedTuple):
    """What a service is asked.

    Attributes:
        kind: Which service this is.
        header: The caller's document, which the service must check.
        peer: Who asks, as errors name it.
        timeout: Seconds after which the service is cancelled, or None.
    """

    kind: str
    header: dict[str, Any]
    tensors: Sequence[Any]
    peer: str
    timeout: float | None


class Reply(NamedTuple):
    """What a call returns."""

    header: Mapping[str, Any] = {}
    tensors: Sequence[Any] = ()


Service: TypeAlias = Callable[[Request], Awaitable[Reply | None]]
Taker: TypeAlias = Callable[[Request], None]


class Channel:
    """Calls over a comm, which it closes in the end.

    Args:
        services: What the peer may call or push to, by kind. One that fails on a call answers with its error. A push
            has no answer: one that fails, or that nobody knows, aborts the connection.
        takers: Of pushes alone, by kind: functions that never wait. They are called as soon as the push has arrived.

    The comm's `Limits.open_requests` bounds the calls that wait here, and the requests of the peer that are served.

    Attributes:
        in_order: Whether the peer has said goodbye (`end`): what has no answer has not been begun, and will not be.
    """

    def __init__(
        self, comm: Comm, services: Mapping[str, Service] | None = None, takers: Mapping[str, Taker] | None = None
    ) -> None:
        self.comm = comm
        self._services = dict(services or {})
        self._takers = dict(takers or {})
        self._limits = comm.limits
        self._numbers = itertools.count(1)
        self._slots = asyncio.Semaphore(self._limits.open_requests)
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._pushes: set[asyncio.Task[None]] = set()
        self.in_order = False
        self._deaf = False  # whether requests are taken no more
        self._error: OpError | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = False  # whether what arrives is not looked at any more
        self._group = asyncio.TaskGroup()  # no task in it ever raises
        self._entered = False
        self._reader: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        """The other end, as errors name it."""
        return self.comm.peer

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
        message = Message(
            Kind.REQUEST, next(self._numbers), {"kind": kind, "timeout": timeout, "body": header or {}}, tensors
        )
        if timeout is None:
            async with self._slots:
                return await self._ask(message)
        try:
            async with asyncio.timeout(timeout) as deadline, self._slots:
                return await self._ask(message)
        except TimeoutError as error:
            if isinstance(error, OpError) or not deadline.expired():
                raise
            raise DeadlineExceededError(f"{self.peer} has not answered {kind!r} within {timeout:g} s") from error

    async def _ask(self, message: Message) -> Reply:
        self._require_open()
        number = message.request
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        sending: asyncio.Task[OpError | None] | None = None
        try:
            if _takes_turns(message):
                sending = self._group.create_task(self._deliver(message))
                await self._delivered(sending)
            elif not self.comm.post(message):
                await self.comm.send(message, urgent=True)
            return await answer
        finally:
            del self._calls[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, even where the caller was stopped in the same moment
            elif self._error is None:
                self._group.create_task(self._give_up(number, sending))

    async def _give_up(self, number: int, sending: asyncio.Task[OpError | None] | None) -> None:
        if sending is not None:
            await asyncio.wait([sending])  # a CANCEL that overtakes its request would be forgotten
        await self._deliver(Message(Kind.CANCEL, number))

    def post(self, kind: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Any] = ()) -> bool:
        """As `push`, unless it would have to wait; returns whether it was sent. The tensors must never change.

        Raises:
            UnavailableError: the connection has ended.
        """
        self._require_open()
        return self.comm.post(_push(kind, header, tensors))

    async def push(self, kind: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Any] = ()) -> None:
        """Send to a service of the peer without an answer; returns when the tensors are on their way.

        Raises:
            UnavailableError: the connection has ended.
        """
        self._require_open()
        message = _push(kind, header, tensors)
        if _takes_turns(message):
            await self._delivered(self._group.create_task(self._deliver(message)))
        else:
            await self.comm.send(message, urgent=True)

    def notify(self, kind: str, header: Mapping[str, Any]) -> None:
        """`push` a header for one who does not wait; where the connection has ended, nothing is done."""
        if self._error is None:
            self._group.create_task(self._deliver(_push(kind, header, ())))

    async def _deliver(self, message: Message) -> OpError | None:
        try:
            await self.comm.send(message, urgent=True)
        except OpError as error:
            return error
        return None

    async def _delivered(self, sending: asyncio.Task[OpError | None]) -> None:
        error = await asyncio.shield(sending)
        if error is not None:
            raise error

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
            _ON_MESSAGE[message.kind](self, message)
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

    def _on_request(self, message: Message) -> None:
        if self._deaf:
            return
        number = message.request
        if number in self._serving:
            raise DataLossError(f"{self.peer} has used a number for two requests", actual=number)
        request = self._request(message)
        task = self._group.create_task(self._answer(number, request, len(self._serving)))
        self._serving[number] = task
        task.add_done_callback(lambda _: self._serving.pop(number, None))
        if request.timeout is not None:  # the caller has given up by then, and need not be told
            timer = asyncio.get_running_loop().call_later(min(request.timeout, _LONGEST), task.cancel)
            task.add_done_callback(lambda _: timer.cancel())

    def _request(self, message: Message) -> Request:
        kind, timeout, body = (message.header.get(key) for key in ("kind", "timeout", "body"))
        timed = timeout is None or (type(timeout) in (int, float) and timeout >= 0)
        if not (isinstance(kind, str) and timed and isinstance(body, dict) and len(message.header) == 3):
            raise DataLossError(
                f"a malformed request from {self.peer}", expected="kind, timeout, body", actual=brief(message.header)
            )
        return Request(kind, body, message.tensors, self.peer, timeout)

    async def _answer(self, number: int, request: Request, open_requests: int) -> None:
        error: Exception | None
        try:
            if open_requests >= self._limits.open_requests:
                raise ResourceExhaustedError(
                    "too many open requests", expected=f"at most {self._limits.open_requests}", actual=open_requests
                )
            reply = await self._service(request)(request) or Reply()
            error = await self._deliver_whole(Message(Kind.REPLY, number, reply.header, reply.tensors))
        except Exception as raised:
            error = raised
        # A cancelled task says nothing: its caller has given up, or is gone.
        if error is not None and not self.comm.closed:
            await self._deliver_whole(Message(Kind.FAILURE, number, encode_error(error, self._limits.header_bytes)))

    async def _deliver_whole(self, message: Message) -> OpError | None:
        if _takes_turns(message):
            return await asyncio.shield(self._group.create_task(self._deliver(message)))
        return await self._deliver(message)

    def _service(self, request: Request) -> Service:
        found = self._services.get(request.kind)
        if found is None:
            raise UnimplementedError(
                "an unknown kind of request", expected=f"one of {sorted(self._services)}", actual=brief(request.kind)
            )
        return found

    def _on_push(self, message: Message) -> None:
        request = self._request(message)
        taker = self._takers.get(request.kind)
        if taker is not None:
            try:
                taker(request)
            except Exception as error:
                self._push_failed(request, error)
            return
        task = self._group.create_task(self._take(request))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)

    async def _take(self, request: Request) -> None:
        try:
            await self._service(request)(request)
        except Exception as error:
            self._push_failed(request, error)

    def _push_failed(self, request: Request, error: Exception) -> None:
        known = error if isinstance(error, OpError) else UnavailableError(f"a push has failed: {error}")
        self._break(known, f"a push of kind {brief(request.kind)} has failed: {error}")

    def _on_reply(self, message: Message) -> None:
        answer = self._calls.get(message.request)
        if answer is not None and not answer.done():  # otherwise the caller has given up
            answer.set_result(Reply(message.header, message.tensors))

    def _on_failure(self, message: Message) -> None:
        error = decode_error(message.header, self.peer)
        answer = self._calls.get(message.request)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _on_cancel(self, message: Message) -> None:
        task = self._serving.get(message.request)
        if task is not None:
            task.cancel()

    # ── beginning and end ──

    def _finish(self, error: OpError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._ended.set_result(None)
        for answer in self._calls.values():
            if not answer.done():
                lost = gone(self.peer, error)
                if self.in_order:
                    lost.may_have_been_applied = False
                answer.set_exception(lost)
        for task in self._serving.values():  # nobody waits for their answers; what was pushed is still taken
            task.cancel()

    async def answered(self) -> None:
        """Wait until what the peer has asked by now has its answers."""
        if self._serving:
            await asyncio.wait(list(self._serving.values()))

    async def end(self, reason: str) -> None:
        """Take no more requests, answer those that are served, and let `wait_ended` return: whoever opened the channel
        closes it then, by which the peer knows.
        """
        self._deaf = True
        await self.answered()
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
            for task in (self._reader, *self._pushes):
                if task is not None:
                    task.cancel()
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


def _push(kind: str, header: Mapping[str, Any] | None, tensors: Sequence[Any]) -> Message:
    return Message(Kind.PUSH, 0, {"kind": kind, "timeout": None, "body": header or {}}, tensors)


def _takes_turns(message: Message) -> bool:
    """Whether it may be sent in several chunks, so that sending it must not be cut short."""
    total = 0
    for tensor in message.tensors:
        dtype = getattr(tensor, "dtype", None)
        if dtype is not None and dtype.hasobject:  # to tell how long strings are takes as long as to encode them
            return True
        total += getattr(tensor, "nbytes", CHUNK_BYTES) + ALIGNMENT
    return total > CHUNK_BYTES


_ON_MESSAGE: Final[Mapping[Kind, Callable[[Channel, Message], None]]] = {
    Kind.REQUEST: Channel._on_request,
    Kind.REPLY: Channel._on_reply,
    Kind.FAILURE: Channel._on_failure,
    Kind.PUSH: Channel._on_push,
    Kind.CANCEL: Channel._on_cancel,
}
