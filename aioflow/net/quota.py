"""How many things of a kind somebody has, how many bytes they take, and how much more there may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.errors import ResourceExhaustedError

__all__ = ["Quota"]


class Quota:
    """Counts them.

    Args:
        what: What they are, for the error.
        count, size: The most things, and bytes of all.

    Attributes:
        taken: How many there are, and their bytes.
    """

    def __init__(self, what: str, count: int, size: int) -> None:
        self._what = what
        self._most = count, size
        self.taken = 0, 0

    def take(self, count: int, size: int) -> None:
        """So many more. Raises ResourceExhaustedError, and takes nothing, where that is too much."""
        after = self.taken[0] + count, self.taken[1] + size
        if after[0] > self._most[0] or after[1] > self._most[1]:
            raise ResourceExhaustedError(
                self._what,
                expected="at most " + _said(*self._most, self._most[1]),
                actual=_said(*after, self._most[1]),
            )
        self.taken = after

    def add(self, count: int, size: int) -> None:
        """So many more, of what is reserved."""
        self.taken = self.taken[0] + count, self.taken[1] + size

    def give(self, count: int, size: int) -> None:
        """So many less."""
        self.taken = self.taken[0] - count, self.taken[1] - size

    @contextmanager
    def reserved(self, count: int, size: int) -> Iterator[None]:
        """A block for which there is surely so much room. Raises as `take`."""
        self.take(count, size)
        try:
            yield
        finally:
            self.give(count, size)


def _said(count: int, size: int, most: int) -> str:
    """Without the bytes where these are not counted."""
    return f"{count}, of {size} bytes" if most else str(count)
