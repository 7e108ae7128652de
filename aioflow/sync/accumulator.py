"""A gradient accumulator as a plain state machine: the sum, the check for stale gradients, and the waiting takers."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from aioflow.errors import CancelledError, InvalidArgumentError
from aioflow.memory.values import Value
from aioflow.sync.waiting import Ticket


class SumRequest(Ticket):
    """A request for the sum of `required` gradients. `value` is the sum and the actual number of gradients."""

    __slots__ = ("number", "required", "step")

    def __init__(self, required: int, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.required = required
        self.step = 0  # step of the accumulator at the time of the take
        self.number = 0  # ordinal of the take


class AccumulatorCore:
    """A sum of gradients, with takers that wait for enough of them. Thread-safe.

    Args:
        name: Name in messages.
        add: Returns the sum of two sums. Raises InvalidArgumentError if they are incompatible.
        only_first: Whether to keep only the first gradient of a step and drop the others.

    Attributes:
        name: Name in messages.
        step: Gradients of earlier steps are stale, and dropped. Each take advances it.
        count: Number of gradients added since the last take.
        closed: Whether takes are refused until a restart.
        limit: Maximum number of gradients that a take waits for, whatever it requires; None for no limit.
    """

    def __init__(self, name: str, add: Callable[[Any, Any], Value], only_first: bool = False) -> None:
        self.name = name
        self._only_first = only_first
        self._add = add
        self.step = 0
        self.count = 0
        self.closed = False
        self.limit: int | None = None
        self._taken = 0  # number of takes and restarts
        self._undone = 0  # last of the steps that a restart has undone
        self._sum: Any = None
        self._takers: deque[SumRequest] = deque()
        self._lock = threading.Lock()

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        wanted = self._wanted(self._takers[0]) if self._takers else 0
        return f"accumulator {self.name!r} ({self.count} of {wanted} gradients, step {self.step})"

    def apply(self, step: int, gradient: Value) -> list[Ticket]:
        """Add a gradient and return the resolved tickets.

        The gradient is dropped if it is stale, if its step was undone, or if `only_first` is set and the step has one.
        Raises InvalidArgumentError if it is incompatible with the sum.
        """
        with self._lock:
            if step < self.step or self.step < step <= self._undone or (self.count and self._only_first):
                return []
            self._sum = gradient if self._sum is None else self._add(self._sum, gradient)
            self.count += 1
            return self._flush()

    def set_step(self, step: int) -> None:
        """Advance to a later step. Earlier steps are ignored."""
        with self._lock:
            self.step = max(self.step, step)

    def go_back(self, step: int) -> None:
        """Accept gradients of `step` again. For use when the take that ended this step has changed nothing."""
        with self._lock:
            self.step = min(self.step, step)

    def set_limit(self, limit: int) -> list[Ticket]:
        """Limit the gradients that takes wait for, until a restart or another limit. Return the resolved tickets."""
        with self._lock:
            self.limit = limit
            return self._flush()

    def restart(self, step: int) -> None:
        """Reopen at a step, without a limit. An earlier step drops the sum, and later gradients of the undone steps."""
        with self._lock:
            self.closed = False
            self.limit = None
            # Counts as a take, so that a take of before the restart does not put its sum back.
            self._taken += 1
            # Workers may still send gradients of the undone steps, computed from variables that were since restored.
            if step < self.step:
                self._undone = max(self._undone, self.step)
                self._sum, self.count = None, 0
            self.step = step

    def close(self) -> list[Ticket]:
        """Fail waiting and future takes with CancelledError until a restart. Return the resolved tickets."""
        with self._lock:
            self.closed = True
            # Copied before the clear, since the caller wakes these tickets after the lock is released.
            refused: list[Ticket] = list(self._takers)
            self._takers.clear()
            for ticket in refused:
                ticket.resolve(error=self._closed_error())
            return refused

    def submit(self, ticket: SumRequest) -> list[Ticket]:
        """Queue a take. Return all tickets that this resolves."""
        with self._lock:
            if self.closed:
                ticket.resolve(error=self._closed_error())
                return [ticket]
            self._takers.append(ticket)
            return self._flush()

    def _closed_error(self) -> CancelledError:
        return CancelledError(f"accumulator {self.name!r} is closed", expected="a restart", actual="closed")

    def withdraw(self, ticket: SumRequest) -> list[Ticket]:
        """Remove a take from the queue, or put its sum back. Return the tickets that this resolves.

        A sum is put back if it was not delivered and no later sum has been taken. Gradients that have arrived since are
        added if they are compatible.
        """
        with self._lock:
            if not ticket.resolved:
                self._takers.remove(ticket)
            elif ticket.error is None:
                self._put_back(ticket)
            return self._flush()

    def _put_back(self, ticket: SumRequest) -> None:
        if ticket.number != self._taken:
            return  # the next sum has been taken since, so these gradients are stale
        total, count = ticket.value
        # Gradients that were added since stay, even if the sum cannot be joined to them.
        if self._sum is not None:
            if not self._only_first:
                with contextlib.suppress(InvalidArgumentError):
                    self._sum = self._add(total, self._sum)
                    self.count += count
            return
        self._sum, self.count = total, count
        # The take advanced the step by one. If nothing else did, gradients of its step count as fresh again.
        if self.step == ticket.step + 1:
            self.step = ticket.step

    def _wanted(self, ticket: SumRequest) -> int:
        return ticket.required if self.limit is None else min(ticket.required, self.limit)

    def _flush(self) -> list[Ticket]:
        resolved: list[Ticket] = []
        # At least one gradient, even if the limit is 0: without gradients there is no sum to return.
        while self._takers and self.count and self.count >= self._wanted(self._takers[0]):
            ticket = self._takers.popleft()
            ticket.resolve((self._sum, self.count))
            self._taken += 1
            # Recorded before the step advances, for `_put_back`.
            ticket.step, ticket.number = self.step, self._taken
            self._sum, self.count = None, 0
            self.step += 1
            resolved.append(ticket)
        return resolved
