"""Numbers that nobody can guess: of processes and of steps.

An event loop that has a source of chance of its own (`random`, as `aioflow.testing.VirtualClockLoop` has) gives them
instead, so that what runs on it runs the same again.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import suppress

__all__ = ["fresh_number"]


def fresh_number(bits: int) -> int:
    """A random number of so many bits, not 0."""
    source: random.Random | None = None
    with suppress(RuntimeError):  # no loop is running
        source = getattr(asyncio.get_running_loop(), "random", None)
    return (secrets.randbits(bits) if source is None else source.getrandbits(bits)) or 1
