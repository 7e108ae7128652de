"""The ends of steps and of waits: none keeps another from going on."""

from __future__ import annotations

import asyncio

import pytest

from aioflow.errors import InternalError
from aioflow.runtime.step import Step
from aioflow.sync.fair_lock import Turns


async def test_finish_of_a_step_ends_its_waiters_where_a_release_fails() -> None:
    def fail() -> None:
        raise InternalError("not released")

    step = Step()
    step.releases.append(fail)
    waiting = asyncio.get_running_loop().create_task(step.finished())
    await asyncio.sleep(0)
    with pytest.raises(InternalError):
        step.finish()
    async with asyncio.timeout(60):
        await waiting


def test_waiting_on_a_loop_that_was_closed_does_not_fail_the_one_that_ends_the_wait() -> None:
    turns = Turns("a lock")
    assert turns.try_enter()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending"

    async def wait() -> None:
        async with turns.taking():
            pass

    async def begin() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    for ticket in turns.leave():
        assert ticket.wake is not None
        ticket.wake()
    del task
