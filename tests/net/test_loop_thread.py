"""Coroutines of a program without an event loop, on the loop of a thread."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

import aioflow as af
from aioflow.net.loop_thread import LoopThread

SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


async def nothing() -> None:
    return None


def test_coroutines_run_on_one_loop_that_goes_on_between_them() -> None:
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
    before = threading.active_count()
    thread.close(nothing())
    assert threading.active_count() == before - 1
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


def test_one_that_was_never_used_has_nothing_to_close() -> None:
    before = threading.active_count()
    LoopThread().close(nothing())
    assert threading.active_count() == before
