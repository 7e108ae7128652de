"""Queues as plain state machines: no event loop and no arrays, only elements and waiting tickets.

Every method is one event. It returns the tickets that the event resolved, to be woken by the caller. Both sides are
served first in, first out. A close is a request of the enqueuing side, so it waits behind earlier enqueues.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from aioflow.errors import CancelledError, OutOfRangeError
from aioflow.sync.waiting import Ticket

UNBOUNDED: Final = 2**31 - 1


Element: TypeAlias = Any  # usually a tuple of arrays; a `PriorityStore` pops entries of its heap


class ElementStore(Protocol):
    """The elements of a queue, and the order in which they leave."""

    def __len__(self) -> int: ...

    def push(self, element: Element) -> None:
        """Add an element."""

    def pop(self) -> Element:
        """Remove and return the next element."""

    def restore(self, elements: Sequence[Element]) -> None:
        """Put back popped elements, given in the order in which they were popped."""

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """Return how many elements may leave now, for a dequeue that still wants `wanted`."""

    def arrange(self, elements: list[Element]) -> list[Element]:
        """Return the elements that one dequeue has collected, in the order of its result."""


class FIFOStore:
    """First in, first out."""

    def __init__(self) -> None:
        self._elements: deque[Element] = deque()
        self.push: Callable[[Element], None] = self._elements.append
        self.pop: Callable[[], Element] = self._elements.popleft

    def __len__(self) -> int:
        return len(self._elements)

    def restore(self, elements: Sequence[Element]) -> None:
        """Put popped elements back at the front."""
        # `extendleft` reverses its argument: the first popped element comes to the front again.
        self._elements.extendleft(reversed(elements))

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """Return the number of elements."""
        return len(self._elements)

    def arrange(self, elements: list[Element]) -> list[Element]:
        """Return the elements in order of arrival."""
        return elements


class ShuffleStore:
    """Random order. While the queue is open, `min_after` elements stay inside to keep the order random."""

    def __init__(self, min_after: int, draw: Callable[[int], int]) -> None:
        self._elements: list[Element] = []
        self._min_after = min_after
        self._draw = draw
        self.push: Callable[[Element], None] = self._elements.append

    def __len__(self) -> int:
        return len(self._elements)

    def pop(self) -> Element:
        """Remove and return a random element."""
        elements = self._elements
        index = self._draw(len(elements))
        # Swapping with the last element makes the removal O(1); the order inside does not matter.
        elements[index], elements[-1] = elements[-1], elements[index]
        return elements.pop()

    def restore(self, elements: Sequence[Element]) -> None:
        """Put popped elements back among the others."""
        self._elements.extend(elements)

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """Return the number of elements beyond `min_after`, or all of them once the queue is closed."""
        return len(self._elements) if closed else max(0, len(self._elements) - self._min_after)

    def arrange(self, elements: list[Element]) -> list[Element]:
        """Return the elements as drawn."""
        return elements


class PriorityStore:
    """The smallest key first; among equal keys, first in, first out."""

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self._heap: list[tuple[Any, int, Element]] = []
        self._key = key
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, element: Element) -> None:
        """Add an element behind those with the same key."""
        self._count += 1
        # The count keeps equal keys in order, and elements from being compared: arrays have no single truth value.
        heapq.heappush(self._heap, (self._key(element), self._count, element))

    def pop(self) -> Element:
        """Remove and return the entry of the smallest element, with its position, which `arrange` removes."""
        return heapq.heappop(self._heap)

    def restore(self, elements: Sequence[Element]) -> None:
        """Put popped entries back in their positions."""
        for entry in elements:
            heapq.heappush(self._heap, entry)

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """Return the number of elements, or 0 if there are too few for the whole dequeue."""
        # All or nothing, since a later element may have to leave first. A dequeue of more than the capacity is never
        # available at once, so it starts when the queue is full.
        size = len(self._heap)
        return size if size >= min(wanted, capacity) else 0

    def arrange(self, elements: list[Element]) -> list[Element]:
        """Return the elements in order, without their positions."""
        return [entry[2] for entry in sorted(elements, key=lambda entry: entry[:2])]


class Enqueue(Ticket):
    """A request to put `elements` in, one after another. Elements already in stay in, even if it is withdrawn."""

    __slots__ = ("elements", "position")

    stays = True

    def __init__(self, elements: Sequence[Element], wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.elements = elements
        self.position = 0


class Close(Ticket):
    """A request to close the queue after all earlier enqueues."""

    __slots__ = ()


class Dequeue(Ticket):
    """A request for `count` elements; `small` allows fewer once the queue is closed. `value` is a list of them."""

    __slots__ = ("count", "small", "taken")

    def __init__(self, count: int, small: bool = False, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.count = count
        self.small = small
        self.taken: list[Element] = []


class QueueCore:
    """A bounded queue. Thread-safe.

    Attributes:
        name: Name in messages.
        capacity: Number of elements beyond which enqueues wait. Elements put back by a withdrawn dequeue may exceed it.
        closed: Whether the queue refuses new elements.
    """

    def __init__(self, name: str, capacity: int, store: ElementStore) -> None:
        self.name = name
        self.capacity = UNBOUNDED if capacity < 0 else capacity
        self.closed = False
        self._store = store
        self._lock = threading.Lock()
        self._writers: deque[Ticket] = deque()
        self._readers: deque[Dequeue] = deque()

    def __len__(self) -> int:
        return len(self._store)

    @property
    def num_dequeuing(self) -> int:
        """Number of waiting dequeues."""
        return len(self._readers)

    def describe(self) -> str:
        """Return a description of the state, for reports."""
        limit = "unbounded" if self.capacity == UNBOUNDED else f"capacity {self.capacity}"
        state = "closed" if self.closed else "open"
        waiting = f"{len(self._writers)} enqueuing, {len(self._readers)} dequeuing"
        return f"queue {self.name!r} (size {len(self._store)}, {limit}, {state}; waiting: {waiting})"

    def try_put(self, element: Element) -> Sequence[Ticket] | None:
        """Put one element in without waiting. Return the resolved tickets, or None if that needs an `Enqueue`."""
        with self._lock:
            # Not ahead of waiting writers, which would be overtaken.
            if self.closed or self._writers or len(self._store) >= self.capacity:
                return None
            self._store.push(element)
            return self._flush() if self._readers else ()

    def try_take(self) -> tuple[Dequeue, Sequence[Ticket]] | None:
        """Take one element without waiting.

        Returns:
            A resolved ticket and the other tickets that this resolves, or None if that needs a `Dequeue`.
        """
        with self._lock:
            store = self._store
            # Not ahead of waiting readers, whose elements these are.
            if self._readers or not store.available(1, self.capacity, self.closed):
                return None
            ticket = Dequeue(1)
            ticket.taken.append(store.pop())
            ticket.resolve(store.arrange(ticket.taken))
            return ticket, self._flush() if self._writers else ()

    def try_submit(self, ticket: Enqueue | Dequeue) -> list[Ticket] | None:
        """Submit the ticket if that resolves it at once. Otherwise return None and change nothing."""
        with self._lock:
            store = self._store
            line: Sequence[Ticket] = self._readers if isinstance(ticket, Dequeue) else self._writers
            if isinstance(ticket, Dequeue):
                enough = store.available(ticket.count, self.capacity, self.closed) >= ticket.count
            else:
                # An enqueue must fit as a whole: a partial one could not be taken back.
                enough = not self.closed and len(store) + len(ticket.elements) <= self.capacity
            if line or not enough:
                return None
            # Alone in its line, and with enough elements or room, the ticket is resolved by the flush.
            self._line_up(ticket)
            return self._flush()

    def _line_up(self, ticket: Ticket) -> None:
        if isinstance(ticket, Dequeue):
            self._readers.append(ticket)
        else:
            self._writers.append(ticket)

    def submit(self, ticket: Ticket) -> list[Ticket]:
        """Queue a ticket. Return all tickets that this resolves."""
        with self._lock:
            self._line_up(ticket)
            return self._flush()

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Remove a ticket from its queue, or put its elements back. Return the resolved tickets.

        An element that has been enqueued stays in.
        """
        with self._lock:
            if not isinstance(ticket, Dequeue):
                if not ticket.resolved:
                    self._writers.remove(ticket)
            elif ticket.resolved:
                # The step did not deliver what it took, so the elements return, even beyond the capacity.
                self._store.restore(ticket.taken)
                ticket.taken = []
            else:
                self._readers.remove(ticket)
                self._give_back(ticket)
            return self._flush()

    def cancel_and_close(self) -> list[Ticket]:
        """Close at once. Waiting enqueues fail, waiting closes succeed. Return the resolved tickets."""
        with self._lock:
            self.closed = True
            ended = list(self._writers)
            self._writers.clear()
            for ticket in ended:
                error = None if isinstance(ticket, Close) else self._cancelled("the enqueue was cancelled by a close")
                ticket.resolve(error=error)
            return [*ended, *self._flush()]

    def _cancelled(self, what: str) -> CancelledError:
        return CancelledError(f"queue {self.name!r}: {what}", expected="an open queue", actual="closed")

    def _flush(self) -> list[Ticket]:
        """Serve both sides from their fronts until neither makes progress."""
        resolved: list[Ticket] = []
        moved = True
        while moved:
            moved = False
            while self._writers and self._serve_writer(self._writers[0]):
                resolved.append(self._writers.popleft())
                moved = True
            while self._readers and self._serve_reader(self._readers[0]):
                resolved.append(self._readers.popleft())
                moved = True
            # A dequeue that is still short may have made room for writers.
            moved = moved or (bool(self._writers) and len(self._store) < self.capacity)
        return resolved

    def _serve_writer(self, ticket: Ticket) -> bool:
        if isinstance(ticket, Close):
            ticket.resolve(error=self._cancelled("it is already closed") if self.closed else None)
            self.closed = True
        elif isinstance(ticket, Enqueue):
            if self.closed:
                ticket.resolve(error=self._cancelled("it is closed"))
                return True
            store, elements = self._store, ticket.elements
            while ticket.position < len(elements) and len(store) < self.capacity:
                store.push(elements[ticket.position])
                ticket.position += 1
            if ticket.position == len(elements):
                ticket.resolve()
        return ticket.resolved

    def _serve_reader(self, ticket: Dequeue) -> bool:
        store, taken = self._store, ticket.taken
        wanted = ticket.count - len(taken)
        free = min(wanted, store.available(wanted, self.capacity, self.closed))
        for _ in range(free):
            taken.append(store.pop())
        if len(taken) == ticket.count:
            ticket.resolve(store.arrange(taken))
        elif self.closed:  # and so without writers, which are served first
            self._end_short(ticket)
        return ticket.resolved

    def _end_short(self, ticket: Dequeue) -> None:
        """End a dequeue for which the closed queue has too few elements."""
        store, taken = self._store, ticket.taken
        if ticket.small and (taken or len(store)):
            while len(store) and len(taken) < ticket.count:
                taken.append(store.pop())
            ticket.resolve(store.arrange(taken))
            return
        self._give_back(ticket)
        size = len(store)
        ticket.resolve(
            error=OutOfRangeError(
                f"queue {self.name!r} is closed and has insufficient elements "
                f"(requested {ticket.count}, current size {size})",
                expected=ticket.count,
                actual=size,
            )
        )

    def _give_back(self, ticket: Dequeue) -> None:
        self._store.restore(ticket.taken)
        ticket.taken = []
