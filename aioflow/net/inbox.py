"""Messages that have arrived and wait to be received; says when there are too many of them, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aioflow.errors import FailedPreconditionError, OpError
from aioflow.net.comm import gone
from aioflow.net.framing import Message

__all__ = ["Inbox"]


class Inbox:
    """The receiving half of a comm.

    Args:
        room: Bytes beyond which it is `full`.
        on_room: Called when it was full and half of it is free again.
    """

    __slots__ = ("_error", "_finished", "_on_room", "_queue", "_room", "_unread", "_waiter", "full")

    def __init__(self, room: int, on_room: Callable[[], None]) -> None:
        self._room = room
        self._on_room = on_room
        self._queue: deque[tuple[Message, int]] = deque()
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self._error: OpError | None = None
        self.full = False

    def put(self, message: Message, size: int) -> None:
        """A message has arrived that counts for `size` bytes."""
        if self._finished:
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

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self, peer: str) -> Message | None:
        """The next message; None at the end. Raises what it ended with."""
        if self._waiter is not None:
            raise FailedPreconditionError(f"two tasks receive from {peer}", expected="one at a time", actual="two")
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
        message, size = self._queue.popleft()
        self._unread -= size
        if self.full and self._unread <= self._room // 2:
            self.full = False
            self._on_room()
        return message
