"""Arrays of other libraries: which stream waits for which, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow_cupy.dlpack import CUDA, is_on_gpu
from tests.backends.cupy.fake_driver import FakeDriver
from tests.backends.cupy.fakes import small_lanes


class Foreign:
    """Another library's array on a GPU: notes how it is asked for its capsule."""

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
        return Foreign(self.device, "a copy")


async def test_an_import_tells_the_producer_the_compute_stream() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    foreign = Foreign(array="theirs")
    assert await device.to_device(foreign) == "theirs"  # the memory itself
    assert foreign.asked == [{"stream": "compute"}]
    assert driver.words("upload", "pinned") == []


async def test_an_array_on_another_card_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await small_lanes(FakeDriver()).to_device(Foreign((CUDA, 3)))
    assert caught.value.expected == "DLPack device (2, 0)"
    assert caught.value.actual == (2, 3)


def test_what_is_on_the_gpu() -> None:
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
    assert own.asked == [{"stream": -1}]  # the array itself must not wait for what this thread's current stream is


def test_a_consumer_that_waits_itself_is_let() -> None:
    driver = FakeDriver()
    shared = small_lanes(driver).share(Foreign())
    driver.log.clear()
    shared.__dlpack__(stream=-1)
    assert driver.words("wait") == []


def test_versions_are_handed_on() -> None:
    own = Foreign()
    shared = small_lanes(FakeDriver()).share(own)
    shared.__dlpack__(stream=1, max_version=(1, 0))
    assert own.asked == [{"stream": -1, "max_version": (1, 0)}]
    assert shared.__dlpack_device__() == (CUDA, 0)


def test_a_copy_where_one_is_asked_for() -> None:
    own = Foreign(array="the array")
    assert small_lanes(FakeDriver()).share(own).__dlpack__(stream=1, copy=True) == "a copy"
    assert own.asked == []


def test_what_an_export_refuses() -> None:
    shared = small_lanes(FakeDriver()).share(Foreign())
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        shared.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="on DLPack device"):
        shared.__dlpack__(stream=1, dl_device=(1, 0))
