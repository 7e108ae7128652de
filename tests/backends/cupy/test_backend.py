"""Tests of the backend object: it imports without CuPy, reports what is missing, and accepts a machine without GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aioflow.errors import NotFoundError
from aioflow.kernels.registry import KERNELS
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.driver import CupyDriver
from tests.backends.cupy.fake_driver import FakeDriver


def test_devices_by_index() -> None:
    backend = CupyBackend(FakeDriver(2))
    assert (backend.name, backend.device_type, backend.count()) == ("cupy", "GPU", 2)
    assert backend.device(1).index == 1
    assert backend.device(1) is backend.device(1)
    with pytest.raises(NotFoundError) as caught:
        backend.device(2)
    assert caught.value.expected == "one of 2 GPUs"


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    class CudaError(RuntimeError):
        pass

    def count() -> int:
        raise CudaError("cudaErrorInsufficientDriver")

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=CudaError)
    cupy: Any = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    assert CupyBackend(CupyDriver(cupy, None)).count() == 0


def test_generators_repeat_by_seed() -> None:
    device = CupyBackend(FakeDriver()).device(0)
    with device.streams.computing():
        draws = [device.generator(3, seed).random(4).raw.tolist() for seed in (5, 5, 6)]
        fresh = [device.generator(0, 0).random(4).raw.tolist() for _ in range(2)]
    assert draws[0] == draws[1] != draws[2]
    assert fresh[0] != fresh[1]


def test_kernels_are_registered() -> None:
    assert {"Conv2D", "MaxPool", "OneHot", "Gather"} <= {k.op for k in KERNELS if k.device_type == "GPU"}
