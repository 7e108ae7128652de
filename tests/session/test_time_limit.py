"""Tests of `TimeLimit`: when it expires, and what its error reports."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError
from aioflow.runtime.step import Step
from aioflow.session.time_limit import TimeLimit
from tests.support.waiting import clock_put_forward


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


async def test_expiry_before_the_step_starts_reports_compilation() -> None:
    assert await _run_out() == "the step did not finish in time; it was being compiled"


async def test_expiry_names_abandoned_kernels() -> None:
    step = Step()
    step.leave_behind("slow")
    assert (await _run_out(step)).endswith("left behind, where it is still running: the kernel of 'slow'")


async def test_no_limit_never_expires() -> None:
    async with TimeLimit(None):
        with clock_put_forward():
            await asyncio.sleep(0)


async def test_timeout_error_from_the_body_is_not_converted() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with TimeLimit(3600):
            raise TimeoutError("mine")


async def test_limit_expires_for_a_body_that_never_awaits() -> None:
    with ExitStack() as stack, pytest.raises(DeadlineExceededError):
        async with TimeLimit(3600):
            stack.enter_context(clock_put_forward())


@pytest.mark.parametrize("seconds", [0, -1.0])
async def test_nonpositive_timeout_starts_no_step(seconds: float) -> None:
    """Try a nonpositive timeout after each of eleven steps, so that the cached path without awaits is tested too."""
    v = af.Variable(0)
    count = v.assign_add(1)
    async with af.Session() as session:
        await session.run(v.initializer)
        for done in range(1, 12):
            await session.run(count)
            with pytest.raises(DeadlineExceededError):
                await session.run(count, timeout=seconds)
            assert await session.run(v) == done
