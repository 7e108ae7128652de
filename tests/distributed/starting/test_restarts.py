"""How often, and when, a process is started again."""

from __future__ import annotations

from aioflow.distributed.starting.restarts import Restarts


def test_it_begins_and_is_begun_again_so_many_times() -> None:
    restarts = Restarts(2)
    assert [restarts.next(now) for now in (0.0, 100.0, 200.0, 300.0)] == [0.0, 0.0, 0.0, None]
    assert restarts.count == 2
    assert Restarts(0).next(0.0) == 0.0


def test_what_fails_at_its_start_is_begun_after_longer_and_longer_pauses() -> None:
    restarts, now, pauses = Restarts(-1), 0.0, []
    for _ in range(20):
        pause = restarts.next(now)
        assert pause is not None
        pauses.append(pause)
        now += pause + 0.5  # that it lives
    assert pauses[:3] == [0.0, 0.0, 0.1]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10.0
    assert restarts.next(now + 60.0) == 0.0  # it has lived long
    assert restarts.count == 20
