"""Coroutines for callers who block: what one run leaves in the loop is nothing to the next."""

from __future__ import annotations

import asyncio
import subprocess
import sys

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
