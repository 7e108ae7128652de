"""A memory budget for the weights of all models of a process, checked before weights are read."""

from __future__ import annotations

import os

from aioflow.saved.opening import kind_of
from aioflow.saved.surveys import survey
from aioflow.serve.protocol.errors import NoMemoryError


def weight_bytes(path: str | os.PathLike[str]) -> int:
    """Return the size of the weights of a model file without importing it. Blocks on the disk. Raises as `survey`."""
    return sum(each.size for each in survey(path, kind_of(path)).parameters)


class MemoryBudget:
    """A budget of bytes.

    Args:
        limit: The size of the budget.

    Attributes:
        taken: The bytes in use.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, count: int, what: str) -> None:
        """Reserve `count` bytes. Raise NoMemoryError, about `what`, if fewer are left."""
        if self.taken + count > self.limit:
            raise NoMemoryError(
                f"there is no memory left for {what}",
                expected=f"at most {self.limit - self.taken} of {self.limit} bytes",
                actual=count,
            )
        self.taken += count

    def give(self, count: int) -> None:
        """Release `count` bytes."""
        self.taken -= count
