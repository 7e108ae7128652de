"""A staging area as a plain state machine: a FIFO of elements, limited in number and bytes, that can be inspected."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aioflow.errors import ResourceExhaustedError
from aioflow.sync.waiting import Ticket


class Put(Ticket):
    """A request to put one element of `size` bytes in."""

    __slots__ = ("element", "size")

    stays = True

    def __init__(self, element: Any, size: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.element = element
        self.size = size


class Get(Ticket):
    """A request for the first element. `value` is the `Put` that brought it."""

    __slots__ = ()


class Peek(Ticket):
    """A request for the element at `index`, as in `Get`, that leaves it in place."""

    __slots__ = ("index",)

    def __init__(self, index: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.index = index


class StagingCore:
    """A FIFO that also serves peeks. Thread-safe. Puts and gets are served in order, peeks at once.

    Attributes:
        name: Name in messages.
        capacity, memory_limit: Elements and bytes beyond which puts wait; 0 for no limit. An element put back by a
            withdrawn get may exceed them.
    """

    def __init__(self, name: str, capacity: int, memory_limit: int) -> None:
        self.name = name
        self.capacity = capacity
        self.memory_limit = memory_limit
        self._inside: deque[Put] = deque()
        self._bytes = 0
        self._puts: deque[Put] = deque()
        self._gets: deque[Ticket] = deque()
        self._peeks: list[Peek] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._inside)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        waiting = f"{len(self._puts)} putting, {len(self._gets)} getting, {len(self._peeks)} peeking"
        return f"staging area {self.name!r} (size {len(self._inside)}, {self._bytes} bytes; waiting: {waiting})"

    def submit(self, ticket: Ticket) -> list[Ticket]:
        """Queue a ticket. Return all tickets that this resolves.

        Raises:
            ResourceExhaustedError: the element alone exceeds the memory limit.
        """
        with self._lock:
            if isinstance(ticket, Put):
                self._check_size(ticket.size)
                self._puts.append(ticket)
            elif isinstance(ticket, Peek):
                self._peeks.append(ticket)
            else:
                self._gets.append(ticket)
            return self._flush()

    def _check_size(self, size: int) -> None:
        # Such a put would wait forever, and all later ones behind it.
        if 0 < self.memory_limit < size:
            raise ResourceExhaustedError(
                f"the element is too large for staging area {self.name!r}",
                expected=f"at most {self.memory_limit} bytes",
                actual=size,
            )

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Remove a ticket from its queue, or put its element back. Return the resolved tickets.

        An element that has been put in stays in.
        """
        with self._lock:
            if isinstance(ticket, Put):
                if not ticket.resolved:
                    self._puts.remove(ticket)
            elif isinstance(ticket, Peek):
                if not ticket.resolved:
                    self._peeks.remove(ticket)
            elif not ticket.resolved:
                self._gets.remove(ticket)
            else:
                # At the front, where it was taken from, even if later puts have filled the room meanwhile.
                self._inside.appendleft(ticket.value)
                self._bytes += ticket.value.size
            return self._flush()

    def clear(self) -> list[Ticket]:
        """Drop the elements, and let waiting puts in. Return the resolved tickets."""
        with self._lock:
            self._inside.clear()
            self._bytes = 0
            return self._flush()

    def _fits(self, put: Put) -> bool:
        if self.capacity and len(self._inside) >= self.capacity:
            return False
        return not self.memory_limit or self._bytes + put.size <= self.memory_limit

    def _flush(self) -> list[Ticket]:
        """Serve all tickets until none makes progress. Peeks are served before gets."""
        resolved: list[Ticket] = []
        moved = True
        # Each get makes room for puts, and each put may serve a peek or a get, hence the loop.
        while moved:
            moved = False
            while self._puts and self._fits(self._puts[0]):
                put = self._puts.popleft()
                self._inside.append(put)
                self._bytes += put.size
                put.resolve()
                resolved.append(put)
            resolved += self._look()
            if self._gets and self._inside:
                get, put = self._gets.popleft(), self._inside.popleft()
                self._bytes -= put.size
                get.resolve(put)
                resolved.append(get)
                moved = True
        return resolved

    def _look(self) -> list[Ticket]:
        seen: list[Ticket] = []
        # A copy, since served peeks leave the list meanwhile.
        for peek in [p for p in self._peeks if p.index < len(self._inside)]:
            self._peeks.remove(peek)
            peek.resolve(self._inside[peek.index])
            seen.append(peek)
        return seen
