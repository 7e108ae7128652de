"""Functions that prepare something for later steps: each is called, whichever threads queue them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aioflow.runtime.delegates import Preparations


async def test_all_that_is_queued_is_called() -> None:
    """Also what is queued just when the thread has nothing left to do."""
    preparations, called = Preparations(), [0]
    count, threads = 300, 4

    def prepare() -> None:  # one at a time
        called[0] += 1

    def queue() -> None:
        for _ in range(count):
            assert preparations.begin(prepare)

    async with asyncio.TaskGroup() as tg:
        for _ in range(threads):
            tg.create_task(asyncio.to_thread(queue))
    await asyncio.wait_for(preparations.ended(), 60)
    assert called == [count * threads]


async def test_where_no_thread_can_be_started_others_stay_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    preparations = Preparations()
    called: list[str] = []

    def refused(_: threading.Thread) -> None:
        preparations.begin(lambda: called.append("other"))  # from another thread, at that moment
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert not preparations.begin(lambda: called.append("own"))
        await asyncio.wait_for(preparations.ended(), 60)
    assert preparations.begin(lambda: called.append("next"))
    await asyncio.wait_for(preparations.ended(), 60)
    assert called == ["other", "next"]
