"""The ends of steps and of waits: none keeps another from going on."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from aioflow.errors import InternalError
from aioflow.runtime.step import Step
from aioflow.sync.fair_lock import Turns
from tests.waiting import until_collected


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
    (ticket,) = turns.leave()
    assert ticket.wake is not None
    ticket.wake()
    gone = weakref.ref(task)
    del task, ticket
    until_collected(gone)  # not in another test, which would hear of it


async def test_report_of_a_step_while_another_thread_begins_to_wait() -> None:
    step = Step()

    class Waiting:
        """A wait that is described while another one begins."""

        node, since = "queue", 0.0

        def describe(self) -> str:
            step.waiting[Waiting()] = None
            return "an element"

    step.waiting[Waiting()] = None
    assert [line[0] for line in step.report().waiting] == ["queue"]
    assert [line[0] for line in (await step.inquire()).waiting] == ["queue", "queue"]
    assert set(step.waits) == {"queue on an element"}
