"""A barrier as a plain state machine: elements whose components come one by one, and leave when they are whole.

Whole elements are in a queue of their own, which does the waiting; the barrier decides what goes into it and when it
closes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from aioflow.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from aioflow.sync.queue import Dequeue, Enqueue, PriorityStore, QueueCore
from aioflow.sync.waiting import Ticket

__all__ = ["FIRST_INDEX", "BarrierCore"]

FIRST_INDEX: Final = -(2**63)
_MISSING: Final[Any] = object()


class BarrierCore:
    """A map from keys to elements of `width` components. Methods may be called from any thread.

    An element is a tuple of its index, its key and its components. The index counts the inserts that brought new keys:
    all keys that are new in one insert have the same. Elements leave by index, then in the order in which they became
    whole.

    Attributes:
        name: For messages.
        closed: Whether new keys are refused.
    """

    def __init__(self, name: str, width: int) -> None:
        self.name = name
        self.width = width
        self.closed = False
        self._cancelled = False
        self._ready = QueueCore(name, -1, PriorityStore(lambda element: element[0]))
        self._incomplete: dict[bytes, list[Any]] = {}
        self._index = FIRST_INDEX
        self._lock = threading.Lock()

    @property
    def ready_size(self) -> int:
        """How many elements are whole."""
        return len(self._ready)

    @property
    def incomplete_size(self) -> int:
        """How many elements have some components, and not all."""
        return len(self._incomplete)

    def describe(self) -> str:
        """The state in words, for reports."""
        state = "closed" if self.closed else "open"
        return f"barrier {self.name!r} ({self.ready_size} ready, {self.incomplete_size} incomplete, {state})"

    def insert(self, component: int, keys: Sequence[bytes], values: Sequence[Any]) -> list[Ticket]:
        """Set one component of several elements: of all of them, or of none where it raises.

        Raises:
            CancelledError: the barrier is closed and a key is new, or nothing may come any more.
            InvalidArgumentError: an element has that component already.
        """
        with self._lock:
            self._check(component, keys)
            new = False
            for key, value in zip(keys, values, strict=True):
                if key not in self._incomplete:
                    self._incomplete[key] = [self._index, key, *[_MISSING] * self.width]
                    new = True
                self._incomplete[key][2 + component] = value
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
        """Move what has become whole to the queue."""
        whole = [self._incomplete.pop(key) for key in keys if not any(v is _MISSING for v in self._incomplete[key])]
        put = Enqueue([tuple(element) for element in whole])
        settled = [ticket for ticket in self._ready.submit(put) if ticket is not put]
        if self.closed and not self._incomplete:
            settled += self._ready.cancel_and_close()
        return settled

    def close(self, cancel: bool) -> list[Ticket]:
        """Refuse new keys; with `cancel`, all keys, and drop the incomplete elements. A second close may only add that.

        Raises:
            CancelledError: it is already closed.
        """
        with self._lock:
            if self._cancelled or (self.closed and not cancel):
                raise CancelledError(
                    f"barrier {self.name!r} is already closed", expected="an open one", actual="closed"
                )
            self.closed, self._cancelled = True, cancel
            if cancel:
                self._incomplete.clear()
            return self._ready.cancel_and_close() if not self._incomplete else []

    def submit(self, ticket: Dequeue) -> list[Ticket]:
        """Get in line for whole elements; returns every ticket that this settles."""
        with self._lock:
            error = self._shortage(ticket)
            if error is not None:
                ticket.settle(error=error)
                return [ticket]
            return self._ready.submit(ticket)

    def withdraw(self, ticket: Dequeue) -> list[Ticket]:
        """Leave the line, or give back the elements that nobody will use."""
        return self._ready.withdraw(ticket)

    def _shortage(self, ticket: Dequeue) -> OutOfRangeError | None:
        """Why a closed barrier cannot serve this any more. One that takes what there is does not wait for the rest."""
        if not self.closed:
            return None
        have = self.ready_size
        if ticket.small:
            ticket.count = min(ticket.count, max(have, 1))
        else:
            have += self.incomplete_size
        if have >= max(ticket.count, 1):
            return None
        return OutOfRangeError(
            f"barrier {self.name!r} is closed and has insufficient elements", expected=ticket.count, actual=have
        )
