"""A device's memory: the pool that its arrays come from, an exact limit on it, and what is in use."""

from __future__ import annotations

from typing import Any

from aioflow.errors import ResourceExhaustedError
from aioflow.runtime.backend_api import MemoryStats
from aioflow_cupy.driver import Pool

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """Allocates for one device.

    The limit is kept here, since that of CUDA's stream-ordered pool is only what it may hold back, not what it may use.
    """

    def __init__(self, pool: Pool, limit: int | None) -> None:
        self._pool = pool
        self._limit = limit
        self.allocate: Any = pool.malloc if limit is None else self._within_limit

    def _within_limit(self, size: int) -> Any:
        if self._limit is not None and self._pool.used_bytes() + size > self._limit:
            used = self._pool.used_bytes()
            raise ResourceExhaustedError(
                "the memory limit of the device does not allow another array",
                expected=f"at most {self._limit} bytes",
                actual=f"{size} bytes more than the {used} in use",
            )
        return self._pool.malloc(size)

    def stats(self) -> MemoryStats:
        """What is in use."""
        return MemoryStats(self._pool.used_bytes(), self._pool.total_bytes(), self._limit)

    def trim(self) -> None:
        """Give back what no array uses."""
        self._pool.free_all_blocks()
