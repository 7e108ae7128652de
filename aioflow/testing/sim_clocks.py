"""The clocks that hot code reads by itself, replaced for a simulation by virtual time.

Such code (how long a strand took, for how long the loop has been kept) reads `perf_counter` and `monotonic` straight
from its module, since a look-up of a clock would cost what is being measured. In virtual time a computation takes none,
so what depends on its length is the same every time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aioflow.net.remote_cluster
import aioflow.net.server
import aioflow.session.session  # noqa: F401  # all before a simulation: what is loaded in one would read the real clocks
from aioflow.testing.virtual_clock import VirtualClockLoop

__all__ = ["clocks_of"]

_CLOCKS: Final = {"perf_counter": time.perf_counter, "monotonic": time.monotonic}
_OURS: Final = "aioflow"  # the engine, and its backends


@contextmanager
def clocks_of(loop: VirtualClockLoop) -> Iterator[None]:
    """In the block, modules of aioflow that have imported a clock by its name read the loop's time."""
    found = [
        (module, name, clock)
        for key, module in list(sys.modules.items())
        if key.startswith(_OURS)
        for name, clock in _CLOCKS.items()
        if vars(module).get(name) is clock
    ]
    for module, name, _ in found:
        setattr(module, name, loop.time)
    try:
        yield
    finally:
        for module, name, clock in found:
            setattr(module, name, clock)
