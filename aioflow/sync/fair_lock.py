"""Turns: a lock for coroutines of any number of event loops, in the order in which they asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aioflow.sync.waiting import Ticket, Waiting, wake_all

__all__ = ["Turns"]


class Turns:
    """One holder at a time. `taking` is the way to use it; the rest is the state machine below."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._guard = threading.Lock()
        self._taken = False
        self._line: deque[Ticket] = deque()

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        """Wait for the turn, and hold it inside."""
        await Waiting(self.ask, self.withdraw, Ticket, self.describe)
        try:
            yield
        finally:
            wake_all(self.leave())

    def ask(self, ticket: Ticket) -> list[Ticket]:
        """Get in line; settles the ticket at once where nobody holds the turn."""
        with self._guard:
            if self._taken:
                self._line.append(ticket)
                return []
            self._taken = True
            ticket.settle()
            return [ticket]

    def try_enter(self) -> bool:
        """Take the turn if nobody holds it; whether that went. Then `leave` it."""
        with self._guard:
            free = not self._taken
            self._taken = True
            return free

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Leave the line, or give up a turn that has come already."""
        with self._guard:
            if not ticket.settled:
                self._line.remove(ticket)
                return []
        return self.leave()

    def leave(self) -> list[Ticket]:
        """Hand the turn on."""
        with self._guard:
            if not self._line:
                self._taken = False
                return []
            following = self._line.popleft()
            following.settle()
            return [following]

    def describe(self) -> str:
        """The state in words, for reports."""
        return f"{self.name} (busy; waiting: {len(self._line)})"
