"""Coroutines of a program without an event loop, on the loop of a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import pytest

import aioflow as af
from aioflow.session.blocking import LoopThread

SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


async def nothing() -> None:
    return None


def threads() -> set[threading.Thread]:
    """Return all threads of this kind, including those of other tests."""
    return {thread for thread in threading.enumerate() if thread.name == "aioflow-loop"}


def test_coroutines_run_on_one_loop_that_continues_between_them() -> None:
    before = threads()
    thread = LoopThread()
    ticks: list[float] = []

    async def start() -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, ticks.append, 1.0)
        return loop

    async def look() -> tuple[asyncio.AbstractEventLoop, str]:
        while not ticks:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return asyncio.get_running_loop(), SEEN.get()

    loop = thread.run(start())
    token = SEEN.set("the caller's")
    assert thread.run(look()) == (loop, "the caller's")
    SEEN.reset(token)
    (own,) = threads() - before
    thread.close(nothing())
    assert not own.is_alive()
    assert loop.is_closed()


def test_errors_reach_the_caller() -> None:
    thread = LoopThread()

    async def fail() -> None:
        raise af.errors.NotFoundError("nothing there")

    async def block() -> None:
        thread.run(nothing())

    with pytest.raises(af.errors.NotFoundError, match="nothing there"):
        thread.run(fail())
    with pytest.raises(af.errors.FailedPreconditionError):
        thread.run(block())
    assert thread.run(nothing()) is None
    thread.close(nothing())


def test_unstarted_coroutine_of_an_interrupted_caller_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread()
    thread.run(nothing())
    busy, go_on = threading.Event(), threading.Event()

    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    def block() -> None:
        busy.set()
        go_on.wait(10)

    thread._loop.call_soon_threadsafe(block)
    busy.wait(10)
    never_begun = nothing()
    with monkeypatch.context() as patch:
        patch.setattr("aioflow.session.blocking.Future", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.run(never_begun)
    go_on.set()
    thread.close(nothing())
    assert inspect.getcoroutinestate(never_begun) == inspect.CORO_CLOSED


def test_unused_thread_has_nothing_to_close() -> None:
    before = threads()
    LoopThread().close(nothing())
    assert threads() <= before


def test_close_waits_for_a_coroutine_that_another_thread_submits() -> None:
    """Keep the loop alive between the check that it runs and the hand-over; the call would never return otherwise."""
    thread = LoopThread()
    thread.run(nothing())
    closing = threading.Thread(target=thread.close, args=(nothing(),))

    class SlowLoop:
        def call_soon_threadsafe(self, *arguments: Any) -> None:
            thread._loop = loop
            closing.start()
            closing.join(0.2)  # would close here unless something prevents it
            loop.call_soon_threadsafe(*arguments)

    loop, thread._loop = thread._loop, SlowLoop()  # type: ignore[assignment]

    async def answer() -> int:
        return 7

    assert thread.run(answer()) == 7
    closing.join(60)
    assert not closing.is_alive()
