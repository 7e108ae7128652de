"""How often a process is started again, and after which pause: arithmetic on times that are given."""

from __future__ import annotations

from typing import Final

__all__ = ["Restarts"]

_PAUSE: Final = 0.1  # seconds before the second of two quick restarts
_LONGEST_PAUSE: Final = 10.0
_QUICK: Final = 10.0  # what has lived longer has not failed at its start


class Restarts:
    """Of one process.

    Args:
        most: So many at most; -1 for any number.

    Attributes:
        count: How many there were.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0
        self._begun: float | None = None
        self._quick = 0  # in a row

    def next(self, now: float) -> float | None:
        """It is to begin, again if it has before: after how many seconds; None if it may not."""
        if self._begun is None:
            self._begun = now
            return 0.0
        if 0 <= self._most <= self.count:
            return None
        self._quick = self._quick + 1 if now - self._begun < _QUICK else 0
        pause = min(_LONGEST_PAUSE, _PAUSE * 2 ** (self._quick - 2)) if self._quick > 1 else 0.0
        self.count += 1
        self._begun = now + pause
        return pause
