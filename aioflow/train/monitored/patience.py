"""Exponential back-off with a time limit, as plain arithmetic on times that the caller supplies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aioflow.arguments import check_number
from aioflow.errors import DeadlineExceededError, InvalidArgumentError

_FIRST: Final = 0.05  # seconds
_GROWTH: Final = 1.5  # a wait overshoots by at most half the time that was needed
_MOST: Final = 10.0  # seconds


def delays(most: float = _MOST) -> Iterator[float]:
    """Yield the seconds between attempts: 0.05 at first, growing by half each time, at most `most`."""
    delay = _FIRST
    while True:
        # The first delay may be above a small limit, too.
        yield min(delay, most)
        delay = min(delay * _GROWTH, most)


class Patience:
    """A limit on the time spent in consecutive failures.

    Args:
        limit: Seconds from the first failure to the last attempt; 0 for one attempt at once.

    Raises:
        InvalidArgumentError: the limit is less than 0, or NaN.
    """

    def __init__(self, limit: float) -> None:
        check_number(limit, "the time limit of a recovery", "a number of seconds")
        if limit < 0:
            raise InvalidArgumentError("the time limit of a recovery is negative", expected="at least 0", actual=limit)
        self._limit = limit
        self.succeeded()

    def succeeded(self) -> None:
        """Reset: the next failure is a first failure."""
        self._since: float | None = None
        self._delays = delays()

    def failed(self, now: float, error: BaseException, waited_for: str) -> float:
        """Record a failure and return the seconds to wait before the next attempt: 0 after the first failure.

        Args:
            now: Current time in seconds.
            error: The failure.
            waited_for: Description of what is being attempted, for the error message.

        Raises:
            DeadlineExceededError: the time limit has passed; the next failure is a first one again.
        """
        if self._since is None:
            self._since = now
            return 0.0
        if now - self._since >= self._limit:
            # The caller may go on after the error; then the time counts from its next failure.
            self.succeeded()
            raise DeadlineExceededError(
                f"{waited_for} was not there in time", expected=f"within {self._limit:g} s", actual=str(error)
            ) from error
        return next(self._delays)
