"""Calls in threads that are left behind, taken back or waited for; what a device adds is in test_executor.py."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aioflow.work.stopping import Stoppable, Stopped, acting, checkpoint, current_work
from aioflow.work.threads import LeftBehind, Threads, in_thread

PATIENCE = 30.0  # seconds
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Gate:
    """A function that says nothing in its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.threads: list[int] = []

    def __call__(self) -> str:
        self.threads.append(threading.get_ident())
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return "opened"

    def with_an_effect(self) -> str:
        with acting():
            return self()

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def one() -> Threads:
    return Threads("-test", 1)


async def _outcome(call: Any) -> Any:
    """What a call gives or raises."""
    try:
        return await call
    except (asyncio.CancelledError, LeftBehind, Stopped) as error:
        return error


async def _cancelled(call: Any, gate: Gate) -> Any:
    """What comes of a call that is cancelled once its function has begun."""
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(call))
        await gate.until_entered()
        task.cancel()
        await asyncio.wait([task])
    return task.result()


async def test_a_call_without_effects_is_left_behind(one: Threads, gate: Gate) -> None:
    error = await _cancelled(one.call(Stoppable(effects=False), gate), gate)
    assert isinstance(error, asyncio.CancelledError)
    left = LeftBehind.behind(error)
    assert left is not None
    assert left.call.left
    assert left.call.thread == gate.threads[0]


async def test_another_thread_takes_the_place_of_its_own(one: Threads, gate: Gate) -> None:
    for _ in range(3):
        gate.entered.clear()
        await _cancelled(one.call(Stoppable(effects=False), gate), gate)
    async with asyncio.timeout(PATIENCE):
        thread = await one.call(Stoppable(), threading.get_ident)
    assert len({*gate.threads, thread}) == 4
    gate.opened.set()
    async with asyncio.timeout(PATIENCE):  # those that were left behind have ended, and are not used again
        assert await one.call(Stoppable(), threading.get_ident) == thread


async def test_what_waits_in_the_queue_behind_it_is_served(one: Threads, gate: Gate) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(Stoppable(effects=False), gate)))
        await gate.until_entered()
        behind = group.create_task(one.call(Stoppable(), lambda: "served"))
        await asyncio.sleep(0)
        task.cancel()
    assert behind.result() == "served"
    assert not gate.opened.is_set()


@pytest.mark.parametrize("says_so", [False, True], ids=["all of it", "a part of it"])
async def test_a_call_with_effects_is_waited_for(one: Threads, gate: Gate, says_so: bool) -> None:
    work = Stoppable(effects=not says_so)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(work, gate.with_an_effect if says_so else gate)))
        await gate.until_entered()
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=0.3)
        assert pending
        gate.opened.set()
    assert isinstance(task.result(), asyncio.CancelledError)
    assert LeftBehind.behind(task.result()) is None


async def test_a_call_that_comes_to_a_checkpoint_ends_there(one: Threads) -> None:
    entered, ended = threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        try:
            while True:
                checkpoint()
        finally:
            ended.set()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(Stoppable(), busy)))
        assert await asyncio.to_thread(entered.wait, PATIENCE)
        task.cancel()
        await asyncio.wait([task])
        assert ended.is_set()
    assert LeftBehind.behind(task.result()) is None


async def test_work_that_somebody_else_stops(one: Threads, gate: Gate) -> None:
    """The one who waits was not cancelled: he learns of it by an exception of its own."""
    running, queued = Stoppable(effects=False), Stoppable()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(running, gate)))
        await gate.until_entered()
        later = group.create_task(_outcome(one.call(queued, lambda: "never")))
        await asyncio.sleep(0)
        queued.stop()
        await asyncio.wait([later])
        running.stop()
    assert isinstance(later.result(), Stopped)
    assert isinstance(task.result(), LeftBehind)


async def test_work_that_was_stopped_before_is_not_begun(one: Threads) -> None:
    work = Stoppable()
    work.stop()
    with pytest.raises(Stopped):
        await one.call(work, lambda: pytest.fail("was called"))


async def test_one_who_waits_for_it_after_all_gets_what_comes_of_it(one: Threads, gate: Gate) -> None:
    left = LeftBehind.behind(await _cancelled(one.call(Stoppable(effects=False), gate), gate))
    assert left is not None
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        early = [group.create_task(left.call.rejoin()) for _ in range(2)]
        await asyncio.sleep(0)
        gate.opened.set()
    assert [task.result() for task in early] == ["opened"] * 2
    assert await left.call.rejoin() == "opened"


async def test_one_who_waits_for_it_after_all_gets_its_error(one: Threads, gate: Gate) -> None:
    def fail() -> None:
        gate()
        raise OSError("no")

    left = LeftBehind.behind(await _cancelled(one.call(Stoppable(effects=False), fail), gate))
    assert left is not None
    gate.opened.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(OSError, match="no"):
            await left.call.rejoin()


async def test_a_call_has_the_context_of_its_caller_and_knows_its_work() -> None:
    WHO.set("me")
    work = Stoppable()
    assert await in_thread(lambda: (WHO.get(), current_work()), work=work) == ("me", work)


async def test_the_loop_goes_on_while_many_calls_wait(gate: Gate) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(in_thread(gate))
        await gate.until_entered()
        gate.opened.set()


async def test_a_thread_that_is_slow_to_end_keeps_no_value_alive(one: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, resume = asyncio.get_running_loop(), threading.Event()
    send = loop.call_soon_threadsafe

    def send_slowly(callback: Any, *args: Any, **more: Any) -> asyncio.Handle:
        handle = send(callback, *args, **more)
        assert resume.wait(PATIENCE)
        return handle

    made: list[weakref.ref[Any]] = []

    def make() -> Any:
        array = np.zeros(1)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr(loop, "call_soon_threadsafe", send_slowly)
    try:
        result = await one.call(Stoppable(effects=False), make)
        assert made[0]() is result
        del result
        await asyncio.sleep(0)  # the end of the turn of the loop that brought it
        assert made[0]() is None
    finally:
        resume.set()


async def test_what_comes_of_a_call_whose_coroutine_was_dropped_disturbs_nobody(one: Threads, gate: Gate) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    dropped = one.call(Stoppable(effects=False), gate)
    dropped.send(None)  # up to where it waits for the thread
    await gate.until_entered()
    dropped.close()
    gate.opened.set()
    assert await one.call(Stoppable(effects=False), lambda: "next") == "next"  # of the same thread, so it comes after
    assert failures == []
