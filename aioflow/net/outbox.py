"""Values on their way to the workers of other tasks: pushed as soon as they exist, one connection per task.

A Send never waits, so values queue here. How many bytes of large values are handed to a connection at a time is
bounded, others overtake them, and a value that cannot be delivered stops its step with an error that names
the peer.

What was written to a connection may be lost with it, and the part that has sent it has ended by then. So a value counts
as sent until the peer has answered a question that was asked after it: a few questions a second, however many values.
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
from typing import Any, Final, Self, TypeAlias

from aioflow.errors import AbortedError, OpError, ResourceExhaustedError, UnavailableError, UnknownError
from aioflow.net.channel import Channel, packed
from aioflow.net.frame_header import Packed
from aioflow.net.framing import CHUNK_BYTES
from aioflow.net.limits import DEFAULT_LIMITS
from aioflow.net.messages import CLOCK, DELIVER, Deliver, to_wire_value
from aioflow.runtime.frames import DEAD

__all__ = ["Outbox", "Parcel", "Reach"]

_IN_FLIGHT: Final = 64 << 20  # bytes
_ASK_SECONDS: Final = 0.2  # between questions whether values have arrived
_REMEMBERED: Final = 1024  # headers

Reach: TypeAlias = Callable[[str], AbstractAsyncContextManager[Channel]]


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A value for a step at another task.

    Attributes:
        task: Which task; incarnation: the number that its process had when the step was planned, 0 for any.
        fail: Called on the outbox's event loop if the value cannot be delivered, or may not have been.
        connection: Finds the one that the client of the step has to the task, if the client is on this loop, too.
    """

    task: str
    incarnation: int
    step: int
    edge: str
    tag: str
    value: Any
    fail: Callable[[OpError], None]
    connection: Callable[[str], Channel | None] | None = None


class Outbox:
    """What leaves one worker for others. Use it as `async with`; what is in it at the end is dropped.

    Args:
        reach: Opens a channel to a task by its name, for the time of a block.
        confirms: Whether a value that was lost with its connection is to stop its step. It need not where the step
            depends on that connection in any case.
        most: Bytes of values that wait for one task. A value beyond that stops its step: the task does not read.
    """

    def __init__(self, reach: Reach, *, confirms: bool = False, most: int = DEFAULT_LIMITS.unsent_bytes) -> None:
        self._reach = reach
        self._most = most
        self._confirms = confirms
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._group = asyncio.TaskGroup()  # no task in it ever raises
        self._lanes: dict[str, _Lane] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def push(self, parcel: Parcel) -> None:
        """Send a value, from any thread; returns at once."""
        if threading.get_ident() == self._home:
            self._put(parcel)
        else:
            self._loop.call_soon_threadsafe(self._put, parcel)

    def _put(self, parcel: Parcel) -> None:
        if _goes_with_its_step(parcel):
            return
        lane = self._lanes.get(parcel.task)
        if lane is None:
            if self._closed:
                parcel.fail(UnavailableError("the server is closed"))
                return
            lane = self._lanes[parcel.task] = _Lane(parcel.task, self._reach, self._confirms, self._most)
            self._tasks.append(self._group.create_task(lane.run()))
        lane.put(parcel)

    @property
    def is_empty(self) -> bool:
        """Whether all that was put in has arrived; if nothing is confirmed, whether it is on its way."""
        return all(lane.is_empty for lane in self._lanes.values())

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
    """Values that wait, and their bytes."""

    __slots__ = ("_parcels", "bytes")

    def __init__(self) -> None:
        self._parcels: deque[Parcel] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parcels)

    @property
    def first(self) -> Parcel:
        return self._parcels[0]

    def put(self, parcel: Parcel) -> None:
        """One more."""
        self._parcels.append(parcel)
        self.bytes += _size(parcel.value)

    def take(self) -> Parcel:
        """The first one."""
        parcel = self._parcels.popleft()
        self.bytes -= _size(parcel.value)
        return parcel


def _unread(most: int, actual: int) -> ResourceExhaustedError:
    return ResourceExhaustedError("bytes of values that wait to be read", expected=f"at most {most}", actual=actual)


