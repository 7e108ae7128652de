"""TCP connections to a process that is killed or stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from aioflow.errors import (
    UnavailableError,
)
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.transports import connect
from tests.support.loops import on_each_loop
from tests.support.processes import program_on_loop

CHILD = """
import asyncio, sys
from aioflow.net.comm import CommOptions
from aioflow.net.transports import listen
async def echo(comm):
    while (message := await comm.receive()) is not None:
        await comm.send(message)
async def main():
    async with listen("tcp://127.0.0.1:0", echo, CommOptions(heartbeat=0.05)) as listener:
        print(listener.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@asynccontextmanager
async def child() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Yield a process that echoes messages, and its address."""
    async with program_on_loop("-c", CHILD, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()


@on_each_loop
async def test_killed_or_stopped_peer_raises_unavailable_with_its_name() -> None:
    async def flood(comm: Comm, array: np.ndarray[Any, Any]) -> None:
        while True:
            await comm.send(WireMessage(FrameKind.REQUEST, 1, {}, (array,)))

    async with asyncio.timeout(60), child() as (process, address):
        options = CommOptions(heartbeat=0.1, misses=3)
        stopped, killed, sending = [await connect(address, 10, options, peer=f"/task:{i}") for i in range(3)]
        array = np.arange(1_000_000.0)
        await killed.send(WireMessage(FrameKind.REQUEST, 1, {"a": 1}, (array,)))
        reply = await killed.receive()
        assert reply is not None
        np.testing.assert_array_equal(reply.tensors[0], array)

        process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="/task:0"):
            await stopped.receive()
        process.kill()
        with pytest.raises(UnavailableError, match="/task:1"):
            await killed.receive()
        with pytest.raises(UnavailableError, match="/task:2"):
            await flood(sending, array)
