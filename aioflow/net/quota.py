"""A limit on the number of items and on their total bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aioflow.errors import ResourceExhaustedError


class Quota:
    """A counter of items and their bytes, with a limit on both.

    Args:
        what: Description of the items, for the error.
        count: Maximum number of items.
        size: Maximum total bytes.

    Attributes:
        taken: Current number of items and their bytes.
    """

    def __init__(self, what: str, count: int, size: int) -> None:
        self._what = what
        self._most = count, size
        self.taken = 0, 0

    def take(self, count: int, size: int) -> None:
        """Count more items. Raises ResourceExhaustedError, and counts nothing, if a limit would be exceeded."""
        after = self.taken[0] + count, self.taken[1] + size
        if after[0] > self._most[0] or after[1] > self._most[1]:
            raise ResourceExhaustedError(
                self._what,
                expected="at most " + _said(*self._most, self._most[1]),
                actual=_said(*after, self._most[1]),
            )
        self.taken = after

    def add(self, count: int, size: int) -> None:
        """Count items without checking the limits, within room held by `reserved`."""
        self.taken = self.taken[0] + count, self.taken[1] + size

    def give(self, count: int, size: int) -> None:
        """Subtract items."""
        self.taken = self.taken[0] - count, self.taken[1] - size

    @contextmanager
    def reserved(self, count: int, size: int) -> Iterator[None]:
        """Hold room for the items during a block. Raises as `take`."""
        self.take(count, size)
        try:
            yield
        finally:
            self.give(count, size)


def _said(count: int, size: int, most: int) -> str:
    """Format a count, with the bytes only if they are limited."""
    return f"{count}, of {size} bytes" if most else str(count)
