"""Ownership of fetched values: a value without other references is returned as it is, others are copied in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aioflow.errors import CancelledError, ResourceExhaustedError
from aioflow.memory.copying import copied
from aioflow.runtime.handing_over import Unfinished, copied_in_thread, is_large, large_bytes
from aioflow.runtime.step import Step

NODE: Any = SimpleNamespace(name="made", op="Fill", source=None)
SIZE = 3 << 20  # elements: several blocks of a copy


def address(value: Any) -> int:
    return int(value.__array_interface__["data"][0])


def whole() -> Any:
    return np.zeros(SIZE, np.float32)


@pytest.mark.parametrize(
    "make",
    [whole, lambda: whole().reshape(3, -1), lambda: whole().reshape(3, -1).T, lambda: whole()[: SIZE // 2 + 1]],
    ids=["array", "reshaped", "transposed", "more than half"],
)
async def test_value_without_other_references_is_not_copied(make: Callable[[], Any]) -> None:
    values = [make()]
    before = address(values[0])
    (made,) = await Unfinished(values, {0: NODE}, None).finish()
    assert address(made) == before


def _read_only() -> Any:
    made = whole()
    made.flags.writeable = False
    return made


@pytest.mark.parametrize(
    "make",
    [
        _read_only,
        lambda: whole()[: SIZE // 8],
        lambda: np.broadcast_to(np.zeros((), np.float32), (SIZE,)),
        lambda: np.frombuffer(bytearray(4 * SIZE), np.float32),
    ],
    ids=["read-only", "a small part", "one place for many elements", "memory of something else"],
)
async def test_value_that_does_not_own_its_whole_memory_is_copied(make: Callable[[], Any]) -> None:
    values = [make()]
    before = address(values[0])
    made: Any
    (made,) = await Unfinished(values, {0: NODE}, None).finish()
    assert address(made) != before
    assert made.flags.writeable
    assert made.base is None


async def test_value_with_other_references_is_copied() -> None:
    held, behind = whole(), whole()
    made, twin, view, other = await Unfinished(
        [held, held, behind[::1], whole()], dict.fromkeys(range(3), NODE), None
    ).finish()
    assert len({address(value) for value in (held, behind, made, twin, view, other)}) == 6


async def test_copies_are_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    held, threads = whole(), list[int]()

    def noted(value: Any) -> Any:
        threads.append(threading.get_ident())
        return copied(value)

    monkeypatch.setattr("aioflow.runtime.handing_over.copied", noted)
    await Unfinished([held], {0: NODE}, None).finish()
    assert threads
    assert threading.get_ident() not in threads


async def test_too_large_value_names_its_node() -> None:
    view = np.broadcast_to(np.zeros((), bool), (1 << 40,))
    with pytest.raises(ResourceExhaustedError) as raised:
        await Unfinished([view], {0: NODE}, 1 << 30).finish()
    assert raised.value.node == "made"


async def test_stopped_step_makes_no_further_copies() -> None:
    step = Step()
    step.stop()
    with pytest.raises(CancelledError):
        await Unfinished([whole(), whole()], {0: NODE}, None).finish(step)
    with pytest.raises(CancelledError):
        await copied_in_thread([whole()], step, None)


async def test_copied_in_thread_copies_arrays_and_keeps_numbers() -> None:
    array = whole()
    made, number = await copied_in_thread([array, 3], Step(), None)
    assert number == 3
    assert not np.shares_memory(made, array)


def test_value_is_large_if_its_copy_exceeds_the_inline_budget() -> None:
    assert large_bytes(0) > 0
    assert large_bytes(1) > large_bytes(1e-3)
    assert is_large(whole(), large_bytes(1e-4))
    assert not is_large(whole(), large_bytes(10))
    assert not is_large("text", 0)
