"""Limits on the memory that a worker holds for clients and workers that do not read its messages."""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from aioflow.net.addresses import PortReservation
from aioflow.net.comm import CommOptions
from aioflow.net.limits import Limits
from aioflow.net.server import Server
from tests.net.plain_client import PS, WORKER, Failed, Part, PlainClient
from tests.net.plain_wire import HEARTBEAT, REQUEST, bare, frames, hello

MIB = 1 << 20
LARGE = 8 * MIB  # bytes of a value
# A client that does not read sends no heartbeats either. It must not count as dead before the test has ended.
PATIENT = 240  # heartbeats, of half a second

pytestmark = pytest.mark.blocks_loop("memory for large values is taken and cleared on it")


@contextmanager
def grows_at_most(count: int) -> Iterator[None]:
    """Assert that at most `count` more bytes are allocated when the block ends."""
    # Not the size of the process: that depends on the allocator and on earlier tests.
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < count
    finally:
        tracemalloc.stop()


def place_of(server: Server) -> tuple[str, int]:
    host, _, port = server.target.removeprefix("aioflow://").rpartition(":")
    return host, int(port)


def filled(sends: bool = False) -> Part:
    """Return a part that makes a value of `LARGE` bytes in each step, and fetches it or sends it to another task."""
    part = Part(PS, f"{PS}/device:CPU:0", feeds=0, fetches=0 if sends else 1)
    kind, whole = part.dtype("float32"), part.dtype("int32")
    count = struct.pack("<i", LARGE // 4)
    dims = part.constant("int32", (1,), count)
    zero = part.constant("float32", (), bytes(4))
    shape = part.node("dims", "Const", [], {"value": dims, "dtype": whole}, [("int32", [1])])
    value = part.node("value", "Const", [], {"value": zero, "dtype": kind}, [("float32", [])])
    attrs = {"T": kind, "index_type": whole}
    made = part.node("made", "Fill", [(shape, 0), (value, 0)], attrs, [("float32", [LARGE // 4])])
    if sends:
        ends = {"send_device": f"{PS}/device:CPU:0", "recv_device": f"{WORKER}/device:CPU:0"}
        edge = {"T": kind, "tensor_name": "edge", **ends, "maybe_dead": False}
        part.node("send", "_Send", [(made, 0)], edge)
    else:
        part.node("fetch", "_Retval", [(made, 0)], {"T": kind, "index": 0})
    return part


def fresh() -> int:
    return secrets.randbits(57) or 1


async def test_worker_closes_connection_of_a_client_that_never_reads() -> None:
    loop = asyncio.get_running_loop()
    options = CommOptions(limits=Limits(open_requests=64, unread_bytes=1 * MIB), misses=PATIENT)
    port = PortReservation("127.0.0.1")
    assert port._socket is not None
    # Small buffers: unread bytes then pile up in the worker, not in the system.
    port._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    async with asyncio.timeout(60), Server({"ps": [port.place]}, "ps", 0, options=options) as server:
        with socket.create_connection(place_of(server)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_sendall(sock, hello(5))
            with grows_at_most(8 * MIB), pytest.raises(ConnectionError):
                await asks_for_ever(sock)
        assert (await asyncio.to_thread(state_of, place_of(server)))["registered"] == 0


async def asks_for_ever(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    body: dict[str, Any] = {"kind": "none", "timeout": None, "body": {}}
    for first in range(1, 100_000, 100):
        asked = (frame for number in range(first, first + 100) for frame in frames(REQUEST, number, body))
        await loop.sock_sendall(sock, b"".join(asked))


def state_of(where: tuple[str, int]) -> dict[str, Any]:
    with PlainClient(where, fresh()) as client:
        return client.call("state", {})[0]


async def test_unread_answers_are_bounded() -> None:
    options = CommOptions(limits=Limits(unsent_bytes=4 * LARGE), misses=PATIENT)
    async with asyncio.timeout(100), Server({"ps": ["127.0.0.1:0"]}, "ps", 0, options=options) as server:
        await asyncio.to_thread(asks_and_reads_late, place_of(server))


def asks_and_reads_late(where: tuple[str, int]) -> None:
    with PlainClient(where, fresh()) as client, PlainClient(where, fresh()) as other:
        handle = client.call("register", *filled().message())[0]["handle"]
        client.answer(client.run(handle, fresh()))
        with grows_at_most(40 * LARGE):
            steps = [client.run(handle, fresh(), patience=60.0) for _ in range(120)]
            client.start("register", *filled().message())
            while other.call("state", {})[0]["registered"] < 2:
                pass  # the worker has not read all requests yet
            while other.call("state", {})[0]["running"]:
                pass
            other.call("clock", {})
        read, refused = 0, set()
        for step in steps:
            try:
                ((dtype, shape, data),) = client.answer(step)[1]
                assert (dtype, shape, len(data)) == ("float32", (LARGE // 4,), LARGE)
                read += 1
            except Failed as failed:
                refused.add(failed.args[0]["error"])
        assert 4 <= read < 30
        assert refused == {"ResourceExhaustedError"}
        client.answer(client.run(handle, fresh()))  # the connection still works


@asynccontextmanager
async def does_not_read() -> AsyncIterator[str]:
    """Serve a worker that completes the handshake and sends heartbeats, but reads nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(hello(99))
        beat = 0
        with suppress(OSError):
            while not over.is_set():
                writer.write(bare(HEARTBEAT, beat := beat + 1))
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 0.2)
        writer.transport.abort()
        gone.set()

    over, gone = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()
        async with asyncio.timeout(20):
            await gone.wait()


async def test_unsent_values_for_a_worker_that_does_not_read_are_bounded() -> None:
    options = CommOptions(limits=Limits(unsent_bytes=4 * LARGE), misses=PATIENT)
    async with asyncio.timeout(100), does_not_read() as address:
        cluster = {"ps": ["127.0.0.1:0"], "worker": [address]}
        async with Server(cluster, "ps", 0, options=options) as server:
            await asyncio.to_thread(sends_to_nobody, place_of(server))


def sends_to_nobody(where: tuple[str, int]) -> None:
    with PlainClient(where, fresh()) as client:
        body, tensors = filled(sends=True).message()
        body["peers"] = {WORKER: 99}
        handle = client.call("register", body, tensors)[0]["handle"]
        with grows_at_most(40 * LARGE):
            for _ in range(80):
                with suppress(Failed):
                    client.answer(client.run(handle, fresh()))
            while not client.pushed:
                client.call("clock", {})
    documents = [document for document, _ in client.pushed]
    assert {document["kind"] for document in documents} == {"abort"}
    assert {document["body"]["error"]["error"] for document in documents} == {"ResourceExhaustedError"}
    assert WORKER in documents[0]["body"]["error"]["message"]
