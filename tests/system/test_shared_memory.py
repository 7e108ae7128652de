"""Shared memory after a process has been killed or stopped."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from aioflow.errors import UnavailableError
from aioflow.memory.segments import NAME, SHARED, has_segments
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.transports import connect
from tests.net.test_shared_memory import filled, push, received
from tests.support.processes import program_on_loop
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not has_segments(), reason="no sealed files in memory here, or /proc is not there")
SHARES: Final = CommOptions(shared_memory=True)
SECONDS: Final = 30.0


CHILD: Final = """
import asyncio, sys
import numpy as np
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.transports import listen
async def serve(comm):
    held = []
    while (message := await comm.receive()) is not None:
        if message.request == 1:
            held.append(message)
        await comm.send(WireMessage(FrameKind.PUSH, message.request, {}, [tensor + 1 for tensor in message.tensors]))
async def main():
    async with listen("tcp://127.0.0.1:0", serve) as listener:
        print(listener.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@asynccontextmanager
async def child() -> AsyncIterator[tuple[asyncio.subprocess.Process, Comm]]:
    """Yield a process that replies with tensors + 1 and keeps those of messages numbered 1, and a connection to it."""
    async with program_on_loop("-c", CHILD, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        async with await connect(address, SECONDS, SHARES) as comm:
            for _ in range(2):
                await comm.send(push(0))
                await received(comm)
            yield process, comm


def files_in_memory() -> int:
    """Return the number of segment files that this process has open or mapped."""
    names = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    return sum(name.startswith(f"/memfd:{NAME}") for name in names) + Path("/proc/self/maps").read_text().count(
        f"/memfd:{NAME}"
    )


async def flood(comm: Comm) -> None:
    while True:
        await comm.send(push(2, filled(2)))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_killed_or_stopped_process_leaks_no_segments(how: signal.Signals) -> None:
    gc.collect()
    SHARED.trim(0.0)
    before = files_in_memory()
    async with child() as (process, comm):
        await comm.send(push(1, filled(1)))
        held = (await received(comm)).tensors[0]
        assert set(held.tolist()) == {2}
        assert not held.flags.writeable
        assert SHARED.exported > 0  # the child still holds exported memory
        process.send_signal(how)
        with pytest.raises(UnavailableError):
            await flood(comm)
        assert set(held.tolist()) == {2}
        await eventually(lambda: SHARED.exported == 0)
        del held
    gc.collect()
    SHARED.trim(0.0)
    assert files_in_memory() == before  # memfd files have no names, so nothing else can leak
