"""Page-locked host memory, and the device memory opposite, through which values travel in pieces.

The GPU copies asynchronously only from page-locked memory, which is expensive to allocate; so there are a few *lanes*
for all copies. A lane is given out again when the event that was recorded after its last copy has passed: the host may
not write where the GPU still reads.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

import numpy as np

from aioflow_cupy.driver import Driver
from aioflow_cupy.streams import Streams

__all__ = ["LANE_BYTES", "Lane", "Lanes"]

LANE_BYTES: Final = 4 << 20
_LANES: Final = 8


class Lane:
    """A piece of page-locked memory, and one of the device's memory of the same size.

    Attributes:
        host, device: Their bytes; `device` is made when it is first needed.
        consumed: The event after which the compute stream no longer reads `device`, or None.
    """

    __slots__ = ("_make", "consumed", "device_bytes", "host")

    def __init__(self, host: Any, make: Any) -> None:
        self.host = host
        self._make = make
        self.device_bytes: Any = None
        self.consumed: Any = None

    @property
    def device(self) -> Any:
        """The device's bytes."""
        if self.device_bytes is None:
            self.device_bytes = self._make()
        return self.device_bytes


class Lanes:
    """The lanes of a device. Any thread may take one."""

    def __init__(self, driver: Driver, streams: Streams, size: int = LANE_BYTES, limit: int = _LANES) -> None:
        self.size = size
        self._driver = driver
        self._streams = streams
        self._limit = limit
        self._made = 0
        self._free: list[Lane] = []
        self._retired: deque[tuple[Any, Lane]] = deque()
        self._lock = threading.Lock()

    def take(self) -> Lane:
        """A lane whose host side may be written. Waits for the oldest copy where all lanes are under way."""
        with self._lock:
            self._collect()
            if self._free:
                return self._free.pop()
            if self._made < self._limit or not self._retired:  # every lane out and none under way: one more
                self._made += 1
                return Lane(self._driver.pinned(self.size), self._make_device)
            event, lane = self._retired.popleft()
        event.synchronize()
        return lane

    def give_back(self, lane: Lane, event: Any) -> None:
        """Whoever took the lane is done with it when the event has passed; None for now."""
        with self._lock:
            if event is None:
                self._free.append(lane)
            else:
                self._retired.append((event, lane))

    @property
    def under_way(self) -> int:
        """How many lanes wait for their event."""
        with self._lock:
            self._collect()
            return len(self._retired)

    def clear(self) -> None:
        """Forget all lanes, when nothing is under way."""
        with self._lock:
            self._free.clear()
            self._retired.clear()
            self._made = 0

    def _collect(self) -> None:
        waiting: deque[tuple[Any, Lane]] = deque()
        for event, lane in self._retired:
            if event.done:
                self._free.append(lane)
            else:
                waiting.append((event, lane))
        self._retired = waiting

    def _make_device(self) -> Any:
        with self._streams.computing():
            return self._driver.xp.empty(self.size, np.uint8)
