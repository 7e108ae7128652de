"""The queue of received messages of a comm, which are either queued for `receive` or dispatched to a callback.

Signals when too many are queued, and records how the connection ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from aioflow.errors import FailedPreconditionError, OpError
from aioflow.net.comm import gone
from aioflow.net.framing import WireMessage

OnMessage: TypeAlias = Callable[[WireMessage], None]
OnEnd: TypeAlias = Callable[[OpError | None], None]


@runtime_checkable
class Dispatching(Protocol):
    """A comm that can dispatch messages on arrival, without waking a receiving task."""

    def dispatch(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Dispatch every message from now on, queued ones first. `receive` must not be called any more.

        Args:
            on_message: Receives each message; it must neither raise nor take long.
            on_end: Called once after the last message, with the error that `receive` would raise, or None after a
                graceful close.

        Raises:
            FailedPreconditionError: a task is receiving.
        """


class Inbox:
    """The receiving half of a comm.

    Args:
        room: Number of unread bytes above which the inbox is `full`.
        on_room: Called when a full inbox has drained to half of `room`.
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
        self._queue: deque[tuple[WireMessage, int]] = deque()
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._finished = False
        self._error: OpError | None = None
        self._on_message: OnMessage | None = None
        self._on_end: OnEnd | None = None
        self.full = False

    def put(self, message: WireMessage, size: int) -> None:
        """Queue or dispatch a message that counts for `size` bytes."""
        if self._finished:
            return
        if self._on_message is not None:
            # Dispatched messages do not count as unread: they leave at once, so `full` never becomes true.
            self._on_message(message)
            return
        self._queue.append((message, size))
        self._unread += size
        # Stays full until half is free, so that reading does not stop and start with every message.
        self.full = self.full or self._unread > self._room
        self._wake()

    def finish(self, error: OpError | None) -> None:
        """Record that the connection has ended, with an error or gracefully. Queued messages can still be received."""
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
        """Dispatch every message from now on; see `Dispatching.dispatch`."""
        self._require_unused(peer)
        while self._queue:
            on_message(self._pop())
        if self._finished:  # earlier, or by a message that was just dispatched
            on_end(self._error)
        else:
            self._on_message, self._on_end = on_message, on_end

    def _require_unused(self, peer: str) -> None:
        if self._waiter is not None or self._on_message is not None:
            raise FailedPreconditionError(f"two tasks receive from {peer}", expected="one at a time", actual="two")

    async def receive(self, peer: str) -> WireMessage | None:
        """Return the next message, or None after a graceful close.

        Raises:
            OpError: the connection has ended with this error.
            FailedPreconditionError: another task is receiving.
        """
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

    def _pop(self) -> WireMessage:
        message, size = self._queue.popleft()
        self._unread -= size
        if self.full and self._unread <= self._room // 2:
            self.full = False
            self._on_room()
        return message
