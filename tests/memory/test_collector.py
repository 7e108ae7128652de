"""Postponing full garbage collections while many long-lived objects are made, without lasting effects."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aioflow as af
from aioflow.memory import collector
from aioflow.memory.collector import full_collections_postponed


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unfreeze all objects for the test, as in a program without `gc.freeze`, and freeze them again afterwards."""
    gc.unfreeze()
    monkeypatch.setattr(collector, "_POSTPONING", collector._Postponing())
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """Yield a list of the generations of all collections from now on."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.insert(0, note)
    yield found
    gc.callbacks.remove(note)


def made() -> list[Any]:
    """Return enough objects to trigger a full collection.

    Python runs one when the objects that survived younger collections exceed a quarter of those that existed before.
    """
    return [[] for _ in range(300_000 + len(gc.get_objects()) // 2)]


def test_many_objects_trigger_a_full_collection(looks: list[int]) -> None:
    """Validate `made`, on which the next test depends."""
    kept = made()
    assert 2 in looks
    assert kept


def test_only_the_youngest_generation_is_collected_in_a_block(looks: list[int]) -> None:
    with full_collections_postponed():
        looks.clear()
        kept = made()
        young = set(looks)
    assert kept
    assert young == {0}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert not any(callback is collector._POSTPONING for callback in gc.callbacks)


def _postponed(looks: list[int]) -> bool:
    """Return True if a block that makes many objects runs without a full collection."""
    looks.clear()
    with full_collections_postponed():
        kept = made()
        assert kept
        return 2 not in looks


def test_full_collection_runs_after_steps_are_dropped(looks: list[int], graph: af.Graph) -> None:
    """Arrays of dropped steps may be large, but Python's collector does not count their bytes."""
    one = af.constant(1.0)
    with af.Session(config=af.SessionConfig(plan_cache_size=1)) as session:
        session.run_sync(one + 1.0)
        assert all(_postponed(looks) for _ in range(3))
        session.run_sync(one + 2.0)  # evicts the first step from the plan cache
        assert not all(_postponed(looks) for _ in range(3))
        assert all(_postponed(looks) for _ in range(3)), "that garbage is gone"
    assert not all(_postponed(looks) for _ in range(3)), "the session was closed"
    assert all(_postponed(looks) for _ in range(3))


def test_no_full_collection_if_the_collector_is_disabled(looks: list[int], graph: af.Graph) -> None:
    with af.Session() as session:
        session.run_sync(af.constant(1.0) + 1.0)
    gc.disable()
    try:
        kept = made()
        looks.clear()
        for _ in range(2):  # the first block notices the objects made above
            with full_collections_postponed():
                pass
        assert kept
        assert 2 not in looks
    finally:
        gc.enable()


def test_overlapping_blocks_do_not_postpone_the_collection_further(looks: list[int], graph: af.Graph) -> None:
    with full_collections_postponed():
        with af.Session() as session:
            session.run_sync(af.constant(1.0) + 1.0)
        assert not all(_postponed(looks) for _ in range(3))


def test_young_cycles_are_freed_in_a_block_and_old_ones_after_it() -> None:
    class Watched:
        alive = 0

        def __init__(self) -> None:
            self.own = self
            Watched.alive += 1

        def __del__(self) -> None:
            Watched.alive -= 1

    with full_collections_postponed():
        for _ in range(5000):
            Watched()
        assert Watched.alive < 2500
        kept = [Watched() for _ in range(5000)]
    kept.clear()
    gc.collect()
    assert Watched.alive == 0


def test_objects_frozen_before_a_block_stay_frozen() -> None:
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with full_collections_postponed():
        kept: list[Any] = [[] for _ in range(20_000)]
    assert kept
    assert gc.get_freeze_count() > 0.9 * frozen


def test_objects_frozen_in_a_block_stay_frozen() -> None:
    gc.collect()
    with full_collections_postponed():
        gc.freeze()
        frozen = gc.get_freeze_count()
        kept: list[Any] = [[] for _ in range(20_000)]
    assert kept
    assert gc.get_freeze_count() > 0.9 * frozen


def test_blocks_in_several_threads_share_the_postponement(looks: list[int]) -> None:
    """The last thread that leaves its block ends the postponement."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with full_collections_postponed():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with full_collections_postponed():
        looks.clear()
    kept = made()
    young = set(looks)
    leave.set()
    thread.join()
    assert young == {0}
    kept += made()
    assert 2 in looks


def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes time proportional to the number of objects, while a step is being prepared."""
    kept: list[list[Any]] = [[] for _ in range(2000)]
    gc.freeze()
    count, counted = gc.get_freeze_count, list[int]()

    def noted() -> int:
        counted.append(count())
        return counted[-1]

    monkeypatch.setattr(gc, "get_freeze_count", noted)
    for _ in range(5):
        with full_collections_postponed():
            kept.append([[] for _ in range(10_000)])
    assert len(counted) == 1
