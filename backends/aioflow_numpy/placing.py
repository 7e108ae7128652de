"""The choice of the processor on which a helper thread wakes.

The system wakes a thread on the processor of the thread that wakes it, and moves it to an idle one at the scheduler's
next tick; most kernels are done by then. Measured on two idle processors, 2.5 ms of elementwise work took 2.5 ms in
two threads, and takes 1.7 ms when the helper is woken on the other processor. The restriction is lifted as soon as the
helper runs: a pinned thread would wait for any other program on its processor.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

_FEW: int = 4  # processors: among more, the scheduler finds an idle one by itself


def wake_elsewhere(threads: Iterable[int]) -> set[int] | None:
    """Make sleeping threads wake up on another processor than this thread's.

    Args:
        threads: The system's thread numbers.

    Returns:
        The processors to pass to `roam` in the threads that have woken up, or None where nothing was done.
    """
    here = processor_number()
    if here is None:
        return None
    allowed = os.sched_getaffinity(0)
    # With one processor there is no other to choose.
    if not 1 < len(allowed) <= _FEW:
        return None
    elsewhere = allowed - {here}
    with suppress(OSError):  # the thread may have just ended, or the system may forbid it
        for thread in threads:
            os.sched_setaffinity(thread, elsewhere)
    return allowed


def roam(processors: set[int] | None) -> None:
    """Allow this thread to run on any of these processors again."""
    if processors is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)


def let_roam(threads: Iterable[int]) -> None:
    """Allow other threads to run on the processors that this one may use."""
    if hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        with suppress(OSError):
            for thread in threads:
                os.sched_setaffinity(thread, allowed)


def processor_number() -> int | None:
    """Return the number of the processor that runs this thread; None where the system does not report it."""
    get = _getter()
    return None if get is None else get()


@functools.cache
def _getter() -> Callable[[], int] | None:
    """Return the C library's `sched_getcpu`, or None if it is missing."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    # The call keeps the GIL (`PyDLL`), because its release would take longer than the call.
    found: Callable[[], int] | None = getattr(ctypes.PyDLL(None), "sched_getcpu", None)
    return found
