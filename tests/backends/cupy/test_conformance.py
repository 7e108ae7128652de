"""`check_backend` on the NumPy backend, on the CuPy backend over the fake driver, and on faulty backends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioflow.errors import InternalError
from aioflow.runtime.executor import DeviceThreads
from aioflow.testing.check_backend import CHECKS, check_backend
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.device import CupySettings
from aioflow_numpy.backend import NumpyBackend, NumpyDevice
from tests.backends.cupy.fake_driver import FakeDriver


class Card(NumpyDevice):
    """The host's device, with its own executor thread."""

    def __init__(self) -> None:
        self.executor: Any = DeviceThreads("-card", 1)


class Cards:
    """A backend with one `Card`."""

    name, device_type = "cards", "CPU"
    make: type[Card] = Card

    def __init__(self) -> None:
        self.card = self.make()

    def count(self) -> int:
        return 1

    def describe(self, index: int) -> tuple[int | None, str]:
        return None, "NumPy"

    def device(self, index: int, threads: int = 0) -> Any:
        return self.card


def one_gpu() -> CupyBackend:
    return CupyBackend(FakeDriver())


def two_gpus() -> CupyBackend:
    return CupyBackend(FakeDriver(2))


def a_limited_gpu() -> CupyBackend:
    return CupyBackend(FakeDriver(), CupySettings(memory_limit=1 << 26, lane_bytes=1000))


@pytest.mark.parametrize("factory", [NumpyBackend, Cards, one_gpu, two_gpus, a_limited_gpu])
async def test_conforms(factory: Callable[[], Any]) -> None:
    results = await check_backend(factory)
    assert [r.name for r in results] == [c.__name__ for c in CHECKS]
    assert all(r.problem is None and r.about for r in results)


class _Lossy(Card):
    async def to_device(self, value: Any) -> Any:
        return np.array(value, np.float32 if value.dtype == np.float64 else value.dtype)


class _Sharing(Card):
    async def to_device(self, value: Any) -> Any:
        return value


class _Lending(Card):
    async def to_host(self, value: Any) -> Any:
        return value


class _Blind(Card):
    def on_host(self, value: Any) -> Any:
        return value if isinstance(value, bytes) else None


class _Hasty(Card):
    """A device whose executor returns at once when it is cancelled."""

    def __init__(self) -> None:
        self.executor = self

    async def run(self, step: Any, function: Any, *args: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *args)
        finally:
            asyncio.get_running_loop().call_later(0.05, setattr, step, "requested", True)


@pytest.mark.parametrize(
    ("card", "found"),
    [
        (_Lossy, "round_trip"),
        (_Sharing, "snapshots"),
        (_Lending, "snapshots"),
        (_Blind, "seen_by_the_host"),
        (_Hasty, "cancellation_waits"),
    ],
)
async def test_faulty_device_fails_the_right_check(card: type[Card], found: str) -> None:
    class Wrong(Cards):
        make = card

    results = await check_backend(Wrong, complete=True)
    assert [r.name for r in results if r.problem is not None] == [found]
    with pytest.raises(InternalError, match="does not conform"):
        await check_backend(Wrong)
