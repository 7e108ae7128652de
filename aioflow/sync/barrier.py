"""A barrier as a plain state machine: elements whose components arrive one by one, and which leave once complete.

Complete elements are in a queue, at which takers wait. The barrier decides what enters the queue and when it closes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from aioflow.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from aioflow.memory.values import Value
from aioflow.sync.queue import Dequeue, Enqueue, PriorityStore, QueueCore
from aioflow.sync.waiting import Ticket

# As in TensorFlow: the indices of a Barrier begin at the smallest int64.
FIRST_INDEX: Final = -(2**63)
_MISSING: Final[Any] = object()


class BarrierCore:
    """A map from keys to elements of `width` components. Thread-safe.

    An element is a tuple of its index, its key and its components. The index counts the inserts with new keys: all new
    keys of one insert have the same index. Elements leave by index, then in the order in which they became complete.

    Attributes:
        name: Name in messages.
        width: Number of components.
        closed: Whether new keys are refused.
    """

    def __init__(self, name: str, width: int) -> None:
        self.name = name
        self.width = width
        self.closed = False
        self._cancelled = False
        self._ready = QueueCore(name, -1, PriorityStore(lambda element: element[0]))
        self._incomplete: dict[bytes, list[Value]] = {}
        self._index = FIRST_INDEX
        self._lock = threading.Lock()

    @property
    def ready_size(self) -> int:
        """Number of complete elements."""
        return len(self._ready)

    @property
    def incomplete_size(self) -> int:
        """Number of incomplete elements."""
        return len(self._incomplete)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        state = "closed" if self.closed else "open"
        return f"barrier {self.name!r} ({self.ready_size} ready, {self.incomplete_size} incomplete, {state})"

    def insert(self, component: int, keys: Sequence[bytes], values: Sequence[Value]) -> list[Ticket]:
        """Set one component of several elements and return the resolved tickets. If it raises, none is set.

        Args:
            component: Index of the component.
            keys: Keys of the elements.
            values: The component of each element.

        Raises:
            CancelledError: the barrier is closed and a key is new, or all inserts are refused.
            InvalidArgumentError: an element already has that component.
        """
        with self._lock:
            # All checks come before the first change: a failed insert sets nothing.
            self._check(component, keys)
            new = False
            for key, value in zip(keys, values, strict=True):
                if key not in self._incomplete:
                    self._incomplete[key] = [self._index, key, *[_MISSING] * self.width]
                    new = True
                self._incomplete[key][2 + component] = value
            # One index for all new keys of this insert, as in TensorFlow.
            self._index += new
            return self._pass_on(keys)

    def _check(self, component: int, keys: Sequence[bytes]) -> None:
        if self._cancelled or (self.closed and any(key not in self._incomplete for key in keys)):
            raise CancelledError(
                f"barrier {self.name!r} is closed",
                expected=f"keys of its {len(self._incomplete)} incomplete elements",
                actual=list(keys),
            )
        seen: set[bytes] = set()
        for key in keys:
            present = self._incomplete.get(key)
            if key in seen or (present is not None and present[2 + component] is not _MISSING):
                raise InvalidArgumentError(
                    f"key {key!r} of barrier {self.name!r} already has component {component}",
                    expected="one value for each component",
                    actual="a second one",
                )
            seen.add(key)

    def _pass_on(self, keys: Sequence[bytes]) -> list[Ticket]:
        """Move elements that have become complete to the queue."""
        whole = [self._incomplete.pop(key) for key in keys if not any(v is _MISSING for v in self._incomplete[key])]
        # The queue is unbounded, so this ticket is resolved at once and has no waiter to be woken.
        put = Enqueue([tuple(element) for element in whole])
        resolved = [ticket for ticket in self._ready.submit(put) if ticket is not put]
        if self.closed and not self._incomplete:
            resolved += self._ready.cancel_and_close()
        return resolved

    def close(self, cancel: bool) -> list[Ticket]:
        """Refuse new keys; with `cancel`, refuse all keys and drop incomplete elements. Return the resolved tickets.

        A closed barrier may only be closed again with `cancel`.

        Raises:
            CancelledError: the barrier is already closed.
        """
        with self._lock:
            if self._cancelled or (self.closed and not cancel):
                raise CancelledError(
                    f"barrier {self.name!r} is already closed", expected="an open one", actual="closed"
                )
            self.closed, self._cancelled = True, cancel
            if cancel:
                self._incomplete.clear()
            # Incomplete elements may still be completed; then `_pass_on` closes the queue after the last of them.
            return self._ready.cancel_and_close() if not self._incomplete else []

    def submit(self, ticket: Dequeue) -> list[Ticket]:
        """Queue a request for complete elements. Return all tickets that this resolves."""
        with self._lock:
            error = self._shortage(ticket)
            if error is not None:
                ticket.resolve(error=error)
                return [ticket]
            return self._ready.submit(ticket)

    def withdraw(self, ticket: Dequeue) -> list[Ticket]:
        """Remove a request from the queue, or put its elements back. Return the tickets that this resolves."""
        return self._ready.withdraw(ticket)

    def _shortage(self, ticket: Dequeue) -> OutOfRangeError | None:
        """Return the error if a closed barrier can no longer serve a request, else None."""
        if not self.closed:
            return None
        have = self.ready_size
        if ticket.small:
            # Takes what is complete, without waiting for the incomplete elements.
            ticket.count = min(ticket.count, max(have, 1))
        else:
            have += self.incomplete_size
        if have >= max(ticket.count, 1):
            return None
        return OutOfRangeError(
            f"barrier {self.name!r} is closed and has insufficient elements", expected=ticket.count, actual=have
        )
