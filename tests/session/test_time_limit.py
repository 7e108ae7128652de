"""What a time limit says of what it cut short."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError
from aioflow.runtime.step import Step
from aioflow.session.time_limit import TimeLimit
from tests.waiting import clock_put_forward


async def _run_out(step: Step | None = None) -> str:
    with pytest.raises(DeadlineExceededError) as raised:
        await _limited(step)
    assert (raised.value.expected, raised.value.actual) == ("at most 3600 s", "stopped")
    return raised.value.message


async def _limited(step: Step | None) -> None:
    async with TimeLimit(3600) as limit:
        limit.step = step
        with clock_put_forward():
            await asyncio.sleep(3600)


async def test_before_anything_runs_it_says_what_was_going_on() -> None:
    assert await _run_out() == "the step did not finish in time; it was being compiled"


async def test_it_says_what_the_step_has_left_behind() -> None:
    step = Step()
    step.leave_behind("slow")
    assert (await _run_out(step)).endswith("left behind, where it is still running: the kernel of 'slow'")


async def test_without_a_limit_nothing_runs_out() -> None:
    async with TimeLimit(None):
        with clock_put_forward():
            await asyncio.sleep(0)


async def test_a_time_out_of_something_else_stays_what_it_is() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with TimeLimit(3600):
            raise TimeoutError("mine")


async def test_what_never_waits_is_late_all_the_same() -> None:
    with ExitStack() as stack, pytest.raises(DeadlineExceededError):
        async with TimeLimit(3600):
            stack.enter_context(clock_put_forward())


@pytest.mark.parametrize("seconds", [0, -1.0])
async def test_no_time_at_all_begins_nothing(seconds: float) -> None:
    """However often the step has run before, so that it would not wait for anything."""
    v = af.Variable(0)
    count = v.assign_add(1)
    async with af.Session() as session:
        await session.run(v.initializer)
        for done in range(1, 12):
            await session.run(count)
            with pytest.raises(DeadlineExceededError):
                await session.run(count, timeout=seconds)
            assert await session.run(v) == done
