"""Whether it pays to let threads wait awake, so that they begin at once.

On processors that nobody else wants, that saves the time of waking them. Beside other programs a thread that is awaited
may wait for its turn, which costs a slice of the scheduler's, and one that waits in vain takes the time of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Account"]

_RICH: Final = 5e-3  # seconds that there are at most: a slice of the scheduler's
_START: Final = 1e-3  # what there is after a rest
_REST: Final = 0.02  # seconds, the first time
_LONGEST_REST: Final = 1.0


class Account:
    """The seconds that threads have saved. When they are used up, the threads rest, for longer the sooner that happens
    again.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests_until, self._rest, self._saved = 0.0, _REST, _RICH

    def is_open(self, now: float) -> bool:
        """Whether the threads do not rest."""
        return now >= self._rests_until

    def enter(self, saved: float) -> None:
        """Some seconds were saved, or lost."""
        self._saved += saved
        if self._saved < 0:
            self._rests_until = self._clock() + self._rest
            self._rest, self._saved = min(2 * self._rest, _LONGEST_REST), _START
        elif self._saved >= _RICH:
            self._rest, self._saved = _REST, _RICH
