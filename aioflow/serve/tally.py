"""What has become of the requests of a model, as numbers: counted on the way, and read by whoever shows them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["BOUNDS", "OUTCOMES", "RequestTally", "outcome_of"]

# Upper bounds of seconds, from what a small model takes to what nobody waits for.
BOUNDS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
OUTCOMES: Final = ("ok", "refused", "overloaded", "late", "gone", "failed")


def outcome_of(status: int) -> str:
    """What a request has come to, by its HTTP status."""
    named = {429: "overloaded", 503: "overloaded", 504: "late", 499: "gone"}
    return named.get(status) or ("ok" if status < 400 else "refused" if status < 500 else "failed")


class RequestTally:
    """Counts requests.

    Attributes:
        outcomes: How many came to what.
        seconds: Of all of an outcome together, from when a request had been read until its answer was ready.
        histogram: How many that were answered well took at most so long as each of `BOUNDS`; the last, longer.
        last: When the last one ended, by the loop's clock; None before.
    """

    __slots__ = ("histogram", "last", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.seconds = dict.fromkeys(OUTCOMES, 0.0)
        self.histogram = [0] * (len(BOUNDS) + 1)
        self.last: float | None = None

    def ended(self, outcome: str, seconds: float, now: float) -> None:
        """A request has come to this."""
        self.outcomes[outcome] += 1
        self.seconds[outcome] += seconds
        self.last = now
        if outcome == "ok":
            self.histogram[bisect_left(BOUNDS, seconds)] += 1
