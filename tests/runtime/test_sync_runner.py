"""Coroutines for blocking callers: leftovers of one run in the event loop do not affect the next run."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from aioflow.session.blocking import SyncRunner


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("turns", range(4))
def test_run_after_an_interrupted_run_completes(turns: int) -> None:
    """The interrupt may also come after the end of the task, but before the loop's stop that the task requested."""
    runner, begun = SyncRunner(), []

    async def interrupted() -> None:
        begun.append(True)
        asyncio.get_running_loop().call_soon(interrupt)
        for _ in range(turns):
            await asyncio.sleep(0)

    for value in range(3):
        with pytest.raises(KeyboardInterrupt):
            runner.run(interrupted())
        assert runner.run(number(value)) == value
    assert len(begun) == 3
    runner.close(asyncio.sleep(0))


def test_sync_runner_dropped_without_close_closes_its_loop_before_its_sockets_are_finalized() -> None:
    """The runner is part of a garbage cycle, where the order of finalizers depends on the ages of the objects."""

    class Owner:
        def __init__(self) -> None:
            self.me = self
            self.runner = SyncRunner()
            self.runner.run(number(1))
            assert self.runner._runner is not None
            self.loop = self.runner._runner.get_loop()

    closed: list[bool] = []

    class Socket:
        """A finalizer that reads the loop, like the loop's own sockets."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def __del__(self) -> None:
            closed.append(self.loop.is_closed())

    def drop() -> None:
        owner = Owner()
        owner.loop.socket = Socket(owner.loop)  # type: ignore[attr-defined]  # reachable only from the garbage

    thread = threading.Thread(target=drop)  # a thread that lives on would keep its last event loop
    thread.start()
    thread.join()
    gc.collect()  # frees the owner
    gc.collect()  # frees the objects that only the owner held
    assert closed == [True]
