"""Random numbers that cannot be guessed, for processes and steps.

If the running event loop has a random generator (`random`), the numbers come from it instead, so that runs on that
loop are reproducible. `aioflow.testing.virtual_clock.VirtualClockLoop` has one.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import suppress


def fresh_number(bits: int) -> int:
    """Return a random number of at most this many bits, not 0."""
    source: random.Random | None = None
    with suppress(RuntimeError):  # no loop is running
        source = getattr(asyncio.get_running_loop(), "random", None)
    return (secrets.randbits(bits) if source is None else source.getrandbits(bits)) or 1