class _Lane:
    """What goes to one task."""

    def __init__(self, task: str, reach: Reach, confirms: bool, most: int) -> None:
        self._task = task
        self._most = most
        self._reach = reach
        self._confirms = confirms
        self._small, self._large = _Queue(), _Queue()
        self._in_flight = 0
        self._awake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None  # while there is one
        self._sent: list[tuple[str, Callable[[OpError], None]]] = []  # edges that may not have arrived; whom to tell
        self._has_sent = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """As of `Outbox`."""
        return not (self._small or self._large or self._in_flight or self._sent)

    def put(self, parcel: Parcel) -> None:
        """One more."""
        size = _size(parcel.value)
        waiting = self._small.bytes + self._large.bytes + size
        if waiting > self._most and (self._small or self._large):
            _fail(parcel, _unread(self._most, waiting))
            return
        (self._large if size > CHUNK_BYTES else self._small).put(parcel)
        while self._small and self._channel is not None and self._post(self._channel, self._small.first):
            self._small.take()
        if self._small or self._large:
            self._wake()

    def _wake(self) -> None:
        if self._awake is not None and not self._awake.done():
            self._awake.set_result(None)

    async def _sleep(self) -> None:
        self._awake = self._loop.create_future()
        await self._awake

    async def run(self) -> None:
        """Connect when there is something to send, and send."""
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
        """The connection has ended: nobody knows what of the last values has arrived."""
        sent, self._sent = self._sent, []
        why = "" if reason is None else f": {reason.message}"
        for edge, fail in sent:
            fail(UnavailableError(f"the connection by which {edge} was sent to {self._task} was lost{why}"))

    async def _serve(self, channel: Channel) -> None:
        """Send until the connection has ended."""
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
                while self._small and channel.error is None:
                    await self._send(channel, self._small.take())
                while self._large and self._in_flight < _IN_FLIGHT and channel.error is None:
                    parcel = self._large.take()
                    self._in_flight += _size(parcel.value)
                    push_group.create_task(self._send_large(channel, parcel))
                if not self._small and channel.error is None:
                    await self._sleep()
            if confirming is not None:
                confirming.cancel()

    async def _watch(self, channel: Channel) -> None:
        await channel.wait_ended()
        self._wake()

    async def _confirm(self, channel: Channel) -> None:
        """Forget what has arrived."""
        while True:
            await self._has_sent.wait()
            await asyncio.sleep(_ASK_SECONDS)
            count = len(self._sent)
            await self._ask(channel)
            if channel.error is None:
                del self._sent[:count]
                if not self._sent:
                    self._has_sent.clear()

    async def _ask(self, channel: Channel) -> None:
        """Returns when the peer has answered, and so has got all that was sent before, or the connection has ended."""
        with suppress(OpError):
            await channel.call(CLOCK, timeout=None)  # the end of the connection is its end, too

    async def _send_large(self, channel: Channel, parcel: Parcel) -> None:
        try:
            await self._send(channel, parcel)
        finally:
            self._in_flight -= _size(parcel.value)
            self._wake()

    def _post(self, channel: Channel, parcel: Parcel) -> bool:
        """Send a small value if that takes no waiting; returns whether it is done with."""
        if not _is_meant(channel, parcel):
            return False
        try:
            done = channel.post(*_contents(parcel))
        except Exception as error:
            _fail(parcel, error)
            return True
        if done:
            self._has_gone(parcel)
        return done

    async def _send(self, channel: Channel, parcel: Parcel) -> None:
        if not _is_meant(channel, parcel):
            await self._misaddressed(channel, parcel)
            return
        try:
            await channel.push_packed(*_contents(parcel))
        except Exception as error:
            _fail(parcel, error)
        else:
            self._has_gone(parcel)

    def _has_gone(self, parcel: Parcel) -> None:
        if self._confirms:
            self._sent.append((parcel.edge, parcel.fail))
            self._has_sent.set()

    async def _misaddressed(self, channel: Channel, parcel: Parcel) -> None:
        """A value is not for the process at the other end: one of them is there no more. Who answers is there."""
        await self._ask(channel)
        if channel.error is None:
            parcel.fail(AbortedError(f"{self._task} was restarted since the step was planned"))
        else:
            self.put(parcel)  # for the next connection


def _fail(parcel: Parcel, error: Exception) -> None:
    known = error if isinstance(error, OpError) else UnknownError(f"{type(error).__name__}: {error}")
    if not isinstance(known, (UnavailableError, AbortedError)):  # these name the task
        known.message = f"the value of {parcel.edge} cannot be sent to {parcel.task}: {known.message}"
    parcel.fail(known)


def _goes_with_its_step(parcel: Parcel) -> bool:
    """Send a value by the connection by which the step has gone there, and whose end is the end of the step."""
    channel = None if parcel.connection is None else parcel.connection(parcel.task)
    if channel is None or channel.error is not None or not _is_meant(channel, parcel):
        return False
    try:
        return _size(parcel.value) <= CHUNK_BYTES and channel.post(*_contents(parcel))
    except Exception as error:
        _fail(parcel, error)
        return True


def _is_meant(channel: Channel, parcel: Parcel) -> bool:
    return parcel.incarnation in (0, channel.comm.peer_incarnation)


def _contents(parcel: Parcel) -> tuple[Packed, tuple[Any, ...], int]:
    dead = parcel.value is DEAD
    return _document(parcel.edge, parcel.tag, dead), () if dead else (to_wire_value(parcel.value),), parcel.step


@lru_cache(_REMEMBERED)
def _document(edge: str, tag: str, dead: bool) -> Packed:
    return packed(DELIVER, Deliver(edge, tag, dead)._asdict())


def _size(value: Any) -> int:
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        return CHUNK_BYTES + 1  # to tell how long strings are takes as long as to send them
    return int(getattr(value, "nbytes", 0))
