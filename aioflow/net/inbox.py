"""Messages that have arrived: they wait to be received, or go straight to whoever takes them.

Says when too many of them wait, and how it ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from aioflow.errors import FailedPreconditionError, OpError
from aioflow.net.comm import gone
from aioflow.net.framing import Message

__all__ = ["Dispatching", "Inbox", "OnEnd", "OnMessage"]

OnMessage: TypeAlias = Callable[[Message], None]
OnEnd: TypeAlias = Callable[[OpError | None], None]


@runtime_checkable
class Dispatching(Protocol):
    """A comm that can hand messages over in the moment when they arrive, without waking a task that receives."""

    def dispatch(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Hand over every message from now on, those that wait first; nobody may receive any more.

        Args:
            on_message: Gets each message; it must neither raise nor take long.
            on_end: Called once, after the last message: with what `receive` would raise, or None after a goodbye.

        Raises:
            FailedPreconditionError: a task is receiving.
        """


class Inbox:
    """The receiving half of a comm.

    Args:
        room: Bytes beyond which it is `full`.
        on_room: Called when it was full and half of it is free again.
    """

    __slots__ = (
        "_error",
        "_finished",
        "_on_end",
        "_on_message",
        "_on_room",
        "_queue",
        "_room",
        "_unread",
        "_waiter",
        "full",
    )

    def __init__(self, room: int, on_room: Callable[[], None]) -> None:
        self._room = room
        self._on_room = on_room
        self._queue: deque[tuple[Message, int]] = deque()
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self._error: OpError | None = None
        self._on_message: OnMessage | None = None
        self._on_end: OnEnd | None = None
        self.full = False

    def put(self, message: Message, size: int) -> None:
        """A message has arrived that counts for `size` bytes."""
        if self._finished:
            return
        if self._on_message is not None:
            self._on_message(message)
            return
        self._queue.append((message, size))
        self._unread += size
        self.full = self.full or self._unread > self._room
        self._wake()

    def finish(self, error: OpError | None) -> None:
        """Nothing more will come: the peer has closed, or what went wrong. What has arrived can still be received."""
        if not self._finished:
            self._finished, self._error = True, error
            self._wake()
            on_end, self._on_message, self._on_end = self._on_end, None, None
            if on_end is not None:
                on_end(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def dispatch(self, peer: str, on_message: OnMessage, on_end: OnEnd) -> None:
        """As `Dispatching.dispatch`."""
        self._require_unused(peer)
        while self._queue:
            on_message(self._pop())
        if self._finished:  # before, or by what was just handed over
            on_end(self._error)
        else:
            self._on_message, self._on_end = on_message, on_end

    def _require_unused(self, peer: str) -> None:
        if self._waiter is not None or self._on_message is not None:
            raise FailedPreconditionError(f"two tasks receive from {peer}", expected="one at a time", actual="two")

    async def receive(self, peer: str) -> Message | None:
        """The next message; None at the end. Raises what it ended with."""
        self._require_unused(peer)
        while not self._queue:
            if self._finished:
                if self._error is None:
                    return None
                raise gone(peer, self._error)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pop()

    def _pop(self) -> Message:
        message, size = self._queue.popleft()
        self._unread -= size
        if self.full and self._unread <= self._room // 2:
            self.full = False
            self._on_room()
        return message
