"""The policy of restarts of a process: maximum number and pauses, computed from given times."""

from __future__ import annotations

from typing import Final

_PAUSE: Final = 0.1  # seconds before the second of two quick restarts
_LONGEST_PAUSE: Final = 10.0
_QUICK: Final = 10.0  # seconds; a process that has lived longer has not failed at its start


class Restarts:
    """The restarts of one process.

    Args:
        most: Maximum number of restarts; -1 for no limit.

    Attributes:
        count: Number of restarts so far.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0
        self._begun: float | None = None
        self._quick = 0  # in a row

    def next(self, now: float) -> float | None:
        """Register a start or restart at time `now`. Return the pause before it in seconds; None if none is allowed."""
        if self._begun is None:
            self._begun = now
            return 0.0
        # The second comparison fails for −1: no limit.
        if 0 <= self._most <= self.count:
            return None
        # Only restarts soon after the start before count: others say nothing about the start.
        self._quick = self._quick + 1 if now - self._begun < _QUICK else 0
        # 0.1, 0.2, 0.4, … seconds from the second quick restart on, at most 10.
        pause = min(_LONGEST_PAUSE, _PAUSE * 2 ** (self._quick - 2)) if self._quick > 1 else 0.0
        self.count += 1
        # The process begins after the pause.
        self._begun = now + pause
        return pause
