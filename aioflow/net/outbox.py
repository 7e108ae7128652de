"""Delivery of values to the workers of other tasks: each is pushed as soon as it exists, over one connection per task.

A Send never waits, so values queue here. The number of bytes of large values in flight per connection is bounded, and
small values overtake large ones. A value that cannot be delivered stops its step with an error that names the peer.

A value written to a connection may be lost with it, and the part that sent the value may have ended by then. So a value
counts as sent only when the peer has answered a request that was made after it: a few requests a second, however many
values there are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, Self, TypeAlias

from aioflow.errors import AbortedError, OpError, ResourceExhaustedError, UnavailableError, UnknownError
from aioflow.memory.values import Value
from aioflow.net.channel import Channel, packed
from aioflow.net.framing import CHUNK_BYTES, Packed
from aioflow.net.limits import DEFAULT_LIMITS
from aioflow.net.messages import CLOCK, DELIVER, Deliver, to_wire_value
from aioflow.runtime.frames import DEAD

_IN_FLIGHT: Final = 64 << 20  # bytes
_ASK_SECONDS: Final = 0.2  # between requests that confirm arrival
_REMEMBERED: Final = 1024  # headers

OpenChannel: TypeAlias = Callable[[str], AbstractAsyncContextManager[Channel]]


@dataclass(frozen=True, slots=True, eq=False)
class ValueMessage:
    """One value for a step at another task.

    Attributes:
        task: Name of the receiving task.
        incarnation: Incarnation of the receiving process when the step was planned, or 0 for any.
        fail: Called on the outbox's event loop if the value cannot be delivered, or may have been lost.
        connection: Returns the connection from the step's client to a task, if that client runs on this event loop.
    """

    task: str
    incarnation: int
    step: int
    edge: str
    tag: str
    value: Value
    fail: Callable[[OpError], None]
    connection: Callable[[str], Channel | None] | None = None


class Outbox:
    """The sender of one worker's values to other tasks. Use it as `async with`; values left at exit are dropped.

    Args:
        reach: Opens a channel to a task by its name, for the duration of a block.
        confirms: Whether a value that was lost with its connection stops its step. Not needed where the step depends on
            that connection in any case.
        most: Maximum bytes of values queued for one task. A value beyond that stops its step: the task is not reading.
            A value alone in the queue may be larger.
    """

    def __init__(self, reach: OpenChannel, *, confirms: bool = False, most: int = DEFAULT_LIMITS.unsent_bytes) -> None:
        self._reach = reach
        self._most = most
        self._confirms = confirms
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._group = asyncio.TaskGroup()  # no task in it ever raises
        self._queues: dict[str, _SendQueue] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def push(self, message: ValueMessage) -> None:
        """Send a value, from any thread, without waiting."""
        # A Send may run on a thread of the kernels, but the queues belong to the thread of the event loop.
        if threading.get_ident() == self._home:
            self._put(message)
        else:
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: ValueMessage) -> None:
        if _goes_with_its_step(message):
            return
        queue = self._queues.get(message.task)
        if queue is None:
            if self._closed:
                message.fail(UnavailableError("the server is closed"))
                return
            queue = self._queues[message.task] = _SendQueue(message.task, self._reach, self._confirms, self._most)
            self._tasks.append(self._group.create_task(queue.run()))
        queue.put(message)

    @property
    def is_empty(self) -> bool:
        """True if every value has arrived or, without confirmation, has been sent."""
        return all(queue.is_empty for queue in self._queues.values())

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)


class _Queue:
    """A FIFO of messages that counts their bytes."""

    __slots__ = ("_messages", "bytes")

    def __init__(self) -> None:
        self._messages: deque[ValueMessage] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def first(self) -> ValueMessage:
        return self._messages[0]

    def put(self, message: ValueMessage) -> None:
        """Append a message."""
        self._messages.append(message)
        self.bytes += _size(message.value)

    def take(self) -> ValueMessage:
        """Remove and return the first message."""
        message = self._messages.popleft()
        self.bytes -= _size(message.value)
        return message


def _unread(most: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError("bytes of values that wait to be read", expected=f"at most {most}", actual=actual)


class _SendQueue:
    """The send queue of one task."""

    def __init__(self, task: str, reach: OpenChannel, confirms: bool, most: int) -> None:
        self._task = task
        self._most = most
        self._reach = reach
        self._confirms = confirms
        self._small, self._large = _Queue(), _Queue()
        self._in_flight = 0
        self._awake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None  # while connected
        self._sent: list[tuple[str, Callable[[OpError], None]]] = []  # unconfirmed: edge and `ValueMessage.fail`
        self._has_sent = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """True if no value is queued, in flight or unconfirmed."""
        return not (self._small or self._large or self._in_flight or self._sent)

    def put(self, message: ValueMessage) -> None:
        """Send a small value at once if the connection accepts it, else queue the value."""
        size = _size(message.value)
        waiting = self._small.bytes + self._large.bytes + size
        if waiting > self._most and (self._small or self._large):
            _fail(message, _unread(self._most, waiting))
            return
        (self._large if size > CHUNK_BYTES else self._small).put(message)
        # Through the queue even if it was empty, so that small values keep their order.
        while self._small and self._channel is not None and self._post(self._channel, self._small.first):
            self._small.take()
        if self._small or self._large:
            self._wake()

    def _wake(self) -> None:
        if self._awake is not None and not self._awake.done():
            self._awake.set_result(None)

    async def _sleep(self) -> None:
        # No await lies between the caller's check of the queues and this line, so no wake-up is lost.
        self._awake = self._loop.create_future()
        await self._awake

    async def run(self) -> None:
        """Send values forever: connect whenever a value is queued."""
        while True:
            if not self._small and not self._large:
                await self._sleep()
            try:
                async with self._reach(self._task) as channel:
                    await self._serve(channel)
                    self._fail_sent(channel.error)
            except OpError as error:
                self._fail_all(error)

    def _fail_all(self, error: OpError) -> None:
        for queue in (self._small, self._large):
            while queue:
                queue.take().fail(error)

    def _fail_sent(self, reason: OpError | None) -> None:
        """Fail the unconfirmed values: it is unknown which of them arrived before the connection ended."""
        sent, self._sent = self._sent, []
        why = "" if reason is None else f": {reason.message}"
        for edge, fail in sent:
            fail(UnavailableError(f"the connection by which {edge} was sent to {self._task} was lost{why}"))

    async def _serve(self, channel: Channel) -> None:
        """Send values until the connection ends."""
        self._channel = channel
        try:
            await self._send_all(channel)
        finally:
            self._channel = None

    async def _send_all(self, channel: Channel) -> None:
        async with asyncio.TaskGroup() as push_group:
            push_group.create_task(self._watch(channel))
            confirming = push_group.create_task(self._confirm(channel)) if self._confirms else None
            while channel.error is None:
                # Small values first, as long as there are any: they overtake large ones.
                while self._small and channel.error is None:
                    await self._send(channel, self._small.take())
                while self._large and self._in_flight < _IN_FLIGHT and channel.error is None:
                    message = self._large.take()
                    self._in_flight += _size(message.value)
                    push_group.create_task(self._send_large(channel, message))
                # Large values may be left: `_send_large` wakes this loop when fewer bytes are in flight.
                if not self._small and channel.error is None:
                    await self._sleep()
            if confirming is not None:
                # `_watch` has ended with the channel, but `_confirm` may wait for further values, and the group for it.
                confirming.cancel()

    async def _watch(self, channel: Channel) -> None:
        await channel.wait_ended()
        self._wake()

    async def _confirm(self, channel: Channel) -> None:
        """Remove values from `_sent` once the peer has confirmed their arrival."""
        while True:
            await self._has_sent.wait()
            # Values sent meanwhile are confirmed by the same request.
            await asyncio.sleep(_ASK_SECONDS)
            # The answer confirms only the values that were sent before the request.
            count = len(self._sent)
            await self._ask(channel)
            if channel.error is None:
                del self._sent[:count]
                if not self._sent:
                    self._has_sent.clear()

    async def _ask(self, channel: Channel) -> None:
        """Wait until the peer answers, which implies that all earlier values arrived, or the connection ends."""
        with suppress(OpError):
            await channel.call(CLOCK, timeout=None)  # no timeout: the call fails when the connection ends

    async def _send_large(self, channel: Channel, message: ValueMessage) -> None:
        try:
            await self._send(channel, message)
        finally:
            self._in_flight -= _size(message.value)
            self._wake()

    def _post(self, channel: Channel, message: ValueMessage) -> bool:
        """Send a small value if no waiting is needed. Return True if the value was sent or has failed."""
        if not _is_meant(channel, message):
            return False
        try:
            done = channel.post(*_contents(message))
        except Exception as error:
            _fail(message, error)
            return True
        if done:
            self._has_gone(message)
        return done

    async def _send(self, channel: Channel, message: ValueMessage) -> None:
        if not _is_meant(channel, message):
            await self._misaddressed(channel, message)
            return
        try:
            await channel.push_packed(*_contents(message))
        except asyncio.CancelledError:
            self._sent.append((message.edge, message.fail))  # never confirmed: `is_empty` stays False
            raise
        except Exception as error:
            _fail(message, error)
        else:
            self._has_gone(message)

    def _has_gone(self, message: ValueMessage) -> None:
        if self._confirms:
            self._sent.append((message.edge, message.fail))
            self._has_sent.set()

    async def _misaddressed(self, channel: Channel, message: ValueMessage) -> None:
        """Fail or requeue a value that was planned for another incarnation than the connected one.

        One of the two processes no longer exists. If the connected one answers, the value's receiver is gone. If the
        connection ends instead, the value waits for the next one.
        """
        await self._ask(channel)
        if channel.error is None:
            message.fail(AbortedError(f"{self._task} was restarted since the step was planned"))
        else:
            self.put(message)  # for the next connection


def _fail(message: ValueMessage, error: Exception) -> None:
    known = error if isinstance(error, OpError) else UnknownError(f"{type(error).__name__}: {error}")
    if not isinstance(known, (UnavailableError, AbortedError)):  # these name the task
        known.message = f"the value of {message.edge} cannot be sent to {message.task}: {known.message}"
    message.fail(known)


def _goes_with_its_step(message: ValueMessage) -> bool:
    """Send a value over the connection of its step, if there is one. Return False if the outbox must send it.

    The step ends with that connection, so the value needs no confirmation.
    """
    channel = None if message.connection is None else message.connection(message.task)
    if channel is None or channel.error is not None or not _is_meant(channel, message):
        return False
    try:
        return _size(message.value) <= CHUNK_BYTES and channel.post(*_contents(message))
    except Exception as error:
        _fail(message, error)
        return True


def _is_meant(channel: Channel, message: ValueMessage) -> bool:
    return message.incarnation in (0, channel.comm.peer_incarnation)


def _contents(message: ValueMessage) -> tuple[Packed, tuple[Value, ...], int]:
    dead = message.value is DEAD
    return _document(message.edge, message.tag, dead), () if dead else (to_wire_value(message.value),), message.step


@lru_cache(_REMEMBERED)
def _document(edge: str, tag: str, dead: bool) -> Packed:
    return packed(DELIVER, Deliver(edge, tag, dead)._asdict())


def _size(value: Value) -> int:
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        return CHUNK_BYTES + 1  # measuring strings takes as long as sending them
    return int(getattr(value, "nbytes", 0))
