"""Restart policy: the number of restarts of a process, and the pauses before them."""

from __future__ import annotations

from aioflow.distributed.restarts import Restarts


def test_restarts_are_limited_to_the_given_number() -> None:
    restarts = Restarts(2)
    assert [restarts.next(now) for now in (0.0, 100.0, 200.0, 300.0)] == [0.0, 0.0, 0.0, None]
    assert restarts.count == 2
    assert Restarts(0).next(0.0) == 0.0


def test_pauses_grow_while_starts_fail() -> None:
    restarts, now, pauses = Restarts(-1), 0.0, []
    for _ in range(20):
        pause = restarts.next(now)
        assert pause is not None
        pauses.append(pause)
        now += pause + 0.5  # the process ends after half a second
    assert pauses[:3] == [0.0, 0.0, 0.1]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10.0
    assert restarts.next(now + 60.0) == 0.0  # a long run resets the pause
    assert restarts.count == 20
