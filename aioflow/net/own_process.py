"""What a process says of itself: its memory, and how long its event loop keeps others waiting."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic
from typing import Final

__all__ = ["loop_lag", "peak_memory"]

_SAMPLES: Final = 5
_SLEEP: Final = 0.002  # seconds


def peak_memory() -> int:
    """The most bytes that it has had in memory at once; 0 where the system does not say."""
    try:
        import resource  # there is none on Windows
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


async def loop_lag() -> float:
    """By how many seconds the loop is late at the most, when it is asked several times to come back in a moment."""
    longest = 0.0
    for _ in range(_SAMPLES):
        due = monotonic() + _SLEEP  # the loop's own clock may know milliseconds only
        await asyncio.sleep(_SLEEP)
        longest = max(longest, monotonic() - due)
    return longest
