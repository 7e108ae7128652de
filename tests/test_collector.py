"""The collector of cyclic garbage while much is made that stays: it looks at what is young, and changes for nobody."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aioflow as af
from aioflow.work import collector
from aioflow.work.collector import full_collections_postponed


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a program that has not frozen anything. What the tests before have frozen is so again afterwards."""
    gc.unfreeze()
    monkeypatch.setattr(collector, "_POSTPONING", collector._Postponing())
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """The generations of the collections that have been made."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.insert(0, note)
    yield found
    gc.callbacks.remove(note)


def made() -> list[Any]:
    """Much: Python looks at everything when a quarter more objects have survived than there were, these among them."""
    return [[] for _ in range(300_000 + len(gc.get_objects()) // 2)]


def test_everything_is_looked_at_when_much_has_been_made(looks: list[int]) -> None:
    """Without which the next test says nothing."""
    kept = made()
    assert 2 in looks
    assert kept


def test_only_what_is_young_is_looked_at_in_a_block(looks: list[int]) -> None:
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
    """Whether much can be made in a block without a look at everything."""
    looks.clear()
    with full_collections_postponed():
        kept = made()
        assert kept
        return 2 not in looks


def test_a_look_is_taken_once_steps_are_no_more_and_much_was_made(looks: list[int], graph: af.Graph) -> None:
    """Their arrays may be large, and count for nothing with Python's collector."""
    one = af.constant(1.0)
    with af.Session(config=af.SessionConfig(plan_cache_size=1)) as session:
        session.run_sync(one + 1.0)
        assert all(_postponed(looks) for _ in range(3))
        session.run_sync(one + 2.0)  # and the first step makes room
        assert not all(_postponed(looks) for _ in range(3))
        assert all(_postponed(looks) for _ in range(3)), "that garbage is gone"
    assert not all(_postponed(looks) for _ in range(3)), "the session was closed"
    assert all(_postponed(looks) for _ in range(3))


def test_no_look_is_taken_for_a_program_without_the_collector(looks: list[int], graph: af.Graph) -> None:
    with af.Session() as session:
        session.run_sync(af.constant(1.0) + 1.0)
    gc.disable()
    try:
        kept = made()
        looks.clear()
        for _ in range(2):  # the first one finds what was made
            with full_collections_postponed():
                pass
        assert kept
        assert 2 not in looks
    finally:
        gc.enable()


def test_blocks_that_overlap_do_not_put_it_off(looks: list[int], graph: af.Graph) -> None:
    with full_collections_postponed():
        with af.Session() as session:
            session.run_sync(af.constant(1.0) + 1.0)
        assert not all(_postponed(looks) for _ in range(3))


def test_young_cycles_are_found_in_a_block_and_all_behind_it() -> None:
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


def test_what_the_program_has_frozen_stays_so() -> None:
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with full_collections_postponed():
        kept: list[Any] = [[] for _ in range(20_000)]
    assert kept
    assert gc.get_freeze_count() > 0.9 * frozen


def test_what_is_frozen_in_a_block_stays_so() -> None:
    gc.collect()
    with full_collections_postponed():
        gc.freeze()
        frozen = gc.get_freeze_count()
        kept: list[Any] = [[] for _ in range(20_000)]
    assert kept
    assert gc.get_freeze_count() > 0.9 * frozen


def test_blocks_in_several_threads(looks: list[int]) -> None:
    """The last to leave ends it."""
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
    """That takes as long as there are objects, in the middle of the preparation of a step."""
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
