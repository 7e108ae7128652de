"""The requests of a peer: a service answers each of them, at once or in a task. Their number and size are limited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final

from aioflow.arguments import brief
from aioflow.errors import DataLossError, OpError, ResourceExhaustedError, UnavailableError, UnimplementedError
from aioflow.memory.values import Array
from aioflow.net.comm import bare
from aioflow.net.errors_codec import encode_error
from aioflow.net.exchange import REMEMBERED, UNANSWERED, Reply, Sending, Service, ServiceRequest, Taker, payload_bytes
from aioflow.net.framing import INLINE_BYTES, FrameKind, WireMessage
from aioflow.net.limits import Limits, Quota
from aioflow.net.tensor_format import bytes_of

# ── limits on unanswered requests: number and bytes per connection, and bytes over all clients of a worker ────────────


# Only the bytes of all clients together are limited, not the number of requests.
_ANY: Final = 1 << 62


def all_open_requests(limits: Limits) -> Quota:
    """Return the quota for the open requests of all clients of a worker."""
    return Quota("bytes of the open requests of all clients", _ANY, limits.all_open_bytes)


class OpenRequests:
    """The open requests of one connection.

    `limits` are those of the connection. `everybody` is the quota over all connections, if there is one.
    """

    __slots__ = ("_ending", "_everybody", "_most", "_own")

    def __init__(self, limits: Limits, everybody: Quota | None = None) -> None:
        self._own = Quota("too many open requests", limits.open_requests, limits.open_bytes)
        self._everybody = everybody
        self._most = limits.open_requests
        self._ending = 0  # requests abandoned by their caller that have not stopped yet

    def take(self, tensors: Sequence[Array]) -> int:
        """Count a request with these tensors, and return the size to pass to `give`.

        Raises:
            ResourceExhaustedError: a limit is exceeded. The request must then be rejected unread.
        """
        size = sum(tensor.nbytes for tensor in tensors) if tensors else 0
        try:
            self._own.take(1, size)
            if self._everybody is not None:
                try:
                    self._everybody.take(1, size)
                except ResourceExhaustedError:
                    # A request counts in both quotas or in none.
                    self._own.give(1, size)
                    raise
        except ResourceExhaustedError as error:
            error.may_have_been_applied = False
            raise
        return size

    def give_up(self) -> bool:
        """Stop counting a request whose caller has given up, as far as possible.

        The caller may send another request before the abandoned one has stopped.

        Returns:
            True if the request no longer counts. At most as many abandoned requests as may be open are uncounted in
            this way. Their bytes count until they have stopped.
        """
        if self._ending >= self._most:
            return False
        self._ending += 1
        self._own.give(1, 0)
        return True

    def give(self, size: int, given_up: bool = False) -> None:
        """Uncount a request that was answered or has stopped.

        Args:
            size: The size that `take` returned.
            given_up: The result of `give_up` for this request.
        """
        self._ending -= given_up
        self._own.give(0 if given_up else 1, size)
        if self._everybody is not None:
            self._everybody.give(1, size)


# ── the requests of one peer ──────────────────────────────────────────────────────────────────────────────────────────


_LONGEST: Final = 86_400.0 * 365  # seconds; not every event loop supports longer timers


class RequestHandler:
    """The server side of a channel.

    Args:
        sending: Sends the answers.
        group: Owns the tasks, none of which ever raises.
        services, takers: As for `Channel`.
        open_requests: Limits the unanswered requests.
        on_bad_push: Called with the error of a failed push, and the reason to end the connection.
    """

    def __init__(
        self,
        sending: Sending,
        group: asyncio.TaskGroup,
        services: Mapping[str, Service],
        takers: Mapping[str, Taker],
        open_requests: OpenRequests,
        on_bad_push: Callable[[OpError, str], None],
    ) -> None:
        self._sending = sending
        self._comm = sending.comm
        self._group = group
        self._services = dict(services)
        self._takers = dict(takers)
        self._open = open_requests
        self._on_bad_push = on_bad_push
        self._limits = sending.comm.limits
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._given_up: set[int] = set()  # requests whose service still runs, but which no longer count as open
        self._pushes: set[asyncio.Task[None]] = set()
        self._refusals: set[asyncio.Task[OpError | None]] = set()
        # Requests that have ended, and whose callers do not wait for answers.
        self._unanswered: deque[int] = deque(maxlen=REMEMBERED)
        self._owed = 0  # bytes of queued answers
        self._deaf = False

    @property
    def is_serving(self) -> bool:
        """True if a request is unanswered or a push is being processed."""
        return bool(self._serving or self._pushes)

    def on_request(self, message: WireMessage) -> None:
        """Process a REQUEST message. Raises DataLossError if it is malformed."""
        if self._deaf:
            return
        number = message.request
        if number in self._serving:
            raise DataLossError(f"{self._comm.peer} has used a number for two requests", actual=number)
        request = self._parsed(message)
        size = 0
        try:
            size = self._open.take(message.tensors)
        except ResourceExhaustedError as error:
            self._refuse(number, error)
            return
        try:
            answer = self._service(request)(request)
            if isinstance(answer, Reply):
                if self._post(number, answer):
                    self._open.give(size)
                    return
                answer = _given(answer)
        except Exception as error:
            answer = _failing(error)
        task = self._group.create_task(self._answer(number, answer))
        self._serving[number] = task
        task.add_done_callback(partial(self._served, number, answer, size))
        if request.timeout is not None:  # by then the caller has given up and expects no answer
            timer = asyncio.get_running_loop().call_later(min(request.timeout, _LONGEST), task.cancel)
            task.add_done_callback(lambda _: timer.cancel())

    def _served(self, number: int, answer: Awaitable[Reply | None], size: int, _: asyncio.Task[None]) -> None:
        self._serving.pop(number, None)
        self._open.give(size, given_up=number in self._given_up)
        self._given_up.discard(number)
        if isinstance(answer, Coroutine):
            answer.close()  # never started, if the task was cancelled before it began

    def _parsed(self, message: WireMessage) -> ServiceRequest:
        header = message.header
        kind, timeout, body = header.get("kind"), header.get("timeout"), header.get("body")
        timed = timeout is None or (type(timeout) in (int, float) and timeout >= 0)
        if not (isinstance(kind, str) and timed and isinstance(body, dict) and len(header) == 3):
            raise DataLossError(
                f"a malformed request from {self._comm.peer}", expected="kind, timeout, body", actual=brief(header)
            )
        return ServiceRequest(kind, body, message.tensors, self._comm.peer, timeout, message.request)

    def _refuse(self, number: int, error: ResourceExhaustedError) -> None:
        """Answer a request that exceeds the limits. Raises the error if the peer does not read such answers."""
        # Without a traceback: formatting one takes ten times as long as the rest, and thousands of requests may be
        # refused in one turn of the event loop.
        refusal = WireMessage(FrameKind.FAILURE, number, encode_error(bare(error), self._limits.header_bytes))
        if self._comm.post(refusal):
            return
        if len(self._refusals) >= self._limits.open_requests:
            raise error
        task = self._sending.start(refusal)
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def _service(self, request: ServiceRequest) -> Service:
        found = self._services.get(request.kind)
        if found is None:
            raise UnimplementedError(
                "an unknown kind of request", expected=f"one of {sorted(self._services)}", actual=brief(request.kind)
            )
        return found

    async def _answer(self, number: int, answer: Awaitable[Reply | None]) -> None:
        failure = await self._reply(number, answer)
        if failure is not None and not self._comm.post(failure):
            await asyncio.wait([self._sending.start(failure)])

    async def _reply(self, number: int, answer: Awaitable[Reply | None]) -> WireMessage | None:
        """Send a reply. Return the failure to be sent in its place, if any."""
        try:
            reply = await answer or Reply()
            if not self._post(number, reply):
                await self._send(WireMessage(FrameKind.REPLY, number, reply.header, reply.tensors))
        # The caller sends the failure: that may wait for long, and this frame and the traceback hold a large reply.
        except Exception as error:  # not for cancellation: then the caller has given up, or is gone
            if not self._comm.closed:
                return WireMessage(FrameKind.FAILURE, number, encode_error(error, self._limits.header_bytes))
        return None

    def _post(self, number: int, reply: Reply) -> bool:
        """Send a small reply without waiting, if the connection accepts it. Return whether the request is answered."""
        # By identity: a service may return an equal, empty reply to a caller that waits for it.
        if reply is UNANSWERED:
            self._unanswered.append(number)
            return True
        message = WireMessage(FrameKind.REPLY, number, reply.header, reply.tensors)
        # The arrays of a larger reply are not copied into the frame, and may change before they are sent.
        return payload_bytes(message) <= INLINE_BYTES and self._comm.post(message)

    async def _send(self, message: WireMessage) -> None:
        """Send an answer when there is room. Raises ResourceExhaustedError if the peer leaves too many bytes unread."""
        size, most = sum(map(bytes_of, message.tensors)), self._limits.unsent_bytes
        # A single answer may exceed the limit: otherwise it could never be sent.
        if self._owed and self._owed + size > most:
            raise ResourceExhaustedError(
                "bytes of answers that wait to be read", expected=f"at most {most}", actual=self._owed + size
            )
        self._owed += size
        try:
            await self._sending.send(message)
        finally:
            self._owed -= size

    def on_push(self, message: WireMessage) -> None:
        """Process a PUSH message.

        Raises:
            DataLossError: the message is malformed.
            ResourceExhaustedError: too many requests are open.
        """
        request = self._parsed(message)
        taker = self._takers.get(request.kind)
        if taker is not None:
            try:
                taker(request)
            except Exception as error:
                self._push_failed(request, error)
            return
        size = self._open.take(message.tensors)
        task = self._group.create_task(self._take(request))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)
        task.add_done_callback(lambda _: self._open.give(size))

    async def _take(self, request: ServiceRequest) -> None:
        try:
            answer = self._service(request)(request)
            if not isinstance(answer, Reply):
                await answer
        except Exception as error:
            self._push_failed(request, error)

    def _push_failed(self, request: ServiceRequest, error: Exception) -> None:
        known = error if isinstance(error, OpError) else UnavailableError(f"a push has failed: {error}")
        self._on_bad_push(known, f"a push of kind {brief(request.kind)} has failed: {error}")

    def on_cancel(self, message: WireMessage) -> None:
        """Process a CANCEL message."""
        task = self._serving.get(message.request)
        if task is None:
            return
        task.cancel()
        if message.request not in self._given_up and self._open.give_up():
            self._given_up.add(message.request)

    async def answered(self) -> None:
        """Wait until all requests received so far are answered."""
        if self._serving:
            await asyncio.wait(list(self._serving.values()))

    def tell_all(self) -> None:
        """Send the answers that were omitted. After a graceful close, an unanswered request counts as never begun."""
        for number in self._unanswered:
            message = WireMessage(FrameKind.REPLY, number)
            if not self._comm.post(message):
                self._sending.start(message)

    def tell_now(self) -> bool:
        """Send the omitted answers without waiting. Return True if all could be sent."""
        return all(self._comm.post(WireMessage(FrameKind.REPLY, number)) for number in self._unanswered)

    def refuse(self) -> None:
        """Accept no more requests."""
        self._deaf = True

    def end(self) -> None:
        """Cancel the running services and accept no more requests. Pushes are still accepted."""
        self._deaf = True  # nothing would cancel later requests
        for task in self._serving.values():
            task.cancel()

    def close(self) -> None:
        """Cancel the pushes that are being processed."""
        for task in self._pushes:
            task.cancel()


async def _given(reply: Reply) -> Reply:
    return reply


async def _failing(error: Exception) -> Reply:
    raise error
