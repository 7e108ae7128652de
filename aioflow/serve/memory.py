"""One budget of memory for the weights of all models of a process: what would not fit is refused before it is read."""

from __future__ import annotations

import os

from aioflow.saved.opening import kind_of
from aioflow.saved.surveys import survey
from aioflow.serve.protocol.errors import NoMemoryError

__all__ = ["MemoryBudget", "weight_bytes"]


def weight_bytes(path: str | os.PathLike[str]) -> int:
    """What the weights of a model file take, told without importing it. Blocks on the disk. Raises as `survey`."""
    return sum(each.size for each in survey(path, kind_of(path)).parameters)


class MemoryBudget:
    """Bytes that are taken and given back.

    Args:
        limit: How many there are.

    Attributes:
        taken: How many are in use.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, count: int, what: str) -> None:
        """Raise NoMemoryError, about `what`, where there are not so many left."""
        if self.taken + count > self.limit:
            raise NoMemoryError(
                f"there is no memory left for {what}",
                expected=f"at most {self.limit - self.taken} of {self.limit} bytes",
                actual=count,
            )
        self.taken += count

    def give(self, count: int) -> None:
        """They are not in use any more."""
        self.taken -= count
