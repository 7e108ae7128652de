"""Cooperative stopping of work, limits on the size of values, and copies that respect both."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from aioflow.concurrency.stopping import (
    BoundedWork,
    OffloadToThread,
    Stoppable,
    Stopped,
    Work,
    batches,
    blocks,
    checkpoint,
    critical_section,
    current_work,
    doing,
    largest_value,
    reserve,
    value_limit,
)
from aioflow.errors import ResourceExhaustedError
from aioflow.memory.copying import copied, copy_into, put, row_blocks


def stopped() -> Stoppable:
    """Return work that has been asked to stop."""
    work = Stoppable(effects=False)
    work.stop()
    return work


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoint_does_nothing_without_work() -> None:
    assert current_work() is None
    checkpoint()
    with critical_section():
        checkpoint()


def test_stopped_work_ends_at_its_next_checkpoint() -> None:
    work = Stoppable()
    doing(work, checkpoint)
    work.stop()
    with pytest.raises(Stopped):
        doing(work, checkpoint)


def test_except_exception_does_not_catch_stopped() -> None:
    assert not issubclass(Stopped, Exception)
    assert not issubclass(OffloadToThread, Exception)


def test_current_work_is_nested_and_local_to_the_thread() -> None:
    outer, inner, seen = Work(), Work(), list[Any]()

    def nested() -> None:
        doing(inner, lambda: seen.append(current_work()))
        seen.append(current_work())
        thread = threading.Thread(target=lambda: seen.append(current_work()))
        thread.start()
        thread.join()

    doing(outer, nested)
    assert seen == [inner, outer, None]
    with pytest.raises(ZeroDivisionError):
        doing(outer, lambda: 1 / 0)
    assert current_work() is None


def test_stop_calls_watchers() -> None:
    work, told = Stoppable(), list[int]()
    work.watchers += [lambda: told.append(1), lambda: told.append(2)]
    work.stop()
    assert told == [1, 2]
    assert work.requested


def test_blocks_cover_the_range_with_checkpoints_between() -> None:
    assert list(blocks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(blocks(0, 3)) == []
    seen: list[slice] = []
    with pytest.raises(Stopped):
        doing(stopped(), lambda: seen.extend(blocks(7, 3)))
    assert seen == [slice(0, 3)]


def test_batches_yields_each_item_with_checkpoints_between() -> None:
    assert list(batches("abcde", 2)) == list("abcde")
    seen: list[str] = []
    with pytest.raises(Stopped):
        doing(stopped(), lambda: seen.extend(batches("abcde", 3)))
    assert seen == ["a", "b"]


# -- effects ---------------------------------------------------------------------------------------------------------


def test_stopped_work_does_not_start_an_effect() -> None:
    work, done = stopped(), list[int]()

    def change() -> None:
        with critical_section():
            done.append(1)

    with pytest.raises(Stopped):
        doing(work, change)
    assert not done
    assert not work.effects


def test_started_effect_is_not_stopped() -> None:
    work, seen = Stoppable(effects=False), list[bool]()

    def change() -> str:
        with critical_section():
            seen.append(work.effects)
            work.stop()
            checkpoint()
        seen.append(work.effects)
        return "changed"

    assert doing(work, change) == "changed"
    assert seen == [True, False]


def test_failed_effect_has_ended() -> None:
    work = Stoppable(effects=False)

    def change() -> None:
        with critical_section():
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        doing(work, change)
    assert not work.effects


# -- on an event loop ------------------------------------------------------------------------------------------------


def test_brief_work_that_takes_too_long_raises_elsewhere() -> None:
    doing(BoundedWork(seconds=60), checkpoint)
    with pytest.raises(OffloadToThread):
        doing(BoundedWork(seconds=-1), checkpoint)


def test_brief_work_continues_after_an_effect() -> None:
    def change() -> str:
        with critical_section():
            pass
        checkpoint()
        reserve(10**9, seconds=100)
        return "changed"

    assert doing(BoundedWork(limit=10**10, seconds=-1), change) == "changed"


@pytest.mark.parametrize(("size", "seconds"), [(10**9, 0), (1, 10)])
def test_brief_work_rejects_claims_that_take_long(size: int, seconds: float) -> None:
    doing(BoundedWork(limit=10**10, seconds=0.01), reserve, 1000, 0.001)
    with pytest.raises(OffloadToThread):
        doing(BoundedWork(limit=10**10, seconds=0.01), reserve, size, seconds)


def test_brief_work_raises_for_a_claim_over_the_limit() -> None:
    with pytest.raises(ResourceExhaustedError):
        doing(BoundedWork(limit=10), reserve, 11)


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_claim_up_to_the_limit_of_the_work() -> None:
    doing(Work(limit=10), reserve, 10)
    with pytest.raises(ResourceExhaustedError) as raised:
        doing(Work(limit=10), reserve, 11)
    assert (raised.value.expected, raised.value.actual) == ("at most 10 bytes", "11 bytes")


def test_value_limit_of_the_context() -> None:
    with value_limit(10):
        with pytest.raises(ResourceExhaustedError):
            doing(Work(), reserve, 11)
        with value_limit(None), pytest.raises(ResourceExhaustedError):
            doing(Work(), reserve, 11)
        doing(Work(limit=20), reserve, 11)
    doing(Work(), reserve, 11)


def test_default_limit_is_the_largest_value_of_the_machine() -> None:
    reserve(largest_value())
    with pytest.raises(ResourceExhaustedError, match="max_value_bytes"):
        reserve(largest_value() + 1)


# -- copies ----------------------------------------------------------------------------------------------------------

LARGE = np.arange(3 << 20, dtype=np.float32)  # several blocks of a copy


@pytest.mark.parametrize(
    "source",
    [
        LARGE,
        LARGE[::-1],
        LARGE.reshape(3, -1),
        LARGE.reshape(-1, 3).T,
        LARGE.reshape(2, 3, -1).swapaxes(0, 2),
        np.broadcast_to(np.float32(7), (2000, 1000)),
        np.array([b"a", b"bc"] * 100_000, object),
        np.array(5.0),
        np.zeros((0, 3)),
    ],
    ids=["vector", "backwards", "long rows", "transposed", "cube", "one place", "objects", "scalar", "nothing"],
)
def test_copy_has_the_same_elements_and_its_own_memory(source: Any) -> None:
    made = copied(source)
    np.testing.assert_array_equal(made, source)
    assert made.dtype == source.dtype
    assert made.flags.writeable
    assert not np.shares_memory(made, source)
    target = np.empty_like(made)
    put(target, source)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("shape", [(1030, 1100), (513, 3000), (3000, 2), (2, 3000), (1025, 1024)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_matrix_is_copied_in_any_memory_order(shape: tuple[int, int], dtype: Any) -> None:
    matrix = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
    for source in (matrix, matrix.T, matrix[::-1].T, matrix[:, ::-1].T):
        target = np.empty(source.shape, dtype)
        copy_into(target, source)
        np.testing.assert_array_equal(target, source.astype(dtype))


def test_a_copy_into_another_dtype() -> None:
    target = np.empty(LARGE.shape, np.int16)
    copy_into(target, LARGE)
    np.testing.assert_array_equal(target, LARGE.astype(np.int16))


@pytest.mark.parametrize(
    "source", [LARGE, LARGE.reshape(2, -1), LARGE.reshape(-1, 3).T], ids=["flat", "long", "turned"]
)
def test_a_large_copy_can_be_stopped(source: Any) -> None:
    with pytest.raises(Stopped):
        doing(stopped(), copied, source)
    assert doing(stopped(), copied, LARGE[:1000]).shape == (1000,)


def test_limit_applies_to_the_size_of_a_view_once_copied() -> None:
    view = np.broadcast_to(np.zeros((), bool), (1 << 40,))
    with pytest.raises(ResourceExhaustedError):
        doing(Work(limit=1 << 30), copied, view)


def test_row_blocks_cover_all_rows_in_several_blocks() -> None:
    rows = LARGE.reshape(-1, 1 << 10)
    parts = list(row_blocks(rows))
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate([rows[part] for part in parts]), rows)
    assert len(list(row_blocks(LARGE.reshape(3, -1)))) == 3
