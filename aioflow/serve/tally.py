"""Request counters of one model, by outcome and duration, which the metrics and statistics endpoints read."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Upper bounds in seconds, from the time of a small model to times at which most clients have given up.
BOUNDS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
OUTCOMES: Final = ("ok", "refused", "overloaded", "late", "gone", "failed")


def outcome_of(status: int) -> str:
    """Return the outcome, one of `OUTCOMES`, that an HTTP status stands for."""
    named = {429: "overloaded", 503: "overloaded", 504: "late", 499: "gone"}
    return named.get(status) or ("ok" if status < 400 else "refused" if status < 500 else "failed")


class RequestTally:
    """Counts and durations of the requests of one model.

    Attributes:
        outcomes: Number of requests by outcome.
        seconds: Total time by outcome, from the end of reading a request until its response is ready.
        histogram: Number of "ok" requests by duration, one bin per upper bound in `BOUNDS` and one for longer requests.
        last: Time at which the last request ended, by the event loop's clock; None before the first.
    """

    __slots__ = ("histogram", "last", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.seconds = dict.fromkeys(OUTCOMES, 0.0)
        self.histogram = [0] * (len(BOUNDS) + 1)
        self.last: float | None = None

    def ended(self, outcome: str, seconds: float, now: float) -> None:
        """Count a request that ended with `outcome` after `seconds`, at time `now` of the loop's clock."""
        self.outcomes[outcome] += 1
        self.seconds[outcome] += seconds
        self.last = now
        if outcome == "ok":
            # `bisect_left`, because a bucket includes its upper bound, as in Prometheus.
            self.histogram[bisect_left(BOUNDS, seconds)] += 1
