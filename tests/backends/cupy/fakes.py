"""The CuPy backend on the fake driver."""

from __future__ import annotations

from typing import Any

from aioflow_cupy import backend as _backend  # noqa: F401  # registers the kernels
from aioflow_cupy.device import CupyDevice, CupySettings
from tests.backends.cupy.fake_arrays import FakeCupy
from tests.backends.cupy.fake_driver import FakeDriver

__all__ = ["PlainDevice", "small_lanes"]


class PlainDevice(CupyDevice):
    """The device's kernels over fake arrays, without streams, for tests of single ops."""

    def __init__(self) -> None:
        driver = FakeDriver()
        super().__init__(driver, 0, CupySettings())
        self.arrays = driver.xp = driver.extras = FakeCupy()

    @property
    def waited(self) -> int:
        """Number of times a kernel has made the host wait for the device."""
        return self.arrays.waited


def small_lanes(driver: FakeDriver, index: int = 0, lane_bytes: int = 64, **settings: Any) -> CupyDevice:
    """Return a device with small lanes, so that a few numbers are copied in several pieces."""
    return CupyDevice(driver, index, CupySettings(lane_bytes=lane_bytes, **settings))
