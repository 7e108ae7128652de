"""A gradient accumulator as a plain state machine: what is added, what is stale, and who waits for enough of it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aioflow.errors import CancelledError, InvalidArgumentError
from aioflow.sync.waiting import Ticket

__all__ = ["AccumulatorCore", "Take"]


class Take(Ticket):
    """Take what has been accumulated when `required` gradients are in. `value` is the sum and their number."""

    __slots__ = ("number", "required", "step")

    def __init__(self, required: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.required = required
        self.step = 0  # of the accumulator, when it was taken
        self.number = 0  # of the take


class AccumulatorCore:
    """Adds up gradients until somebody takes them. Methods may be called from any thread.

    Args:
        add: The sum of two sums. It raises InvalidArgumentError where they do not fit together.
        only_first: Keep the first gradient of a step and drop the others.

    Attributes:
        name: For messages.
        step: Gradients of an earlier step than this are stale, and dropped. Each take advances it.
        count: How many gradients have been added since the last take.
        closed: Whether nobody may take anything until it is restarted.
        limit: No take waits for more gradients than this, whatever it asks for; None for no limit.
    """

    def __init__(self, name: str, add: Callable[[Any, Any], Any], only_first: bool = False) -> None:
        self.name = name
        self._only_first = only_first
        self._add = add
        self.step = 0
        self.count = 0
        self.closed = False
        self.limit: int | None = None
        self._taken = 0  # how many takes and restarts there have been
        self._undone = 0  # steps after `step` up to this one have been gone back from
        self._sum: Any = None
        self._takers: deque[Take] = deque()
        self._lock = threading.Lock()

    def describe(self) -> str:
        """The state in words, for reports."""
        wanted = self._wanted(self._takers[0]) if self._takers else 0
        return f"accumulator {self.name!r} ({self.count} of {wanted} gradients, step {self.step})"

    def apply(self, step: int, gradient: Any) -> list[Ticket]:
        """Add a gradient, if it is neither stale nor of a step that has been undone."""
        with self._lock:
            if step < self.step or self.step < step <= self._undone or (self.count and self._only_first):
                return []
            self._sum = gradient if self._sum is None else self._add(self._sum, gradient)
            self.count += 1
            return self._flush()

    def set_step(self, step: int) -> None:
        """Go on to a later step. It never goes back."""
        with self._lock:
            self.step = max(self.step, step)

    def go_back(self, step: int) -> None:
        """Have gradients of `step` count again, if what was taken of it has changed nothing."""
        with self._lock:
            self.step = min(self.step, step)

    def set_limit(self, limit: int) -> list[Ticket]:
        """Have nobody wait for more gradients than this, until a restart or another limit."""
        with self._lock:
            self.limit = limit
            return self._flush()

    def restart(self, step: int) -> None:
        """Go on from a step, without a limit. If it is an earlier one, what is in is dropped, and what comes of undone
        steps.
        """
        with self._lock:
            self.closed = False
            self.limit = None
            self._taken += 1
            if step < self.step:
                self._undone = max(self._undone, self.step)
                self._sum, self.count = None, 0
            self.step = step

    def close(self) -> list[Ticket]:
        """Nobody gets anything any more: those who wait fail with CancelledError, and so do those who come."""
        with self._lock:
            self.closed = True
            refused: list[Ticket] = list(self._takers)
            self._takers.clear()
            for ticket in refused:
                ticket.settle(error=self._closed_error())
            return refused

    def submit(self, ticket: Take) -> list[Ticket]:
        """Get in line for the sum; returns every ticket that this settles."""
        with self._lock:
            if self.closed:
                ticket.settle(error=self._closed_error())
                return [ticket]
            self._takers.append(ticket)
            return self._flush()

    def _closed_error(self) -> CancelledError:
        return CancelledError(f"accumulator {self.name!r} is closed", expected="a restart", actual="closed")

    def withdraw(self, ticket: Take) -> list[Ticket]:
        """Leave the line. A sum that was not delivered is put back, with the gradients that have come since if they
        fit, unless a later sum has been taken.
        """
        with self._lock:
            if not ticket.settled:
                self._takers.remove(ticket)
            elif ticket.error is None:
                self._put_back(ticket)
            return self._flush()

    def _put_back(self, ticket: Take) -> None:
        if ticket.number != self._taken:
            return  # somebody has taken the next sum since, and these gradients are stale
        total, count = ticket.value
        if self._sum is not None:
            if not self._only_first:
                with contextlib.suppress(InvalidArgumentError):
                    self._sum = self._add(total, self._sum)
                    self.count += count
            return
        self._sum, self.count = total, count
        if self.step == ticket.step + 1:
            self.step = ticket.step

    def _wanted(self, ticket: Take) -> int:
        return ticket.required if self.limit is None else min(ticket.required, self.limit)

    def _flush(self) -> list[Ticket]:
        settled: list[Ticket] = []
        while self._takers and self.count and self.count >= self._wanted(self._takers[0]):
            ticket = self._takers.popleft()
            ticket.settle((self._sum, self.count))
            self._taken += 1
            ticket.step, ticket.number = self.step, self._taken
            self._sum, self.count = None, 0
            self.step += 1
            settled.append(ticket)
        return settled
