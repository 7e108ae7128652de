"""Repeated blocks of a picture: sequences of boxes with the same ops, one after another, as in a deep network."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np

_SAVED: Final = 5  # boxes that a repetition must save
_NEARLY: Final = 0.75  # of the boxes that the best repetition saves


class Repeat(NamedTuple):
    """`times` blocks of `period` elements, from the element at `start`."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """The index after the last element."""
        return self.start + self.period * self.times

    @property
    def saved(self) -> int:
        """The number of elements that repeat others."""
        return self.period * (self.times - 1)


def repeats(keys: Sequence[Hashable]) -> list[Repeat]:
    """Return disjoint repetitions of equal elements, in order. Those that save the most are found first."""
    numbers: dict[Hashable, int] = {}
    ids = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    found: list[Repeat] = []
    waiting = [(0, len(keys))]
    while waiting:
        low, high = waiting.pop()
        best = _longest(ids[low:high])
        if best is not None:
            best = best._replace(start=best.start + low)
            found.append(best)
            waiting += [(low, best.start), (best.end, high)]
    return sorted(found)


def _longest(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Repeat | None:
    found = []
    for period in range(1, len(ids) // 2 + 1):
        # A stretch of `same` of length n begins a stretch of n + period elements that repeat with this period.
        same = np.concatenate(([False], ids[:-period] == ids[period:], [False]))
        begins, ends = np.flatnonzero(same[1:] & ~same[:-1]), np.flatnonzero(~same[1:] & same[:-1])
        if not len(begins):
            continue
        most = int(np.argmax(ends - begins))
        times = int(ends[most] - begins[most]) // period + 1
        # The blocks end where the stretch ends: what precedes them is the end of a different block that looks alike.
        if times > 1 and times * period > _SAVED:
            found.append(Repeat(int(ends[most]) + period - times * period, period, times))
    saved = max((repeat.saved for repeat in found), default=0)
    # The shortest period that saves nearly as much: six blocks tell more than two halves of three.
    return next((repeat for repeat in found if repeat.saved >= _NEARLY * saved), None)
