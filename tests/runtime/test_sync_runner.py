"""Coroutines for callers who block: what one run leaves in the loop is nothing to the next."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from aioflow.runtime.sync_runner import SyncRunner
from tests.processes import SECONDS


async def number(value: int) -> int:
    await asyncio.sleep(0)
    return value


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("turns", range(4))
def test_a_run_after_an_interrupted_one_comes_to_its_end(turns: int) -> None:
    """Also where the interruption comes between the end of the task and that of the loop, which it was to stop."""
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
    """In a cycle of garbage, where the order of finalizers depends on the ages of the objects."""

    class Owner:
        def __init__(self) -> None:
            self.me = self
            self.runner = SyncRunner()
            self.runner.run(number(1))
            assert self.runner._runner is not None
            self.loop = self.runner._runner.get_loop()

    closed: list[bool] = []

    class Socket:
        """Looks at the loop when it is finalized, as the loop's own sockets are."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def __del__(self) -> None:
            closed.append(self.loop.is_closed())

    def drop() -> None:
        owner = Owner()
        owner.loop.socket = Socket(owner.loop)  # type: ignore[attr-defined]  # reachable from the garbage alone

    thread = threading.Thread(target=drop)  # a thread that goes on would keep its last event loop
    thread.start()
    thread.join()
    gc.collect()  # the owner
    gc.collect()  # what the owner had
    assert closed == [True]


_AT_THE_END = """
import atexit

def last():  # it runs after all that aioflow has for the end
    print(loop.is_closed())
    session.__exit__(None, None, None)

atexit.register(last)
import aioflow as af

session = af.Session()
print(session.run_sync(af.constant(1.0) + 1.0))
loop = session._sync_runner._runner.get_loop()
"""


def test_the_loop_of_a_session_that_nobody_closes_is_closed_when_the_process_ends() -> None:
    """And the session may still be closed."""
    done = subprocess.run([sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr, done.returncode) == ("2.0\nTrue\n", "", 0)
