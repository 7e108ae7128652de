"""The ends of steps and of waits: a failing one must not block the others."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from aioflow.errors import InternalError
from aioflow.runtime.step import Step
from aioflow.sync.fair_lock import FairLock
from tests.support.waiting import until_collected


async def test_finish_wakes_waiters_even_if_a_release_fails() -> None:
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


def test_wake_of_a_waiter_on_a_closed_loop_does_not_raise() -> None:
    turns = FairLock("a lock")
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
    until_collected(gone)  # collect the task here, so that no other test sees its log message


async def test_report_while_another_thread_begins_to_wait() -> None:
    step = Step()

    class Waiting:
        """A wait that starts another wait while it is described."""

        node, since = "queue", 0.0

        def describe(self) -> str:
            step.waiting[Waiting()] = None
            return "an element"

    step.waiting[Waiting()] = None
    assert [line[0] for line in step.report().waiting] == ["queue"]
    assert [line[0] for line in (await step.inquire()).waiting] == ["queue", "queue"]
    assert set(step.waits) == {"queue on an element"}
