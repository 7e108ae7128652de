"""OpenMP's threads: lent to one computation at a time, and only while that saves time.

Our own threads share the blocks of a large computation (`aioflow_numpy.threads`), but to wake one takes a tenth of a
millisecond, and many a layer of a net takes no longer than that for one picture. OpenMP's threads stay awake for some
microseconds after a computation (`library.py` says for how many), and the next one begins at once. Measured on two
cores, the convolutions of a ResNet-50 take 29 ms in one thread, 30 in blocks and 20 by OpenMP; of a MobileNet-V2 5, 5.5
and 3.6.

But they wait for one another: beside two busy programs each computation may cost a slice of the scheduler's, and the
same take 114 and 74 ms. So there is an account of what the team has saved, beside one thread. When that is used up, the
team rests, for longer the sooner that happens again, and one thread goes on. Nor does an event loop's thread wait for
it, which would stop the loop. Who computes is not to be seen in the results: products of matrices are cut, and rounded,
in another way by another number of threads, so the team is not for these.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

from aioflow.work.threads import is_loops_thread
from aioflow_numpy.account import Account
from aioflow_numpy.crew import CREW
from aioflow_numpy.placing import processor_number, wake_elsewhere
from aioflow_numpy.threads import thread_count
from aioflow_onednn.library import library

__all__ = ["TEAM", "Computation", "Team", "size_of_team"]

_TRIALS: Final = 3  # runs in one thread, by which it is known what they take
_LATEST: Final = 8  # runs that what they take is the mean of, more or less: it changes with what else the machine does
_SHORT: Final = 4e-5  # seconds in one thread: below, two are hardly quicker
_FRESH: Final = 0.05  # seconds that the number of threads is taken for known


def size_of_team() -> int:
    """How many threads of OpenMP a computation in this thread may have."""
    return thread_count() if library().has_team else 1


class Computation(Protocol):
    """What the team may be lent for.

    Attributes:
        runs, usual: How many runs somebody has timed, and the seconds that they take as a rule.
        missed: How often the team has done the same since the last of them.
        most_missed: After so many, one thread shows again what it takes.
    """

    runs: int
    usual: float
    missed: int

    @property
    def most_missed(self) -> int:
        """See above."""

    def run(self, *args: Any) -> None:
        """Compute."""


class Team:
    """Who may compute with several threads of OpenMP.

    Args:
        clock: Gives seconds.
        size: How many threads a computation in this thread may have.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, size: Callable[[], int] = size_of_team) -> None:
        self.size, self._clock = size, clock
        self._lent = threading.Lock()
        self._members = _Members()
        self._known = _Known()
        self._account = Account(clock)

    def lend(self) -> int:
        """How many threads a computation gets: more than one only until the caller says `back`."""
        now = self._clock()
        if not self._account.is_open(now) or not self._lent.acquire(blocking=False):
            return 1
        size = 1
        try:
            known = self._known
            if now >= known.until:
                known.size, known.until = self.size(), now + _FRESH
            if not is_loops_thread():
                size = known.size
        finally:  # an interruption must not keep the team
            if size < 2:
                self.back()
        if size > 1:
            CREW.call()  # which waits on the processors that the team is to have
        return size

    def back(self) -> None:
        """The computation has ended."""
        self._lent.release()

    @staticmethod
    def is_for_one(alone: Computation) -> bool:
        """Whether a computation is short, or what it takes in one thread is not known, or was seen long ago."""
        return alone.runs < _TRIALS or alone.usual < _SHORT or alone.missed >= alone.most_missed

    def run(self, shared: Computation, alone: Computation, *args: Any) -> None:
        """Compute something, beside which there is one that does the same in one thread; or the latter.

        Who has not got the team does the latter.
        """
        begun = self._clock()
        if shared is alone:
            shared.run(*args)
        else:
            self._members.run(shared, args)
        took = self._clock() - begun
        if shared is alone:
            known = alone.usual
            alone.usual = took if alone.runs < 2 else known + (min(took, 2 * known) - known) / _LATEST
            alone.missed = 0
        elif shared.runs:  # the first run is slower
            self._account.enter(alone.usual - took)
            alone.missed += 1
        shared.runs += 1

    def disband(self) -> None:
        """This thread forks: its threads of OpenMP end, and those of the child do not wait for them."""
        self._members.end()

    def renew(self) -> None:
        """This is the child of a fork, in which nobody has the team."""
        self._lent = threading.Lock()


class _Known(threading.local):
    """How many threads this one may have, and until when that is taken for known: it takes as long to find out as much
    of a small layer.
    """

    size, until = 1, -math.inf


class _Members(threading.local):
    """The threads that OpenMP has made for this thread. They wake on other processors than this thread's (see
    `aioflow_numpy.placing`), since it waits for them there.
    """

    def __init__(self) -> None:
        self._ids: list[int] | None = None  # not known before the first computation
        self._away_from: int | None = None

    def run(self, shared: Computation, args: tuple[Any, ...]) -> None:
        if self._ids is None:
            before = _threads_of_the_process()
            try:
                shared.run(*args)
            finally:
                made = _threads_of_the_process() - before
                self._ids = list(made - {thread.native_id for thread in threading.enumerate()})
            return
        here = processor_number()
        if here != self._away_from:
            self._away_from = here
            wake_elsewhere(self._ids)
        shared.run(*args)

    def end(self) -> None:
        """They are no more, if there were any."""
        if self._ids is not None:
            library().end_team()
            self._ids = self._away_from = None


def _threads_of_the_process() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


TEAM: Final = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=TEAM.disband, after_in_child=TEAM.renew)
