"""Tests of copies between host and device: their order, the reuse of memory, and intact values."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from aioflow.errors import ResourceExhaustedError
from aioflow.runtime.step import Step
from tests.backends.cupy.fake_driver import FakeDriver, RaceError
from tests.backends.cupy.fakes import small_lanes

NUMBERS = np.arange(40, dtype=np.float32)  # 160 bytes: three lanes of 64


async def test_upload_is_split_into_pieces_ordered_by_events() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    driver.log.clear()
    array = device.transfers.upload(NUMBERS)
    piece = [
        ("pinned", "64"),
        ("record", "compute", "compute"),  # the lane's device memory has been allocated
        ("wait", "upload", "compute"),
        ("upload", "upload"),
        ("record", "upload", "upload"),  # arrived
        ("wait", "compute", "upload"),
        ("record", "compute", "compute"),  # consumed
    ]
    # The lane is free, and its device memory when the compute stream has read it.
    again = [("wait", "upload", "compute"), *piece[3:]]
    assert driver.words("pinned", "record", "wait", "upload") == piece + again * 2
    assert (await device.transfers.download(array)).tolist() == NUMBERS.tolist()


async def test_lane_is_reused_only_after_its_copy() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    device.transfers.upload(NUMBERS[:16])
    device.transfers.upload(NUMBERS[16:32])
    assert driver.words("pinned") == [("pinned", "64")] * 2  # the first copy is still running
    driver.advance("upload")
    device.transfers.upload(NUMBERS[:4])
    assert len(driver.words("pinned")) == 2


async def test_upload_with_all_lanes_busy_waits_for_the_oldest_copy() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    array = device.transfers.upload(np.arange(200, dtype=np.float32))  # 13 pieces, 8 lanes
    assert len(driver.words("pinned")) == 8
    assert [e[1].split("#")[0] for e in driver.log if e[0] == "synchronize"] == ["upload"] * 5
    driver.passes_at_once = True
    driver.advance()
    assert (await device.transfers.download(array)).tolist() == list(range(200))


async def test_download_waits_for_the_computation() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    array = device.transfers.upload(NUMBERS[:8])
    doubled = await device.executor.run(Step(), lambda a: a + a, array)
    driver.log.clear()
    fetched = device.transfers.download(doubled)
    assert driver.words("record", "wait", "download") == [
        ("record", "compute", "compute"),
        ("wait", "download", "compute"),
        ("download", "download"),
        ("record", "download", "download"),
    ]
    assert (await fetched).tolist() == (2 * NUMBERS[:8]).tolist()


async def test_download_lane_is_free_after_the_host_has_read_it() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    array = device.transfers.upload(NUMBERS[:8])
    driver.advance()
    first, second = device.transfers.download(array), device.transfers.download(array)
    made = len(driver.words("pinned"))
    assert made == 2  # one is the upload's, reused
    driver.advance()
    await first
    await second
    device.transfers.download(array)
    assert len(driver.words("pinned")) == made
    driver.advance()


async def test_small_result_is_not_overwritten_by_the_next() -> None:
    device = small_lanes(FakeDriver())
    first = await device.transfers.download(device.transfers.upload(NUMBERS[:4]))
    second = await device.transfers.download(device.transfers.upload(NUMBERS[4:8]))  # through the same lane
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])


async def test_large_result_has_its_own_page_locked_memory() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    array = device.transfers.upload(NUMBERS)
    first = await device.transfers.download(array)
    second = await device.transfers.download(array)
    first[:] = -1
    assert second.tolist() == NUMBERS.tolist()
    assert driver.words("pinned")[-2:] == [("pinned", "160")] * 2


async def test_cancelled_download_returns_its_lane() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    array = device.transfers.upload(NUMBERS[:8])
    driver.advance()
    device.transfers.download(array).cancel()
    driver.passes_at_once = True
    driver.advance()
    await device.synchronize()
    made = len(driver.words("pinned"))
    assert (await device.transfers.download(array)).tolist() == NUMBERS[:8].tolist()
    assert len(driver.words("pinned")) == made


async def test_array_is_kept_during_its_download() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    array: Any = device.transfers.upload(NUMBERS[:8])
    driver.advance()
    memory = weakref.ref(array.memory)
    fetched = device.transfers.download(array)
    del array
    gc.collect()
    assert memory() is not None
    driver.advance()
    await fetched
    for _ in range(500):
        gc.collect()
        if memory() is None:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the array is still held")


async def test_copy_from_gpu_to_gpu() -> None:
    driver = FakeDriver(2)
    first, second = small_lanes(driver, 0), small_lanes(driver, 1)
    array = first.transfers.upload(NUMBERS)
    driver.log.clear()
    copied = second.copy_from(array, first)
    assert driver.words("record", "wait", "peer")[:3] == [
        ("record", "compute0", "compute0"),
        ("wait", "compute1", "compute0"),
        ("peer", "compute1"),
    ]
    assert (await second.transfers.download(copied)).tolist() == NUMBERS.tolist()
    assert second.copy_from(copied, second) is copied


async def test_copy_between_unconnected_gpus_goes_through_the_host() -> None:
    driver = FakeDriver(2, neighbours=False)
    first, second = small_lanes(driver, 0), small_lanes(driver, 1)
    array = first.transfers.upload(NUMBERS)
    driver.log.clear()
    copied = second.copy_from(array, first)
    moved = [entry for entry in driver.words("download", "upload", "wait") if entry != ("wait", "upload1", "compute1")]
    assert moved[:4] == [
        ("wait", "download0", "compute0"),
        ("download", "download0"),
        ("wait", "upload1", "download0"),
        ("upload", "upload1"),
    ]
    assert (await second.transfers.download(copied)).tolist() == NUMBERS.tolist()


async def test_memory_limit_is_enforced() -> None:
    driver = FakeDriver()
    device = small_lanes(driver, memory_limit=400)
    array = device.transfers.upload(NUMBERS)  # 160 bytes, and a lane of 64
    assert device.memory().used == 224
    with pytest.raises(ResourceExhaustedError) as caught:
        device.transfers.upload(np.zeros(60, np.float32))
    assert caught.value.expected == "at most 400 bytes"
    del array
    gc.collect()
    device.transfers.upload(np.zeros(60, np.float32))
    assert device.memory().limit == 400


async def test_empty_and_scalar_values() -> None:
    device = small_lanes(FakeDriver())
    for value in (np.zeros((0, 3), np.int64), np.float32(2.5), np.array(True)):
        back = await device.transfers.download(device.transfers.upload(value))
        assert back.shape == np.shape(value)
        assert back.tolist() == value.tolist()


async def test_strings_and_handles_stay_on_the_host() -> None:
    device = small_lanes(FakeDriver())
    text, handle = np.array([b"a"], object), object()
    assert await device.to_device(text) is text
    assert await device.to_device(handle) is handle
    assert (await device.to_host(text)).tolist() == [b"a"]


def test_fake_driver_finds_a_race() -> None:
    """Two streams use one array, with and without an event between; the tests above rely on this check."""
    driver = FakeDriver()
    compute, other = driver.stream(0), driver.stream(0)
    with driver.current(0, compute, None):
        array = driver.xp.zeros(4)
    with pytest.raises(RaceError), driver.current(0, other, None):
        array + 1
    event = driver.event(0)
    compute.record(event)
    other.wait_event(event)
    with driver.current(0, other, None):
        array + 1
    with pytest.raises(RaceError), driver.current(0, compute, None):
        array[...] = 2  # the other stream may still be reading
