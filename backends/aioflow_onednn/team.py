"""OpenMP's threads, the "team": reserved by one computation at a time, and only while that saves time.

aioflow's own threads share the blocks of a large computation (`aioflow_numpy.threads`). Waking one takes a tenth of a
millisecond, and many layers of a network take no longer than that for one picture. OpenMP's threads spin for some
microseconds after a computation (see `library.py` for how many), so the next one begins at once. Measured on two
cores, the convolutions of a ResNet-50 take 29 ms in one thread, 30 in blocks and 20 by OpenMP; those of a MobileNet-V2
5, 5.5 and 3.6.

OpenMP's threads wait for one another. Beside two busy programs each computation may cost a time slice, and the same
networks take 114 and 74 ms. An account therefore records the time that the team has saved over one thread. When it is
used up, the team rests, for longer the sooner that happens again, and one thread computes. The thread of an event loop
does not use the team, since waiting would block the loop.

Results do not depend on the number of threads. Matrix products are partitioned, and rounded, differently by another
number of threads, so the team does not compute them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

from aioflow.concurrency.threads import is_loops_thread
from aioflow_numpy.account import Account
from aioflow_numpy.crew import CREW
from aioflow_numpy.placing import processor_number, wake_elsewhere
from aioflow_numpy.threads import thread_count
from aioflow_onednn.library import library

_TRIALS: Final = 3  # runs in one thread after which their usual time counts as known
_LATEST: Final = 8  # approximate length of the moving average of times, which vary with the machine's load
_SHORT: Final = 4e-5  # seconds in one thread: below, two are hardly faster
_FRESH: Final = 0.05  # seconds for which the number of threads is cached


def size_of_team() -> int:
    """Return the number of OpenMP threads that a computation in this thread may use."""
    return thread_count() if library().has_team else 1


class Computation(Protocol):
    """A computation that may reserve the team.

    Attributes:
        runs, usual: Number of timed runs, and the usual seconds of a run.
        missed: Number of runs of the team since the last run in one thread.
        most_missed: Number of such runs after which one thread is timed again.
    """

    runs: int
    usual: float
    missed: int

    @property
    def most_missed(self) -> int:
        """See the attributes of the class."""

    def run(self, *args: Any) -> None:
        """Compute."""


class Team:
    """The reservation of OpenMP's threads by one computation at a time.

    Args:
        clock: Returns seconds.
        size: Returns the number of threads that a computation in this thread may use.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, size: Callable[[], int] = size_of_team) -> None:
        self.size, self._clock = size, clock
        self._reserved = threading.Lock()
        self._members = _Members()
        self._known = _Known()
        self._account = Account(clock)

    def reserve(self) -> int:
        """Reserve the team and return its number of threads; 1 if it is not available.

        If the number is above 1, the caller must call `back`.
        """
        now = self._clock()
        # Not waited for: while another computation has the team, one thread computes at once.
        if not self._account.is_open(now) or not self._reserved.acquire(blocking=False):
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
            CREW.call()  # the crew's helpers spin on processors that the team needs
        return size

    def back(self) -> None:
        """Release the team."""
        self._reserved.release()

    @staticmethod
    def is_for_one(alone: Computation) -> bool:
        """Return True if one thread should run a computation.

        That is the case if the computation is short, or its time in one thread is unknown or outdated.
        """
        return alone.runs < _TRIALS or alone.usual < _SHORT or alone.missed >= alone.most_missed

    def run(self, shared: Computation, alone: Computation, *args: Any) -> None:
        """Run and time `shared`, a computation by the team, or `alone`, the same in one thread.

        A caller that has not reserved the team passes `alone` for both.
        """
        begun = self._clock()
        if shared is alone:
            shared.run(*args)
        else:
            self._members.run(shared, args)
        took = self._clock() - begun
        if shared is alone:
            known = alone.usual
            # A run in which the thread was preempted counts as at most twice the usual time.
            alone.usual = took if alone.runs < 2 else known + (min(took, 2 * known) - known) / _LATEST
            alone.missed = 0
        elif shared.runs:  # the first run is slower
            self._account.enter(alone.usual - took)
            alone.missed += 1
        shared.runs += 1

    def disband(self) -> None:
        """End this thread's OpenMP threads before a fork, so that those of the child do not wait for them."""
        self._members.end()

    def renew(self) -> None:
        """Release the team in the child of a fork."""
        self._reserved = threading.Lock()


class _Known(threading.local):
    """The number of threads for this thread, and how long it is cached: finding it takes as long as a small layer."""

    size, until = 1, -math.inf


class _Members(threading.local):
    """The threads that OpenMP has made for this thread.

    They are woken on other processors than this thread's (see `aioflow_numpy.placing`), since this thread spins on its
    own.
    """

    def __init__(self) -> None:
        self._ids: list[int] | None = None  # unknown before the first computation
        self._away_from: int | None = None

    def run(self, shared: Computation, args: tuple[Any, ...]) -> None:
        if self._ids is None:
            before = _threads_of_the_process()
            try:
                shared.run(*args)
            finally:
                made = _threads_of_the_process() - before
                # Threads that Python has started meanwhile are not OpenMP's.
                self._ids = list(made - {thread.native_id for thread in threading.enumerate()})
            return
        here = processor_number()
        if here != self._away_from:
            self._away_from = here
            wake_elsewhere(self._ids)
        shared.run(*args)

    def end(self) -> None:
        """End the threads, if there are any."""
        if self._ids is not None:
            library().end_team()
            self._ids = self._away_from = None


def _threads_of_the_process() -> set[int]:
    # Python lists only threads that it has started or that have called it.
    return {int(name) for name in os.listdir("/proc/self/task")}


TEAM: Final = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=TEAM.disband, after_in_child=TEAM.renew)
