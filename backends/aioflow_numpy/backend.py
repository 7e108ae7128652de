"""The NumPy backend object. The import of this module registers the kernels that override portable ones."""

from __future__ import annotations

from aioflow.kernels.registry import HOST
from aioflow_numpy import kernels as _kernels  # noqa: F401  # importing registers them
from aioflow_numpy.device import NumpyDevice


class NumpyBackend:
    """The host's CPU, as one device or as several that share its memory."""

    name = "numpy"
    device_type = HOST

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], NumpyDevice] = {}

    def count(self) -> None:
        """Return None: there are as many devices as requested."""

    def describe(self, index: int) -> tuple[int | None, str]:
        """Return no memory limit, and the name."""
        return None, "NumPy"

    def device(self, index: int, threads: int = 0) -> NumpyDevice:
        """Return the CPU device of that number with that many threads, the same object every time."""
        found = self._devices.get((index, threads))
        # `setdefault`: of two threads that make a device at once, both must get the same one.
        return found or self._devices.setdefault((index, threads), NumpyDevice(index, threads))
