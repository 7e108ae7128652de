"""Measurements of this process: its peak memory and the lag of its event loop."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic
from typing import Final

_SAMPLES: Final = 5
_SLEEP: Final = 0.002  # seconds


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes, or 0 where the system does not report it."""
    try:
        import resource  # does not exist on Windows
    except ImportError:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, other systems KiB.
    return most if sys.platform == "darwin" else most << 10


async def loop_lag() -> float:
    """Return the largest delay of the event loop, in seconds, over several short sleeps."""
    longest = 0.0
    for _ in range(_SAMPLES):
        due = monotonic() + _SLEEP  # the loop's own clock may have a resolution of milliseconds
        await asyncio.sleep(_SLEEP)
        longest = max(longest, monotonic() - due)
    return longest
