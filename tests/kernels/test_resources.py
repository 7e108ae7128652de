"""Variables as resources: snapshots, in-place updates, containers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.resources import ResourceManager, VariableResource


def make(value: Any = None, dims: Any = None) -> VariableResource:
    variable = VariableResource("v", dtypes.float32, dims)
    if value is not None:
        variable.assign(value)
    return variable


def add_one(value: Any, out: Any) -> Any:
    return np.add(value, 1, out) if out is not None else value + np.float32(1)


class Recorder:
    """An update that records whether it was allowed to work in place."""

    def __init__(self) -> None:
        self.in_place: list[bool] = []

    def __call__(self, value: Any, out: Any) -> Any:
        self.in_place.append(out is not None)
        return add_one(value, out)


def test_update_is_in_place_only_if_the_array_is_unshared() -> None:
    variable, change = make(np.zeros(3, np.float32)), Recorder()
    variable.update(change)
    held = variable.read()
    variable.update(change)
    assert held.tolist() == [1, 1, 1], "a snapshot changed"
    del held
    variable.update(change)
    assert change.in_place == [True, False, True]
    assert variable.read().tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "hold",
    [
        lambda v: v[1:],
        lambda v: v.reshape(-1, 1),
        lambda v: v.T,
        memoryview,
        lambda v: {"deep": [v]},
        lambda v: np.lib.stride_tricks.as_strided(v),
        lambda v: iter(v),
    ],
)
def test_every_kind_of_holder_keeps_its_values(hold: Any) -> None:
    variable, change = make(np.arange(4, dtype=np.float32)), Recorder()
    holder = hold(variable.read())
    variable.update(change)
    assert change.in_place == [False]
    del holder
    variable.update(change)
    assert change.in_place == [False, True]


def test_views_constants_and_scalars_are_never_overwritten() -> None:
    base = np.zeros(4, np.float32)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    for value in (base[:2], frozen, np.float32(0)):
        variable, change = make(value), Recorder()
        variable.update(change)
        assert change.in_place == [False]
        assert np.all(variable.read() == 1)
    assert not base.any()
    assert not frozen.any()


def test_zero_d_array_is_overwritten_in_place() -> None:
    variable, change = make(np.array(1, np.float32)), Recorder()
    variable.update(change)
    assert change.in_place == [True]
    assert variable.read() == 2


def test_shared_array_is_not_overwritten() -> None:
    first = make(np.zeros(2, np.float32))
    second = make(first.read())
    first.update(add_one)
    second.update(add_one)
    second.update(add_one)
    assert first.read().tolist() == [1, 1]
    assert second.read().tolist() == [2, 2]


def test_reading_without_a_value_names_the_variable() -> None:
    variable = make()
    assert not variable.is_initialized
    for use in (variable.read, lambda: variable.update(add_one)):
        with pytest.raises(FailedPreconditionError) as caught:
            use()
        assert "uninitialized value v" in caught.value.message
    assert variable.value is None


@pytest.mark.parametrize("in_place", [True, False])
def test_failed_update_leaves_the_value(in_place: bool) -> None:
    variable = make(np.ones(2, np.float32))
    held = None if in_place else variable.read()

    def refuse(value: Any, out: Any) -> Any:
        assert (out is not None) is in_place
        raise InvalidArgumentError("no")

    with pytest.raises(InvalidArgumentError):
        variable.update(refuse)
    assert variable.read().tolist() == [1, 1]
    assert not variable.lock.locked()
    assert held is None or held is variable.read()


def test_assign_checks_the_static_and_the_current_shape() -> None:
    variable = make(np.zeros((2, 3), np.float32), dims=(None, 3))
    variable.assign(np.zeros((5, 3), np.float32))
    with pytest.raises(InvalidArgumentError) as caught:
        variable.assign(np.zeros((5, 4), np.float32))
    assert (caught.value.expected, caught.value.actual) == ("(?, 3)", (5, 4))
    assert "variable v" in caught.value.message
    with pytest.raises(InvalidArgumentError):
        variable.assign(np.zeros((2, 3), np.float32), same_shape=True)
    assert variable.read().shape == (5, 3)


def test_read_waits_for_an_in_place_update() -> None:
    variable = make(np.zeros(2, np.float32))
    inside, go_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    def slowly(value: Any, out: Any) -> Any:
        out[0] = 1
        inside.set()
        assert go_on.wait(10)
        out[1] = 1
        return out

    writer = threading.Thread(target=variable.update, args=(slowly,))
    writer.start()
    assert inside.wait(10)
    reader = threading.Thread(target=lambda: seen.append(variable.read().tolist()))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive(), "the reader did not wait"
    go_on.set()
    writer.join(10)
    reader.join(10)
    assert seen == [[1, 1]]


def test_read_does_not_wait_for_an_out_of_place_update() -> None:
    variable = make(np.zeros(2, np.float32))
    held = variable.read()
    seen: list[Any] = []

    def look(value: Any, out: Any) -> Any:
        assert out is None
        seen.append(variable.read() is held)
        return value + np.float32(1)

    variable.update(look)
    assert seen == [True]


def test_update_waits_for_pick_and_then_works_in_place() -> None:
    variable, change = make(np.zeros(4, np.float32)), Recorder()
    picking, go_on = threading.Event(), threading.Event()
    picked: list[Any] = []

    def take(value: Any) -> Any:
        picking.set()
        assert go_on.wait(10)
        return value[:2].copy()

    reader = threading.Thread(target=lambda: picked.append(variable.pick(take)))
    reader.start()
    assert picking.wait(10)
    writer = threading.Thread(target=lambda: variable.update(change))
    writer.start()
    go_on.set()
    reader.join(10)
    writer.join(10)
    assert picked[0].tolist() == [0, 0]
    assert change.in_place == [True]


def test_pick_without_a_value_names_the_variable() -> None:
    with pytest.raises(FailedPreconditionError, match="uninitialized value v"):
        make().pick(np.copy)


def test_concurrent_updates_and_reads_see_whole_values() -> None:
    variable = make(np.zeros(64, np.float32))
    torn: list[Any] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            value = variable.read()
            if value.min() != value.max():
                torn.append(value.copy())
            del value

    def write() -> None:
        for _ in range(300):
            variable.update(add_one)

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write) for _ in range(3)]
    watcher.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    watcher.join()
    assert not torn
    assert variable.read()[0] == 900


def test_containers_keep_resources_apart() -> None:
    manager = ResourceManager()
    first = manager.get_or_create("", "v", make)
    second = manager.get_or_create("box", "v", make)
    assert first is not second
    assert manager.get_or_create("", "v", make) is first
    assert manager.names("box") == ["v"]
    assert manager.find("box", "w") is None
    before = manager.generation
    manager.clear("box")
    assert manager.generation > before
    assert manager.find("box", "v") is None
    assert manager.find("", "v") is first
    manager.clear()
    assert manager.names() == []


def test_remove_drops_one_resource() -> None:
    manager = ResourceManager()
    first = manager.get_or_create("", "v", make)
    other = manager.get_or_create("", "w", make)
    before = manager.generation
    assert manager.remove(first)
    assert manager.generation > before
    assert not manager.remove(first)
    assert manager.find("", "w") is other
