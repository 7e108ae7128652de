"""String tensors in messages: large ones are decoded in pieces, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import uvloop

from aioflow.errors import DataLossError, UnavailableError
from aioflow.graph.dtypes import string
from aioflow.net.comm import Comm
from aioflow.net.decoder import Decoder
from aioflow.net.framing import FrameKind, WireMessage, encode
from aioflow.net.tensor_format import Destination, Strings, TensorHeader
from aioflow.net.transports import connect, listen

ANY = "tcp://127.0.0.1:0"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def words(count: int, size: int = 3) -> np.ndarray[Any, Any]:
    made = np.empty(count, object)
    made[:] = [b"%d" % index * size for index in range(count)]
    return made


@pytest.mark.parametrize("value", [words(30_000), words(3, 4_000_000), words(2 * 8192)], ids=["many", "long", "even"])
def test_large_string_tensors_are_decoded_in_pieces(value: np.ndarray[Any, Any]) -> None:
    [frame] = [b"".join(encode(WireMessage(FrameKind.PUSH, 1, {}, (value,))).payload)]
    buffer = memoryview(bytearray(frame))
    strings = Strings(buffer, value.shape)
    turns = 1
    while not strings.take():
        turns += 1
    assert turns >= 2
    np.testing.assert_array_equal(strings.array, value)
    begun = Destination(TensorHeader(string, value.shape, len(frame)))
    begun.buffer[:] = buffer
    assert isinstance(begun.begin(), Strings)
    np.testing.assert_array_equal(begun.finish(), value)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (), (1, 3)])
def test_small_string_tensors_are_decoded_at_once(shape: tuple[int, ...]) -> None:
    value = np.empty(shape, object)
    value[...] = b"word"
    frame = encode(WireMessage(FrameKind.PUSH, 1, {}, (value,))).head
    decoder = Decoder(filling=[])
    decoder.buffer()[: len(frame)] = frame
    [message] = decoder.received(len(frame))
    assert decoder.filling == []
    np.testing.assert_array_equal(message.tensors[0], value)


def test_strings_reject_lengths_that_do_not_fit() -> None:
    with pytest.raises(DataLossError, match="do not fit"):
        Strings(memoryview(bytes(4 * 10_000 + 1)), (10_000,))


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_many_strings_keep_the_loop_free_and_messages_in_order(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    value = words(2_000_000, 1)
    got: list[WireMessage] = []
    turns = 0

    def count(comm: Any) -> None:
        nonlocal turns
        turns += comm._filling
        if not comm.closed:
            asyncio.get_running_loop().call_soon(count, comm)

    async def collect(comm: Comm) -> None:
        count(comm)
        while (message := await comm.receive()) is not None:
            got.append(message)

    async def main() -> None:
        async with asyncio.timeout(60), listen(ANY, collect) as listener:
            comm = await connect(listener.address)
            for tensors in ((), (value, np.float32(1.0)), ()):
                await comm.send(WireMessage(FrameKind.PUSH, 1 + len(got), {}, tensors))
                await comm.send(WireMessage(FrameKind.PUSH, 7))
            await comm.close()
            while len(got) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert [len(message.tensors) for message in got] == [0, 0, 2, 0, 0, 0]
    np.testing.assert_array_equal(got[2].tensors[0], value)
    assert turns >= 2_000_000 / 10_000


async def test_abort_while_strings_are_decoded_ends_receive() -> None:
    value = words(1_000_000, 1)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def drop(comm: Comm) -> None:
        asyncio.get_running_loop().call_later(0.0, watch, comm)
        try:
            await comm.receive()
        except UnavailableError as error:
            ended.set_result(str(error))

    def watch(comm: Any) -> None:
        if comm._filling:
            comm.abort("it is enough")
        elif not comm.closed:
            asyncio.get_running_loop().call_soon(watch, comm)

    async with asyncio.timeout(60), listen(ANY, drop) as listener:
        comm = await connect(listener.address)
        await comm.send(WireMessage(FrameKind.PUSH, 2, {}, (value,)))
        assert "it is enough" in await ended
        comm.abort("done")
