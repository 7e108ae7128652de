"""Recycling of memory: a block is reused once nothing refers to it, and never before."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aioflow.memory.values import Array
from aioflow.net.tensor_format import Blocks

FLOAT = np.dtype("<f4")


def blocks(room: int = 4000) -> Blocks:
    return Blocks(room, smallest=100)


def test_dropped_array_returns_its_block_for_reuse() -> None:
    found = blocks()
    array = found.empty((10, 10), FLOAT)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == ((10, 10), FLOAT, True, True)
    place = array.ctypes.data
    assert found.waiting == 0
    del array
    assert found.waiting == 400
    again = found.empty((50,), np.dtype("<f8"))
    assert again.ctypes.data == place
    assert found.waiting == 0


def _exported(array: Array) -> Any:
    return (ctypes.c_char * array.nbytes).from_buffer(array.data)


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[3:5],
        lambda a: a.reshape(-1).view(np.uint8)[8:],
        lambda a: a.T,
        memoryview,
        lambda a: memoryview(a)[2:4],
        lambda a: np.asarray(memoryview(a)),
        lambda a: np.from_dlpack(a),
        lambda a: a.base,
        lambda a: a.base[1:],
        lambda a: np.broadcast_to(a, (3, 10, 10)),
        lambda a: a.flat,
        _exported,
    ],
)
def test_block_with_any_remaining_reference_is_not_reused(hold: Callable[[Array], Any]) -> None:
    found = blocks()
    array = found.empty((10, 10), FLOAT)
    array[...] = 7.0
    held = hold(array)
    del array
    gc.collect()
    assert found.waiting == 0
    found.empty((10, 10), FLOAT)[...] = 8.0
    before = found.waiting  # the block of the second array
    seen = np.asarray(held)
    assert set(seen.tobytes()) == set(np.full(1, 7, FLOAT).tobytes())
    del held, seen
    gc.collect()
    assert found.waiting == before + 400


def test_waiting_blocks_are_bounded_and_the_oldest_is_dropped() -> None:
    found = blocks(room=1000)
    arrays = [found.empty((size,), np.dtype(np.uint8)) for size in (300, 400, 500, 1001)]
    while arrays:
        arrays.pop(0)
    assert found.waiting == 900
    found.empty((300,), np.dtype(np.uint8))
    assert found.waiting == 800, "a new block of 300, and the oldest, of 400, is gone"


def test_small_and_empty_arrays_are_not_recycled() -> None:
    found = blocks()
    for shape in ((24,), (), (0, 1000)):
        array = found.empty(shape, FLOAT)
        assert array.shape == shape
        assert array.base is None


def test_arrays_may_be_dropped_in_other_threads() -> None:
    found = blocks(room=1 << 20)
    arrays = [found.empty((100,), FLOAT) for _ in range(400)]
    assert len({array.ctypes.data for array in arrays}) == 400

    def drop() -> None:
        for _ in range(100):
            arrays.pop()

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < found.waiting <= 160_000
    again = [found.empty((100,), FLOAT) for _ in range(400)]
    assert len({array.ctypes.data for array in again}) == 400, "no block is lent twice"
    assert found.waiting == 0
