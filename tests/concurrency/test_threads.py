"""Calls in threads that are abandoned, joined or awaited. test_executor.py tests the additions of devices."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aioflow.concurrency.stopping import Stoppable, Stopped, checkpoint, critical_section, current_work
from aioflow.concurrency.threads import AbandonedError, Threads, in_thread
from aioflow.errors import ResourceExhaustedError

PATIENCE = 30.0  # seconds
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Gate:
    """A function that blocks in its thread until it is opened."""

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
        with critical_section():
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
    """Return the result of a call, or its exception."""
    try:
        return await call
    except (asyncio.CancelledError, AbandonedError, Stopped) as error:
        return error


async def _cancelled(call: Any, gate: Gate) -> Any:
    """Return the outcome of a call that is cancelled after its function has begun."""
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(call))
        await gate.until_entered()
        task.cancel()
        await asyncio.wait([task])
    return task.result()


async def test_cancelled_call_without_effects_is_abandoned(one: Threads, gate: Gate) -> None:
    error = await _cancelled(one.call(Stoppable(effects=False), gate), gate)
    assert isinstance(error, asyncio.CancelledError)
    left = AbandonedError.within(error)
    assert left is not None
    assert left.call.left
    assert left.call.thread == gate.threads[0]


async def test_new_thread_replaces_an_abandoned_one(one: Threads, gate: Gate) -> None:
    for _ in range(3):
        gate.entered.clear()
        await _cancelled(one.call(Stoppable(effects=False), gate), gate)
    async with asyncio.timeout(PATIENCE):
        thread = await one.call(Stoppable(), threading.get_ident)
    assert len({*gate.threads, thread}) == 4
    gate.opened.set()
    async with asyncio.timeout(PATIENCE):  # abandoned threads have ended and are not reused
        assert await one.call(Stoppable(), threading.get_ident) == thread


async def test_calls_queued_behind_an_abandoned_one_run(one: Threads, gate: Gate) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(Stoppable(effects=False), gate)))
        await gate.until_entered()
        behind = group.create_task(one.call(Stoppable(), lambda: "served"))
        await asyncio.sleep(0)
        task.cancel()
    assert behind.result() == "served"
    assert not gate.opened.is_set()


@pytest.mark.parametrize("says_so", [False, True], ids=["all of it", "a part of it"])
async def test_cancelled_call_with_effects_is_awaited(one: Threads, gate: Gate, says_so: bool) -> None:
    work = Stoppable(effects=not says_so)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_outcome(one.call(work, gate.with_an_effect if says_so else gate)))
        await gate.until_entered()
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=0.3)
        assert pending
        gate.opened.set()
    assert isinstance(task.result(), asyncio.CancelledError)
    assert AbandonedError.within(task.result()) is None


async def test_cancelled_call_ends_at_a_checkpoint(one: Threads) -> None:
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
    assert AbandonedError.within(task.result()) is None


async def test_call_whose_work_is_stopped_raises(one: Threads, gate: Gate) -> None:
    """The waiting caller was not cancelled, so `Stopped` or `AbandonedError` informs it."""
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
    assert isinstance(task.result(), AbandonedError)


async def test_call_of_stopped_work_does_not_run(one: Threads) -> None:
    work = Stoppable()
    work.stop()
    with pytest.raises(Stopped):
        await one.call(work, lambda: pytest.fail("was called"))


async def test_rejoin_returns_the_result_of_an_abandoned_call(one: Threads, gate: Gate) -> None:
    left = AbandonedError.within(await _cancelled(one.call(Stoppable(effects=False), gate), gate))
    assert left is not None
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        early = [group.create_task(left.call.rejoin()) for _ in range(2)]
        await asyncio.sleep(0)
        gate.opened.set()
    assert [task.result() for task in early] == ["opened"] * 2
    assert await left.call.rejoin() == "opened"


async def test_rejoin_raises_the_error_of_an_abandoned_call(one: Threads, gate: Gate) -> None:
    def fail() -> None:
        gate()
        raise OSError("no")

    left = AbandonedError.within(await _cancelled(one.call(Stoppable(effects=False), fail), gate))
    assert left is not None
    gate.opened.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(OSError, match="no"):
            await left.call.rejoin()


async def test_call_has_the_context_and_work_of_its_caller() -> None:
    WHO.set("me")
    work = Stoppable()
    assert await in_thread(lambda: (WHO.get(), current_work()), work=work) == ("me", work)


async def test_loop_stays_responsive_while_many_calls_wait(gate: Gate) -> None:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(in_thread(gate))
        await gate.until_entered()
        gate.opened.set()


async def test_slow_thread_does_not_keep_its_result_alive(one: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, resume = asyncio.get_running_loop(), threading.Event()
    send = loop.call_soon_threadsafe

    def send_slowly(callback: Any, *args: Any, **more: Any) -> asyncio.Handle:
        # The result has been sent, but the thread does not return from the call yet.
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
        await asyncio.sleep(0)  # completes the turn of the loop that delivered the result
        assert made[0]() is None
    finally:
        resume.set()


async def test_result_of_a_dropped_coroutine_is_ignored(one: Threads, gate: Gate) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    dropped = one.call(Stoppable(effects=False), gate)
    dropped.send(None)  # runs the coroutine until it waits for the thread
    await gate.until_entered()
    dropped.close()
    gate.opened.set()
    # The same thread runs it, so the dropped call has ended.
    assert await one.call(Stoppable(effects=False), lambda: "next") == "next"
    assert failures == []


async def test_call_after_one_for_which_no_thread_started(one: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work = Stoppable()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ResourceExhaustedError, match="no thread can be started"):
            await one.call(work, str)
    assert not work.watchers
    async with asyncio.timeout(PATIENCE):
        assert await one.call(work, str) == ""
