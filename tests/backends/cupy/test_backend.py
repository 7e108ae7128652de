"""Tests of the backend object: it imports without CuPy, reports what is missing, and accepts a machine without GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioflow.errors import NotFoundError
from aioflow.kernels.registry import KERNELS
from aioflow.release import install_command_for
from aioflow_cupy import driver
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


@pytest.mark.parametrize("supported", [0, 1])
def test_stream_ordered_pool_keeps_its_free_memory(supported: int) -> None:
    class Pool:
        limit = 0

        def __init__(self) -> None:
            warnings.warn("the pool is experimental", FutureWarning, stacklevel=2)  # as CuPy 13 does

        def set_limit(self, size: int) -> None:
            self.limit = size

    runtime = SimpleNamespace(deviceGetAttribute=lambda name, device: supported, cudaDevAttrMemoryPoolsSupported=115)
    cuda = SimpleNamespace(
        runtime=runtime, Device=contextlib.nullcontext, MemoryAsyncPool=Pool, MemoryPool=lambda: "CuPy's own pool"
    )
    found = CupyDriver(SimpleNamespace(cuda=cuda), None).pool(0)
    if supported:
        assert found.limit >= 2**60
    else:
        assert found == "CuPy's own pool"


def test_generators_repeat_by_seed() -> None:
    device = CupyBackend(FakeDriver()).device(0)
    with device.streams.computing():
        draws = [device.generator(3, seed).random(4).raw.tolist() for seed in (5, 5, 6)]
        fresh = [device.generator(0, 0).random(4).raw.tolist() for _ in range(2)]
    assert draws[0] == draws[1] != draws[2]
    assert fresh[0] != fresh[1]


def test_kernels_are_registered() -> None:
    assert {"Conv2D", "MaxPool", "OneHot", "Gather"} <= {k.op for k in KERNELS if k.device_type == "GPU"}


@pytest.mark.parametrize(
    ("version", "commands"),
    [
        (0, ["pip install 'aioflow-engine[cupy]'", "pip install 'aioflow-engine[cupy13]'"]),
        (11, ["pip install 'aioflow-engine[cupy]'"]),
        (12, ["pip install 'aioflow-engine[cupy]'"]),
        (13, ["pip install 'aioflow-engine[cupy13]'"]),
    ],
)
def test_missing_cupy_is_answered_with_the_package_for_the_driver(
    monkeypatch: pytest.MonkeyPatch, version: int, commands: list[str]
) -> None:
    monkeypatch.setattr(driver, "cuda_version", lambda: version)
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import raises ImportError
    with pytest.raises(ImportError) as caught:
        driver.load_driver()
    assert re.findall(r"pip install '[^']+'", str(caught.value)) == commands
    assert install_command_for(caught.value, "cupy") == " or ".join(commands)


def test_every_extra_named_by_the_driver_exists() -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"]
    for cupy, cudnn, version in (("cupy", "cudnn", "12"), ("cupy13", "cudnn13", "13")):
        assert [package.partition(">")[0] for package in extras[cupy]] == [f"cupy-cuda{version}x"]
        assert [package.partition(">")[0] for package in extras[cudnn]] == [
            f"aioflow-engine[{cupy}]",
            "nvidia-cudnn-frontend",
            f"nvidia-cudnn-cu{version}",
        ]


def test_cuda_version_is_zero_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver.cuda_version() == 0


def test_cuda_version_is_the_major_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(version: Any) -> int:
        version._obj.value = 13020
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=answer))
    assert driver.cuda_version() == 13
