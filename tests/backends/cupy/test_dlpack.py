"""Tests of DLPack import and export: which stream waits for which, and which requests are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow_cupy.dlpack import CUDA, is_on_gpu
from tests.backends.cupy.fake_driver import FakeDriver
from tests.backends.cupy.fakes import small_lanes


class Foreign:
    """Another library's array on a GPU, which records the options of each `__dlpack__` call."""

    def __init__(self, device: tuple[int, int] = (CUDA, 0), array: Any = None) -> None:
        self.device = device
        self.asked: list[dict[str, Any]] = []
        self.array = array
        self.shape = (2,)
        self.dtype = np.dtype(np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.array

    def copy(self) -> Foreign:
        return Foreign(self.device, "a copy" if isinstance(self.array, str) else self.array.copy())


async def test_import_passes_the_compute_stream_to_the_producer() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    foreign = Foreign(array="theirs")
    assert await device.to_device(foreign) == "theirs"  # the same memory, not a copy
    assert foreign.asked == [{"stream": "compute"}]
    assert driver.words("upload", "pinned") == []


async def test_array_on_another_gpu_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await small_lanes(FakeDriver()).to_device(Foreign((CUDA, 3)))
    assert caught.value.expected == "DLPack device (2, 0)"
    assert caught.value.actual == (2, 3)


def test_is_on_gpu() -> None:
    assert is_on_gpu(Foreign())
    assert is_on_gpu(Foreign((13, 0)))  # managed memory
    assert not is_on_gpu(np.ones(2))
    assert not is_on_gpu(2.0)


@pytest.mark.parametrize(
    ("stream", "waits"), [(None, "external1"), (1, "external1"), (2, "external2"), (4711, "external4711")]
)
def test_an_export_makes_the_consumers_stream_wait_for_compute(stream: int | None, waits: str) -> None:
    driver = FakeDriver()
    device, own = small_lanes(driver), Foreign(array="a capsule")
    shared = device.share(own)
    driver.log.clear()
    assert shared.__dlpack__(stream=stream) == "a capsule"
    assert driver.words("wait") == [("wait", waits, "compute")]
    # -1: the array itself must not wait for whatever stream is current in this thread.
    assert own.asked == [{"stream": -1}]


def test_stream_minus_one_adds_no_wait() -> None:
    driver = FakeDriver()
    shared = small_lanes(driver).share(Foreign())
    driver.log.clear()
    shared.__dlpack__(stream=-1)
    assert driver.words("wait") == []


def test_max_version_is_passed_on() -> None:
    own = Foreign()
    shared = small_lanes(FakeDriver()).share(own)
    shared.__dlpack__(stream=1, max_version=(1, 0))
    assert own.asked == [{"stream": -1, "max_version": (1, 0)}]
    assert shared.__dlpack_device__() == (CUDA, 0)


def test_copy_is_made_on_request() -> None:
    own = Foreign(array="the array")
    assert small_lanes(FakeDriver()).share(own).__dlpack__(stream=1, copy=True) == "a copy"
    assert own.asked == []


@pytest.mark.parametrize("stream", [None, 4711])
def test_consumers_stream_waits_for_the_copy(stream: int | None) -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    with device.streams.computing():
        own = Foreign(array=driver.xp.ones((2,), np.float32))
    copy = device.share(own).__dlpack__(stream=stream, copy=True)
    assert copy.memory is not own.array.memory
    with driver.current(0, driver.external_stream(0, stream or 1), None):
        copy.sum()  # a RaceError if the stream does not wait for the copy


def test_export_rejects_stream_zero_and_other_devices() -> None:
    shared = small_lanes(FakeDriver()).share(Foreign())
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        shared.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="on DLPack device"):
        shared.__dlpack__(stream=1, dl_device=(1, 0))
