"""Snapshots of variables: each keeps the value of its moment, and updates stay cheap."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph import dtypes
from aioflow.kernels.resources import Overwrites, VariableResource
from aioflow.kernels.snapshots import Snapshot

ROWS, WIDTH = 40_000, 8  # slightly above the size from which snapshots are used


def a_variable(rows: int = ROWS) -> VariableResource:
    variable = VariableResource("v", dtypes.float32, None)
    variable.assign(np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH).copy())
    return variable


def add_rows(variable: VariableResource, rows: Any, amount: float = 1.0) -> None:
    def change(value: Any, out: Any) -> Any:
        target = value.copy() if out is None else out
        if out is not None:
            variable.keep(np.asarray(rows))
        np.add.at(target, rows, np.float32(amount))
        return target

    variable.update(change, Overwrites.ROWS)


def add_all(variable: VariableResource, amount: float = 1.0) -> None:
    variable.update(lambda value, out: np.add(value, np.float32(amount), out=out), Overwrites.WHOLE)


def address(variable: VariableResource) -> int:
    return int(variable.value.ctypes.data)


def read(taken: Snapshot, step: int = 1000) -> Any:
    parts = []
    for start in range(0, taken.shape[0], step):
        parts.append(taken.rows(start, start + step).copy())
        taken.release(min(start + step, taken.shape[0]))
    return np.concatenate(parts)


def test_row_updates_stay_in_place_during_a_snapshot() -> None:
    variable = a_variable()
    before, where = variable.value.copy(), address(variable)
    taken = variable.snapshot()
    add_rows(variable, [3, 7, 3, ROWS - 1])
    add_rows(variable, [3, 8])
    assert address(variable) == where
    assert np.array_equal(read(taken), before)
    assert variable.value[3, 0] == before[3, 0] + 3
    assert variable.value[8, 0] == before[8, 0] + 1


def test_row_update_copies_an_array_held_outside() -> None:
    variable = a_variable()
    taken, held = variable.snapshot(), variable.value
    before = held.copy()
    add_rows(variable, [1])
    assert np.array_equal(held, before)
    assert np.array_equal(read(taken), before)


def test_whole_update_or_assignment_leaves_the_array_to_the_snapshot() -> None:
    for change in (add_all, lambda v: v.assign(np.zeros((ROWS, WIDTH), np.float32))):
        variable = a_variable()
        before = variable.value.copy()
        taken = variable.snapshot()
        add_rows(variable, [5])
        change(variable)
        add_rows(variable, [6])
        after = variable.value.copy()
        assert np.array_equal(read(taken), before)
        assert np.array_equal(variable.value, after)


def test_each_snapshot_keeps_the_value_of_its_moment() -> None:
    variable = a_variable()
    expected, taken = [], []
    for i in range(4):
        expected.append(variable.value.copy())
        taken.append(variable.snapshot())
        add_rows(variable, [i, i + 1, 100])
    for snapshot, value in zip(reversed(taken), reversed(expected), strict=True):
        assert np.array_equal(np.asarray(snapshot), value)
        assert np.array_equal(read(snapshot), value)


def test_released_rows_are_not_set_aside() -> None:
    variable = a_variable()
    taken = variable.snapshot()
    half = ROWS // 2
    first = taken.rows(0, half).copy()
    taken.release(half)
    add_rows(variable, np.arange(half))
    assert sum(len(rows) for rows, _ in taken._old) == 0
    add_rows(variable, [half])
    second = taken.rows(half, ROWS)
    assert np.array_equal(np.concatenate([first, second]), np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH))


def test_released_array_is_reused_for_the_next_value() -> None:
    variable = a_variable()
    first = address(variable)
    taken = variable.snapshot()
    add_all(variable)
    second = address(variable)
    assert second != first
    read(taken)
    again = variable.snapshot()
    before = variable.value.copy()
    add_all(variable)
    assert address(variable) == first
    assert np.array_equal(read(again), before)
    assert np.array_equal(variable.value, before + 1)


def test_spare_array_is_not_reused_while_held() -> None:
    variable = a_variable()
    held = variable.value
    taken = variable.snapshot()
    add_all(variable)
    read(taken)
    before = held.copy()
    again = variable.snapshot()
    add_all(variable)
    assert np.array_equal(held, before)
    del again


def test_unread_snapshot_ends_with_its_last_reference() -> None:
    variable = a_variable()
    taken: Any = variable.snapshot()
    del taken
    gc.collect()
    where = address(variable)
    add_all(variable)
    assert address(variable) == where


def test_failed_update_leaves_value_and_snapshot() -> None:
    variable = a_variable()
    before = variable.value.copy()
    taken = variable.snapshot()

    def change(value: Any, out: Any) -> Any:
        raise ValueError("no")

    for reach in Overwrites:
        with pytest.raises(ValueError, match="no"):
            variable.update(change, reach)
    add_rows(variable, [2])
    assert np.array_equal(read(taken), before)


def test_snapshot_of_unsuitable_value_is_the_value_itself() -> None:
    values: list[Any] = [np.zeros(3), np.float32(1), np.zeros((2, 1 << 20), np.float32), np.zeros((8, 8))[:, ::2]]
    for value in values:
        variable = VariableResource("v", dtypes.float32, None)
        variable.assign(value)
        assert variable.snapshot() is value


@pytest.mark.parametrize("seed", range(5))
def test_snapshot_survives_any_order_of_updates_and_reads(seed: int) -> None:
    random = np.random.default_rng(seed)
    variable = a_variable()
    taken: Any = None
    parts: list[Any] = []
    expected: Any = None
    for _ in range(200):
        match random.integers(0, 12):
            case 0 if taken is None:
                expected, taken, parts = variable.value.copy(), variable.snapshot(), []
            case 1:
                add_all(variable, float(random.integers(1, 5)))
            case 2 | 3 | 4 | 5:
                add_rows(variable, random.integers(0, ROWS, int(random.integers(1, 3000))))
            case _ if taken is not None:
                start = sum(len(p) for p in parts)
                stop = min(ROWS, start + int(random.integers(1, 9000)))
                parts.append(taken.rows(start, stop).copy())
                taken.release(stop)
                if stop == ROWS:
                    assert np.array_equal(np.concatenate(parts), expected)
                    taken = None


def test_snapshot_is_read_in_a_thread_during_updates() -> None:
    variable = a_variable()
    before, where = variable.value.copy(), address(variable)
    taken = variable.snapshot()
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read(taken, 200)))
    reader.start()
    random = np.random.default_rng(1)
    count = 0
    while reader.is_alive() or count < 50:
        add_rows(variable, random.integers(0, ROWS, 500))
        count += 1
    reader.join(10)
    assert np.array_equal(found[0], before)
    assert address(variable) == where, "an update copied the whole"


@pytest.mark.parametrize("update", ["scatter_add", "sparse_descent", "sparse_adagrad"])
async def test_sparse_updates_of_a_graph_work_in_place_during_a_snapshot(update: str) -> None:
    table = af.Variable(np.ones((ROWS, WIDTH), np.float32), name="table")
    slices = af.IndexedSlices(af.ones([2, WIDTH]), af.constant([1, ROWS - 1]), af.constant([ROWS, WIDTH]))
    step: Any
    if update == "scatter_add":
        step = table.scatter_add(slices)
    elif update == "sparse_descent":
        step = af.train.GradientDescentOptimizer(1.0).apply_gradients([(slices, table)])
    else:
        step = af.train.AdagradOptimizer(1.0).apply_gradients([(slices, table)])
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        resource = next(iter(session.worker.devices.values())).resources.find("", "table")
        await session.run(getattr(step, "op", step))  # the first update replaces the shared constant
        before = resource.value.copy()
        taken, where = resource.snapshot(), address(resource)
        await session.run(getattr(step, "op", step))
        assert address(resource) == where
        assert np.array_equal(read(taken), before)
        changed = np.flatnonzero((resource.value != before).any(axis=1))
        assert changed.tolist() == [1, ROWS - 1]
