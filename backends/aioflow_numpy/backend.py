"""The NumPy backend object, and the kernels that override portable ones, which importing this module registers."""

from __future__ import annotations

from aioflow.kernels.registry import HOST
from aioflow_numpy import kernels as _kernels  # noqa: F401  # importing registers them
from aioflow_numpy.device import NumpyDevice

__all__ = ["NumpyBackend"]


class NumpyBackend:
    """The host's CPU, as one device or as several that share its memory."""

    name = "numpy"
    device_type = HOST

    def __init__(self) -> None:
        self._devices: dict[tuple[int, int], NumpyDevice] = {}

    def count(self) -> None:
        """None: as many as are wanted."""

    def describe(self, index: int) -> tuple[int | None, str]:
        """No limit of its own."""
        return None, "NumPy"

    def device(self, index: int, threads: int = 0) -> NumpyDevice:
        """The CPU device of that number with so many threads; the same object every time."""
        found = self._devices.get((index, threads))
        return found or self._devices.setdefault((index, threads), NumpyDevice(index, threads))
