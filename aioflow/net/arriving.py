"""A bound on the memory of partially received large messages, over all connections of a listener.

Bytes count when they arrive, not when they are announced, because an announcement costs the sender nothing. Memory for
a tensor is reserved at once, but the system commits its pages only as bytes are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aioflow.errors import ResourceExhaustedError

_WHAT: Final = "bytes of incompletely received messages"


class Arrivals:
    """The count of partially received bytes of all connections of a listener.

    Args:
        most: Maximum number of bytes. If it is exceeded, the connection with the most loses its message and ends.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Arriving] = set()
        self.bytes = 0

    def one(self, on_loss: Callable[[ResourceExhaustedError], None]) -> Arriving:
        """Return the counter of one connection. `on_loss` ends the connection if another one needs its memory."""
        return Arriving(self, on_loss)

    def make_room(self, asking: Arriving, count: int) -> None:
        """Grant `count` more bytes to `asking`. Raises ResourceExhaustedError if it then holds the most."""
        while self.bytes + count > self._most:
            largest = max(self._all, key=lambda one: one.bytes, default=asking)
            # Otherwise the connection that asks would itself hold the most.
            if largest is asking or largest.bytes <= asking.bytes + count:
                raise self._refusal(asking.bytes + count)
            # Made before `clear`, which resets the number that it reports.
            error = self._refusal(largest.bytes)
            largest.clear()
            largest.on_loss(error)
        self.bytes += count
        self._all.add(asking)

    def gone(self, one: Arriving) -> None:
        """Subtract the bytes of one connection."""
        self.bytes -= one.bytes
        self._all.discard(one)

    def _refusal(self, actual: int) -> ResourceExhaustedError:
        return ResourceExhaustedError(_WHAT, expected=f"at most {self._most}, of all connections", actual=actual)


class Arriving:
    """The count of partially received bytes of one connection; created by `Arrivals.one`."""

    __slots__ = ("_arrivals", "bytes", "on_loss")

    def __init__(self, arrivals: Arrivals, on_loss: Callable[[ResourceExhaustedError], None]) -> None:
        self._arrivals = arrivals
        self.on_loss = on_loss
        self.bytes = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes. Raises ResourceExhaustedError if the limit is exceeded."""
        self._arrivals.make_room(self, count)
        self.bytes += count

    def clear(self) -> None:
        """Reset the count: the message is complete or lost."""
        self._arrivals.gone(self)
        self.bytes = 0
