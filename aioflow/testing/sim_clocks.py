"""The clocks that hot code reads directly, replaced by virtual time during a simulation.

Such code measures how long a strand took or how long the loop has been occupied. It reads `perf_counter` and
`monotonic` from its own module, since looking up a clock would cost as much as what it measures. In virtual time a
computation takes no time, so decisions that depend on durations are the same in every run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aioflow.net.remote_cluster
import aioflow.net.server
import aioflow.session.session  # noqa: F401  # loaded before a simulation: later imports would bind the real clocks
from aioflow.testing.virtual_clock import VirtualClockLoop

_CLOCKS: Final = {"perf_counter": time.perf_counter, "monotonic": time.monotonic}
_OURS: Final = "aioflow"  # a prefix: the engine and its backends


@contextmanager
def clocks_of(loop: VirtualClockLoop) -> Iterator[None]:
    """Make aioflow's modules that have imported a clock by name read the loop's time, for the duration of the block."""
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
