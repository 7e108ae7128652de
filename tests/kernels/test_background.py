"""A session's background tasks: closing waits for them, on their own loop, and then refuses new ones."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aioflow.errors import ClosedSessionError
from aioflow.sync.background import Background, background_of


async def _forever(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # cleanup that takes one iteration of the event loop
        log.append("ended")


async def test_close_cancels_and_awaits_background_tasks() -> None:
    log: list[str] = []
    background = Background()

    async def step() -> None:
        await background.start(_forever(log))

    async with asyncio.TaskGroup() as tg:  # the starting tasks have ended before `close`
        tg.create_task(step())
        tg.create_task(step())
    assert log == []
    await background.close()
    assert log == ["ended", "ended"]
    await background.close()
    with pytest.raises(ClosedSessionError):
        await background.start(_forever(log))


async def test_tasks_of_another_loop_are_cancelled_on_that_loop() -> None:
    log: list[str] = []
    background = Background()
    begun = threading.Event()

    async def other() -> None:
        task = await background.start(_forever(log))
        begun.set()
        await asyncio.wait([task], timeout=5)

    async with asyncio.TaskGroup() as tg:
        tg.create_task(asyncio.to_thread(lambda: asyncio.run(other())))
        assert await asyncio.to_thread(begun.wait, 5)
        await background.close()
    assert log == ["ended"]


async def test_closed_loop_is_forgotten() -> None:
    background = Background()
    log: list[str] = []

    async def start() -> None:
        await background.start(_forever(log))

    await asyncio.to_thread(lambda: asyncio.run(start()))
    assert log == ["ended"]
    await start()
    await background.close()
    assert log == ["ended", "ended"]


def test_background_of_returns_one_object_per_session() -> None:
    one: dict[str, object] = {}
    assert background_of(one) is background_of(one)
    assert background_of(one) is not background_of({})
