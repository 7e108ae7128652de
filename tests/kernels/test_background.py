"""Background tasks of a session: who waits for them, on which loop, and that they start no more after the end."""

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
        await asyncio.sleep(0)  # its end takes a turn of the loop
        log.append("ended")


async def test_closing_cancels_and_waits() -> None:
    log: list[str] = []
    background = Background()

    async def step() -> None:
        await background.start(_forever(log))

    async with asyncio.TaskGroup() as tg:  # the tasks that start others are gone when those end
        tg.create_task(step())
        tg.create_task(step())
    assert log == []
    await background.close()
    assert log == ["ended", "ended"]
    await background.close()
    with pytest.raises(ClosedSessionError):
        await background.start(_forever(log))


async def test_tasks_of_another_loop_are_cancelled_there() -> None:
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


async def test_a_loop_that_has_gone_is_forgotten() -> None:
    background = Background()
    log: list[str] = []

    async def start() -> None:
        await background.start(_forever(log))

    await asyncio.to_thread(lambda: asyncio.run(start()))
    assert log == ["ended"]
    await start()
    await background.close()
    assert log == ["ended", "ended"]


def test_one_for_each_session() -> None:
    one: dict[str, object] = {}
    assert background_of(one) is background_of(one)
    assert background_of(one) is not background_of({})
