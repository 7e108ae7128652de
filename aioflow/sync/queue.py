"""Queues as plain state machines: no event loop, no arrays, only elements, and who waits for them.

Every method is one event; it returns the tickets that the event settled, for the caller to wake. Each side waits in
line: an attempt is served only when those before it are. A close is an attempt of the enqueuing side, so that it waits
behind the enqueues that were there first.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from aioflow.errors import CancelledError, OutOfRangeError
from aioflow.sync.waiting import Ticket

__all__ = ["Close", "Dequeue", "Enqueue", "FIFOStore", "PriorityStore", "QueueCore", "ShuffleStore", "Store"]

UNBOUNDED: Final = 2**31 - 1


class Store(Protocol):
    """Where the elements are, and in which order they leave."""

    def __len__(self) -> int: ...

    def push(self, element: Any) -> None:
        """Add an element."""

    def pop(self) -> Any:
        """Take the element whose turn it is."""

    def restore(self, elements: Sequence[Any]) -> None:
        """Put back what has been popped, in the order in which it was popped."""

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """How many elements may leave now, for a dequeue that still wants `wanted`."""

    def arrange(self, elements: list[Any]) -> list[Any]:
        """The elements that one dequeue has collected, in the order to give them out."""


class FIFOStore:
    """First in, first out."""

    def __init__(self) -> None:
        self._elements: deque[Any] = deque()
        self.push: Callable[[Any], None] = self._elements.append
        self.pop: Callable[[], Any] = self._elements.popleft

    def __len__(self) -> int:
        return len(self._elements)

    def restore(self, elements: Sequence[Any]) -> None:
        """Back to the front."""
        self._elements.extendleft(reversed(elements))

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """All of them."""
        return len(self._elements)

    def arrange(self, elements: list[Any]) -> list[Any]:
        """As they came."""
        return elements


class ShuffleStore:
    """In random order. While the queue is open, `min_after` elements stay inside, for the order to be random."""

    def __init__(self, min_after: int, draw: Callable[[int], int]) -> None:
        self._elements: list[Any] = []
        self._min_after = min_after
        self._draw = draw
        self.push: Callable[[Any], None] = self._elements.append

    def __len__(self) -> int:
        return len(self._elements)

    def pop(self) -> Any:
        """Any element."""
        elements = self._elements
        index = self._draw(len(elements))
        elements[index], elements[-1] = elements[-1], elements[index]
        return elements.pop()

    def restore(self, elements: Sequence[Any]) -> None:
        """Back among the others."""
        self._elements.extend(elements)

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """Those beyond `min_after`; all once the queue is closed."""
        return len(self._elements) if closed else max(0, len(self._elements) - self._min_after)

    def arrange(self, elements: list[Any]) -> list[Any]:
        """As they were drawn."""
        return elements


class PriorityStore:
    """The smallest key first; among equal keys, first in, first out."""

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self._heap: list[tuple[Any, int, Any]] = []
        self._key = key
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, element: Any) -> None:
        """Add an element behind those of the same key."""
        self._count += 1
        heapq.heappush(self._heap, (self._key(element), self._count, element))

    def pop(self) -> Any:
        """The smallest. It comes with its place in the order, which `arrange` takes off."""
        return heapq.heappop(self._heap)

    def restore(self, elements: Sequence[Any]) -> None:
        """Back to where they were."""
        for entry in elements:
            heapq.heappush(self._heap, entry)

    def available(self, wanted: int, capacity: int, closed: bool) -> int:
        """All or nothing, since what comes later may have to go first; except where all can never be there at once."""
        size = len(self._heap)
        return size if size >= min(wanted, capacity) else 0

    def arrange(self, elements: list[Any]) -> list[Any]:
        """In order, and without their places."""
        return [entry[2] for entry in sorted(elements, key=lambda entry: entry[:2])]


class Enqueue(Ticket):
    """Put `elements` in, one after another. Its place is kept: elements that are in stay in."""

    __slots__ = ("elements", "position")

    stays = True

    def __init__(self, elements: Sequence[Any], wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.elements = elements
        self.position = 0


class Close(Ticket):
    """Close the queue when the enqueues before this are in."""

    __slots__ = ()


class Dequeue(Ticket):
    """Take `count` elements; once the queue is closed, `small` allows fewer. `value` is the list of them."""

    __slots__ = ("count", "small", "taken")

    def __init__(self, count: int, small: bool = False, wake: Callable[[], None] | None = None) -> None:
        super().__init__(wake)
        self.count = count
        self.small = small
        self.taken: list[Any] = []


class QueueCore:
    """A bounded queue. Methods may be called from any thread.

    Attributes:
        name: For messages.
        capacity: Elements beyond which enqueues wait. A withdrawn dequeue that gives elements back may exceed it.
        closed: Whether it takes no more elements.
    """

    def __init__(self, name: str, capacity: int, store: Store) -> None:
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
        """How many wait for elements."""
        return len(self._readers)

    def describe(self) -> str:
        """The state in words, for reports."""
        limit = "unbounded" if self.capacity == UNBOUNDED else f"capacity {self.capacity}"
        state = "closed" if self.closed else "open"
        waiting = f"{len(self._writers)} enqueuing, {len(self._readers)} dequeuing"
        return f"queue {self.name!r} (size {len(self._store)}, {limit}, {state}; waiting: {waiting})"

    def try_put(self, element: Any) -> Sequence[Ticket] | None:
        """Put one element in, if that needs no waiting: what this settles. None: submit an `Enqueue`."""
        with self._lock:
            if self.closed or self._writers or len(self._store) >= self.capacity:
                return None
            self._store.push(element)
            return self._flush() if self._readers else ()

    def try_take(self) -> tuple[Dequeue, Sequence[Ticket]] | None:
        """Take one element, if that needs no waiting: a settled ticket, with what this settles besides. None: submit a
        `Dequeue`.
        """
        with self._lock:
            store = self._store
            if self._readers or not store.available(1, self.capacity, self.closed):
                return None
            ticket = Dequeue(1)
            ticket.taken.append(store.pop())
            ticket.settle(store.arrange(ticket.taken))
            return ticket, self._flush() if self._writers else ()

    def try_submit(self, ticket: Enqueue | Dequeue) -> list[Ticket] | None:
        """`submit`, if that settles the ticket for good; otherwise None, and nothing has changed."""
        with self._lock:
            store = self._store
            line: Sequence[Ticket] = self._readers if isinstance(ticket, Dequeue) else self._writers
            if isinstance(ticket, Dequeue):
                enough = store.available(ticket.count, self.capacity, self.closed) >= ticket.count
            else:
                enough = not self.closed and len(store) + len(ticket.elements) <= self.capacity
            if line or not enough:
                return None
            self._line_up(ticket)
            return self._flush()

    def _line_up(self, ticket: Ticket) -> None:
        if isinstance(ticket, Dequeue):
            self._readers.append(ticket)
        else:
            self._writers.append(ticket)

    def submit(self, ticket: Ticket) -> list[Ticket]:
        """Get in line; returns every ticket that this settles."""
        with self._lock:
            self._line_up(ticket)
            return self._flush()

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Leave the line, or give back the elements that nobody will use. An element that is in stays in."""
        with self._lock:
            if not isinstance(ticket, Dequeue):
                if not ticket.settled:
                    self._writers.remove(ticket)
            elif ticket.settled:
                self._store.restore(ticket.taken)
                ticket.taken = []
            else:
                self._readers.remove(ticket)
                self._give_back(ticket)
            return self._flush()

    def cancel_and_close(self) -> list[Ticket]:
        """Close now; the enqueues that wait, and the closes, end at once."""
        with self._lock:
            self.closed = True
            ended = list(self._writers)
            self._writers.clear()
            for ticket in ended:
                error = None if isinstance(ticket, Close) else self._cancelled("the enqueue was cancelled by a close")
                ticket.settle(error=error)
            return [*ended, *self._flush()]

    def _cancelled(self, what: str) -> CancelledError:
        return CancelledError(f"queue {self.name!r}: {what}", expected="an open queue", actual="closed")

    def _flush(self) -> list[Ticket]:
        """Serve both lines from their fronts until neither moves."""
        settled: list[Ticket] = []
        moved = True
        while moved:
            moved = False
            while self._writers and self._serve_writer(self._writers[0]):
                settled.append(self._writers.popleft())
                moved = True
            while self._readers and self._serve_reader(self._readers[0]):
                settled.append(self._readers.popleft())
                moved = True
            moved = moved or (bool(self._writers) and len(self._store) < self.capacity)
        return settled

    def _serve_writer(self, ticket: Ticket) -> bool:
        if isinstance(ticket, Close):
            ticket.settle(error=self._cancelled("it is already closed") if self.closed else None)
            self.closed = True
        elif isinstance(ticket, Enqueue):
            if self.closed:
                ticket.settle(error=self._cancelled("it is closed"))
                return True
            store, elements = self._store, ticket.elements
            while ticket.position < len(elements) and len(store) < self.capacity:
                store.push(elements[ticket.position])
                ticket.position += 1
            if ticket.position == len(elements):
                ticket.settle()
        return ticket.settled

    def _serve_reader(self, ticket: Dequeue) -> bool:
        store, taken = self._store, ticket.taken
        wanted = ticket.count - len(taken)
        free = min(wanted, store.available(wanted, self.capacity, self.closed))
        for _ in range(free):
            taken.append(store.pop())
        short = len(taken) < ticket.count
        if short and self.closed and not self._writers:
            self._end_short(ticket)
        elif not short:
            ticket.settle(store.arrange(taken))
        return ticket.settled

    def _end_short(self, ticket: Dequeue) -> None:
        """The queue is closed and has too little left."""
        store, taken = self._store, ticket.taken
        if ticket.small and (taken or len(store)):
            while len(store) and len(taken) < ticket.count:
                taken.append(store.pop())
            ticket.settle(store.arrange(taken))
            return
        self._give_back(ticket)
        size = len(store)
        ticket.settle(
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
