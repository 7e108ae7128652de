"""Memory of partly received messages: none for announcements, a bound for all together, release at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from aioflow.errors import OpError, ResourceExhaustedError
from aioflow.net.arriving import Arrivals
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.decoder import Decoder
from aioflow.net.framing import CHUNK_BYTES, FrameKind, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.proving import HelloFields
from aioflow.net.transports import connect, listen
from tests.net.test_framing import PREFIX, feed, frame
from tests.support.loops import LOOPS
from tests.support.waiting import eventually

ANY = "tcp://127.0.0.1:0"
GIB = 1 << 30


def announced(dtype: str, count: int, nbytes: int) -> bytes:
    """Return the first frame of a large message whose chunks may never arrive."""
    head = frame(msgpack.packb([[[dtype, [count], nbytes]], {}]), tensors=1, flags=1, size=nbytes)
    assert len(head) < 80
    return head


def chunk(size: int = CHUNK_BYTES) -> bytes:
    return PREFIX.pack(b"aiof", 2, FrameKind.CHUNK, 0, 1, 0, 0, size) + bytes(size)


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@pytest.mark.parametrize(("dtype", "count"), [("uint8", GIB), ("float64", GIB // 8), ("string", 1000), ("string", 1)])
def test_memory_grows_with_received_not_announced_bytes(dtype: str, count: int) -> None:
    decoder, before = Decoder(), resident()
    feed(decoder, announced(dtype, count, GIB))
    assert resident() - before < 8 << 20
    for _ in range(8):
        feed(decoder, chunk())
    assert 24 << 20 < resident() - before < 64 << 20
    decoder.drop()
    assert resident() - before < 16 << 20


def test_total_is_bounded_and_the_largest_message_is_dropped() -> None:
    arrivals, lost = Arrivals(10 * CHUNK_BYTES), []
    decoders = [Decoder(arriving=arrivals.one(lambda _, n=n: lost.append(n))) for n in range(3)]  # type: ignore[misc]
    for decoder, count in zip(decoders, (5, 4, 1), strict=True):
        feed(decoder, announced("uint8", GIB, GIB))
        feed(decoder, chunk() * count)
    assert arrivals.bytes == 10 * CHUNK_BYTES
    feed(decoders[2], chunk())
    assert lost == [0], "not the one that asks, which has less"
    assert arrivals.bytes == 6 * CHUNK_BYTES
    with pytest.raises(ResourceExhaustedError, match="incompletely received"):
        feed(decoders[1], chunk() * 7)
    for decoder in decoders:
        decoder.drop()
    assert arrivals.bytes == 0


def test_complete_message_no_longer_counts() -> None:
    arrivals = Arrivals(2 * CHUNK_BYTES)
    decoder = Decoder(arriving=arrivals.one(lambda _: None))
    message = encode(WireMessage(FrameKind.PUSH, 1, {}, (np.zeros(CHUNK_BYTES + 1, np.uint8),)))
    for _ in range(5):
        assert len(feed(decoder, b"".join(map(bytes, message.whole())))) == 1
        assert arrivals.bytes == 0


async def echo(comm: Comm) -> None:
    while (message := await comm.receive()) is not None:
        await comm.send(message)


LOST_BYTES = 300 << 20  # more than is kept for reuse
LOST: dict[str, Callable[[], bytes]] = {
    "cut off": lambda: announced("uint8", LOST_BYTES, LOST_BYTES) + chunk(),
    "malformed": lambda: announced("uint8", LOST_BYTES, LOST_BYTES) + chunk() + b"not a frame" * 4,
    "whole, and no strings": lambda: announced("string", 1, 4 * CHUNK_BYTES) + chunk() * 4,
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("what", LOST)
def test_partial_message_is_freed_without_garbage_collection(loop: str, what: str) -> None:
    sent = LOST[what]()

    async def main() -> None:
        async with listen(ANY, echo) as listener:
            host, port = listener.address.removeprefix("tcp://").split(":")
            tracemalloc.start()
            gc.collect()
            # The memory must be freed by reference counts alone.
            gc.disable()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(3):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(HelloFields(3).to_bytes() + sent)
                    await reader.readexactly(32)
                    if what == "cut off":
                        await eventually(lambda: tracemalloc.get_traced_memory()[0] - before > LOST_BYTES)
                        writer.transport.abort()
                    else:
                        with contextlib.suppress(ConnectionError):
                            await reader.read()
                    writer.close()
                await eventually(lambda: tracemalloc.get_traced_memory()[0] - before < 4 << 20)
            finally:
                gc.enable()
                tracemalloc.stop()

    run(loop, main)


def run(loop: str, main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(main(), 60))  # type: ignore[arg-type]


async def test_connection_that_exhausts_the_limit_ends_and_others_continue() -> None:
    most = 4 * CHUNK_BYTES
    options = CommOptions(limits=replace(Limits(), all_arriving_bytes=most))
    ended: list[OpError] = []

    async def handler(comm: Comm) -> None:
        try:
            await echo(comm)
        except OpError as error:
            ended.append(error)

    async with asyncio.timeout(30), listen(ANY, handler, options) as listener:
        host, port = listener.address.removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(HelloFields(3).to_bytes() + announced("uint8", GIB, GIB) + chunk() * 4)
        await writer.drain()
        await reader.readexactly(32)
        async with await connect(listener.address) as comm:
            large = WireMessage(FrameKind.REQUEST, 5, {}, (np.arange(2 * CHUNK_BYTES, dtype=np.uint8),))
            for _ in range(3):
                await comm.send(large)
                reply = await comm.receive()
                assert reply is not None
                np.testing.assert_array_equal(reply.tensors[0], large.tensors[0])
        writer.close()
    assert [type(error) for error in ended] == [ResourceExhaustedError]
