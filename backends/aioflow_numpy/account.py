"""Accounting of whether spinning threads, which start work at once, save time.

On idle processors they save the time to wake threads. Beside other programs the caller may wait for a preempted thread,
which costs a time slice of the scheduler, and a thread that spins in vain takes time from others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_RICH: Final = 5e-3  # seconds; the largest balance, one time slice of the scheduler
_START: Final = 1e-3  # seconds; the balance after a rest
_REST: Final = 0.02  # seconds, the first time
_LONGEST_REST: Final = 1.0


class Account:
    """The balance of seconds that spinning threads have saved.

    When it is used up, the threads rest. The rest doubles each time, until the balance is full again.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests_until, self._rest, self._saved = 0.0, _REST, _RICH

    def is_open(self, now: float) -> bool:
        """Return whether the threads may spin now."""
        return now >= self._rests_until

    def enter(self, saved: float) -> None:
        """Add some seconds that were saved, or lost if negative."""
        self._saved += saved
        if self._saved < 0:
            # The balance after a rest is small, so a machine that is still busy is noticed soon.
            self._rests_until = self._clock() + self._rest
            self._rest, self._saved = min(2 * self._rest, _LONGEST_REST), _START
        # The balance is capped, so that earlier savings do not delay the next rest.
        elif self._saved >= _RICH:
            self._rest, self._saved = _REST, _RICH
