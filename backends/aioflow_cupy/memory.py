"""A device's memory: the pool of its arrays, an exact limit, and statistics."""

from __future__ import annotations

from typing import Any

from aioflow.errors import ResourceExhaustedError
from aioflow.runtime.backend_api import MemoryStats
from aioflow_cupy.driver import Pool


class DeviceMemory:
    """The allocator of one device.

    It enforces the limit itself, because the limit of CUDA's stream-ordered pool bounds only the memory kept for reuse,
    not the memory in use.
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
        """Return the memory statistics."""
        return MemoryStats(self._pool.used_bytes(), self._pool.total_bytes(), self._limit)

    def trim(self) -> None:
        """Release the memory that no array uses."""
        self._pool.free_all_blocks()
