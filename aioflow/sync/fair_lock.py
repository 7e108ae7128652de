"""A first-in, first-out lock for coroutines on any number of event loops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aioflow.sync.waiting import Ticket, Waiting, wake_all


class FairLock:
    """A fair lock. Use it by `taking`; the other methods are its state machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._guard = threading.Lock()
        self._taken = False
        self._line: deque[Ticket] = deque()

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Hold the lock during a block."""
        await Waiting(self.ask, self.withdraw, Ticket, self.describe)
        try:
            yield
        finally:
            wake_all(self.leave())

    def ask(self, ticket: Ticket) -> list[Ticket]:
        """Queue for the lock; if it is free, resolve the ticket at once. Return the resolved tickets."""
        with self._guard:
            if self._taken:
                self._line.append(ticket)
                return []
            self._taken = True
            ticket.resolve()
            return [ticket]

    def try_enter(self) -> bool:
        """Acquire the lock if it is free, and return whether that succeeded. Release it with `leave`."""
        with self._guard:
            free = not self._taken
            self._taken = True
            return free

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Leave the queue, or release the lock if the ticket already holds it. Return the resolved tickets."""
        with self._guard:
            # The ticket may have been resolved while its waiter was being cancelled: then it holds the lock.
            if not ticket.resolved:
                self._line.remove(ticket)
                return []
        return self.leave()

    def leave(self) -> list[Ticket]:
        """Release the lock to the next ticket. Return the resolved tickets."""
        with self._guard:
            if not self._line:
                self._taken = False
                return []
            # `_taken` stays True: the lock passes on directly, so that a newcomer cannot overtake.
            following = self._line.popleft()
            following.resolve()
            return [following]

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        return f"{self.name} (busy; waiting: {len(self._line)})"
