"""The exchange between the steps of one batch, as plain state machines: splitting its results and merging gradients.

One of the steps carries the batch. Each step has a number. Values that arrive before their step asks for them are kept
for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from aioflow.memory.values import Value
from aioflow.sync.waiting import Ticket

_GRADIENT_SECONDS: Final = 600.0  # for which an uncollected gradient is kept


class Share(Ticket):
    """A step's request for its own share of the results."""

    __slots__ = ("number",)

    def __init__(self, number: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.number = number


class Collecting(Ticket):
    """A step's request for the values of several steps; `value` is the list of them, in the order of `numbers`.

    Attributes:
        missing: The steps whose values have not arrived.
        found: The other values, by step number.
    """

    __slots__ = ("found", "missing", "numbers")

    def __init__(self, numbers: tuple[int, ...], wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.numbers = numbers
        self.missing = set(numbers)
        self.found: dict[int, Value] = {}


class _Kept:
    """Values by step number, with their times of arrival."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._things: dict[int, tuple[float, Value]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._things

    def __len__(self) -> int:
        return len(self._things)

    def put(self, number: int, thing: Value, now: float) -> None:
        """Store a value, and drop those that are too old."""
        # Removed first, so that the dict stays ordered by time.
        self._things.pop(number, None)
        self._things[number] = (now, thing)
        while self._things:
            # Times do not decrease, so the first entry is the oldest, and the loop ends at the first fresh one.
            oldest = next(iter(self._things))
            if self._things[oldest][0] + self._seconds >= now:
                return
            del self._things[oldest]

    def take(self, number: int) -> Value:
        return self._things.pop(number)[1]


class ShareCore:
    """The shares that carriers distribute to the other steps. Thread-safe.

    Args:
        name: Name in messages.
        seconds: Time for which an uncollected share is kept.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._waiting: dict[int, Share] = {}
        self._kept = _Kept(seconds)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        return f"unbatching {self.name!r} ({len(self._waiting)} waiting; kept for {len(self._kept)} others)"

    def bring(self, shares: Mapping[int, Value], now: float) -> list[Ticket]:
        """Distribute the shares of a carrier. Return the resolved tickets."""
        resolved: list[Ticket] = []
        with self._lock:
            for number, share in shares.items():
                ticket = self._waiting.pop(number, None)
                if ticket is None:
                    self._kept.put(number, share, now)
                else:
                    ticket.resolve(share)
                    resolved.append(ticket)
        return resolved

    def submit(self, ticket: Share) -> list[Ticket]:
        """Wait for a share. Return the ticket if the share is there already."""
        with self._lock:
            if ticket.number not in self._kept:
                self._waiting[ticket.number] = ticket
                return []
            ticket.resolve(self._kept.take(ticket.number))
            return [ticket]

    def withdraw(self, ticket: Share) -> list[Ticket]:
        """Stop waiting."""
        with self._lock:
            # A later ticket with the same number may have replaced this one.
            if self._waiting.get(ticket.number) is ticket:
                del self._waiting[ticket.number]
        return []


class CollectCore:
    """The values that carriers collect from the other steps. Thread-safe.

    Args:
        name: Name in messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._collecting: list[Collecting] = []
        self._kept = _Kept(_GRADIENT_SECONDS)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        missing = sum(len(ticket.missing) for ticket in self._collecting)
        return f"gradients of batches {self.name!r} ({len(self._collecting)} waiting for {missing} steps)"

    def bring(self, number: int, thing: Value, now: float) -> list[Ticket]:
        """Store the value of one step. Return the resolved tickets."""
        with self._lock:
            # A value that a step waits for is in its ticket, where it does not expire.
            wanting = [ticket for ticket in self._collecting if number in ticket.missing]
            for ticket in wanting:
                ticket.missing.remove(number)
                ticket.found[number] = thing
            if not wanting:
                self._kept.put(number, thing, now)
            return self._complete()

    def submit(self, ticket: Collecting) -> list[Ticket]:
        """Wait for the values. Return the ticket if all are there already."""
        with self._lock:
            ticket.found = {number: self._kept.take(number) for number in ticket.missing if number in self._kept}
            ticket.missing.difference_update(ticket.found)
            self._collecting.append(ticket)
            return self._complete()

    def withdraw(self, ticket: Collecting) -> list[Ticket]:
        """Stop waiting."""
        with self._lock:
            # A resolved ticket has left the list already.
            if ticket in self._collecting:
                self._collecting.remove(ticket)
        return []

    def _complete(self) -> list[Ticket]:
        resolved: list[Ticket] = []
        # A copy, since complete tickets leave the list in the loop.
        for ticket in [each for each in self._collecting if not each.missing]:
            ticket.resolve([ticket.found[number] for number in ticket.numbers])
            self._collecting.remove(ticket)
            resolved.append(ticket)
        return resolved
