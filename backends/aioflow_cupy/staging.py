"""Page-locked host memory and matching device memory, through which values are copied in pieces.

The GPU copies asynchronously only from page-locked memory, which is expensive to allocate. So all copies share a few
*lanes*. A lane is reused after the event that was recorded behind its last copy, because the host must not write where
the GPU still reads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_cupy.driver import CudaDriver, Event
from aioflow_cupy.streams import DeviceStreams

LANE_BYTES: Final = 4 << 20
_LANES: Final = 8


class Lane:
    """A buffer of page-locked memory, and one of device memory of the same size.

    Attributes:
        host: The bytes of page-locked memory.
        consumed: The event after which the compute stream no longer reads `device`, or None.
    """

    __slots__ = ("_make", "consumed", "device_bytes", "host")

    def __init__(self, host: Array, make: Callable[[], Array]) -> None:
        self.host = host
        self._make = make
        self.device_bytes: Array | None = None
        self.consumed: Event | None = None

    @property
    def device(self) -> Array:
        """The device's bytes, allocated on first use."""
        if self.device_bytes is None:
            self.device_bytes = self._make()
        return self.device_bytes


class Lanes:
    """The lanes of a device. Any thread may take one."""

    def __init__(self, driver: CudaDriver, streams: DeviceStreams, size: int = LANE_BYTES, limit: int = _LANES) -> None:
        self.size = size
        self._driver = driver
        self._streams = streams
        self._limit = limit
        self._made = 0
        self._free: list[Lane] = []
        self._retired: deque[tuple[Event, Lane]] = deque()
        self._lock = threading.Lock()

    def take(self) -> Lane:
        """Return a lane whose host side may be written. If all lanes are in use by copies, wait for the oldest copy."""
        with self._lock:
            self._collect()
            if self._free:
                return self._free.pop()
            # Beyond the limit only if every lane is held by a caller and none by a copy.
            if self._made < self._limit or not self._retired:
                self._made += 1
                return Lane(self._driver.pinned(self.size), self._make_device)
            event, lane = self._retired.popleft()
        # Without the lock, so that other threads can take and return lanes meanwhile.
        event.synchronize()
        return lane

    def give_back(self, lane: Lane, event: Event | None) -> None:
        """Return a lane for reuse after the event, or at once if `event` is None."""
        with self._lock:
            if event is None:
                self._free.append(lane)
            else:
                self._retired.append((event, lane))

    def clear(self) -> None:
        """Drop all lanes. No copy may be in progress."""
        with self._lock:
            self._free.clear()
            self._retired.clear()
            self._made = 0

    def _collect(self) -> None:
        waiting: deque[tuple[Event, Lane]] = deque()
        for event, lane in self._retired:
            if event.done:
                self._free.append(lane)
            else:
                waiting.append((event, lane))
        self._retired = waiting

    def _make_device(self) -> Array:
        with self._streams.computing():
            found: Array = self._driver.xp.empty(self.size, np.uint8)
            return found
