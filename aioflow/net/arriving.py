"""Large messages of which a part has come: what they take together is bounded, however many connections they come by.

Bytes count when they come and not when they are announced, since an announcement costs its sender nothing: memory for a
tensor is reserved at once, and taken from the system page by page as bytes are written into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aioflow.errors import ResourceExhaustedError

__all__ = ["Arrivals", "Arriving"]

_WHAT: Final = "bytes of messages that have not come whole"


class Arrivals:
    """Those of all connections of a listener.

    Args:
        most: Bytes. Beyond them the connection that has most loses its message, and ends.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Arriving] = set()
        self.bytes = 0

    def one(self, on_loss: Callable[[ResourceExhaustedError], None]) -> Arriving:
        """Those of one connection, which is ended by `on_loss` if another one needs its room."""
        return Arriving(self, on_loss)

    def make_room(self, asking: Arriving, count: int) -> None:
        """Let `asking` have so many bytes more. Raises ResourceExhaustedError if it is the one that has most."""
        while self.bytes + count > self._most:
            largest = max(self._all, key=lambda one: one.bytes, default=asking)
            if largest is asking or largest.bytes <= asking.bytes + count:
                raise self._refusal(asking.bytes + count)
            error = self._refusal(largest.bytes)
            largest.clear()
            largest.on_loss(error)
        self.bytes += count
        self._all.add(asking)

    def gone(self, one: Arriving) -> None:
        """One has none any more."""
        self.bytes -= one.bytes
        self._all.discard(one)

    def _refusal(self, actual: int) -> ResourceExhaustedError:
        return ResourceExhaustedError(_WHAT, expected=f"at most {self._most}, of all connections", actual=actual)


class Arriving:
    """Those of one connection; `Arrivals.one` makes it."""

    __slots__ = ("_arrivals", "bytes", "on_loss")

    def __init__(self, arrivals: Arrivals, on_loss: Callable[[ResourceExhaustedError], None]) -> None:
        self._arrivals = arrivals
        self.on_loss = on_loss
        self.bytes = 0

    def add(self, count: int) -> None:
        """So many more. Raises ResourceExhaustedError where that is too much."""
        self._arrivals.make_room(self, count)
        self.bytes += count

    def clear(self) -> None:
        """The message has come whole, or is lost."""
        self._arrivals.gone(self)
        self.bytes = 0
