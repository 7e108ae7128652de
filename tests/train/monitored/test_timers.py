"""Timers of hooks, by steps or by seconds of a clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.testing.virtual_clock import run_virtual
from aioflow.train.monitored.timers import NeverTriggerTimer


def test_timer_by_steps() -> None:
    timer = af.train.SecondOrStepTimer(every_steps=3)
    acted = [
        (step, timer.update_last_triggered_step(step)[1]) for step in range(10) if timer.should_trigger_for_step(step)
    ]
    assert acted == [(0, None), (3, 3), (6, 3), (9, 3)]
    assert timer.last_triggered_step() == 9
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.should_trigger_for_step(9)


def test_timer_by_seconds_of_a_clock() -> None:
    now = [100.0]
    timer = af.train.SecondOrStepTimer(every_secs=5, clock=lambda: now[0])
    assert timer.update_last_triggered_step(1) == (None, None)
    now[0] += 4.9
    assert not timer.should_trigger_for_step(2)
    now[0] += 0.1
    assert timer.should_trigger_for_step(2)
    assert not timer.should_trigger_for_step(1)  # at most once for each step
    seconds, steps = timer.update_last_triggered_step(3)
    assert seconds == pytest.approx(5.0)
    assert steps == 2


def test_timer_uses_the_loop_clock_by_default() -> None:
    async def main() -> list[float]:
        timer = af.train.SecondOrStepTimer(every_secs=10)
        acted = []
        for step in range(30):
            if timer.should_trigger_for_step(step):
                timer.update_last_triggered_step(step)
                acted.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)
        return acted

    assert run_virtual(main()) == pytest.approx([0, 10, 20])


@pytest.mark.parametrize("wrong", [{}, {"every_secs": 1, "every_steps": 1}, {"every_secs": "1"}, {"every_steps": "1"}])
def test_invalid_intervals_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        af.train.SecondOrStepTimer(**wrong)


def test_never_trigger_timer() -> None:
    timer = NeverTriggerTimer()
    timer.reset()
    assert not timer.should_trigger_for_step(0)
    assert timer.update_last_triggered_step(0) == (None, None)
    assert timer.last_triggered_step() is None
