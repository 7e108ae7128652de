"""The TCP transport: loopback addresses, handshake, heartbeats, cancelled sends and reset connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from aioflow.errors import (
    AlreadyExistsError,
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnavailableError,
    UnimplementedError,
)
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.framing import CHUNK_BYTES, FrameKind, WireMessage, encode
from aioflow.net.limits import Limits
from aioflow.net.proving import HelloFields
from aioflow.net.tcp import TcpComm
from aioflow.net.transports import connect, listen
from tests.support.loops import on_each_loop

ANY = "tcp://127.0.0.1:0"
QUICK = CommOptions(heartbeat=0.02, misses=3, handshake_timeout=0.1, close_timeout=0.2)


async def ignore(comm: Comm) -> None:
    await comm.receive()


@asynccontextmanager
async def raw_server(answer: bytes, end: bool = False) -> AsyncIterator[str]:
    """Serve plain TCP: send `answer` on each connection, whatever the client sends; then close it if `end`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if not end:
            await hear(reader)

    async with raw(serve) as address:
        yield address


async def hear(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65_536):
            pass


@asynccontextmanager
async def raw(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Run `serve` for each TCP connection; yield the address, and wait until all connections are closed."""
    done: list[asyncio.Future[None]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.append(asyncio.get_running_loop().create_future())
        mine = done[-1]
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        mine.set_result(None)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*done)


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "192.0.2.1", "[::]", "[2001:db8::1]", "8.8.8.8"])
async def test_addresses_other_than_loopback_are_refused(host: str) -> None:
    with pytest.raises(PermissionDeniedError) as caught:
        await connect(f"tcp://{host}:1", 5)
    assert host.strip("[]") in str(caught.value)
    assert "loopback" in str(caught.value)
    with pytest.raises(PermissionDeniedError):
        async with listen(f"tcp://{host}:0", ignore):
            pass


@pytest.mark.parametrize("resolved", [["127.0.0.1", "10.1.2.3"], ["10.1.2.3"], ["::1", "fe80::1%eth0"]])
async def test_a_name_that_resolves_elsewhere_too_is_refused(
    resolved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in resolved]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(PermissionDeniedError):
        await connect("tcp://worker.test:1", 5)


async def test_loopback_name_is_accepted() -> None:
    async with listen("tcp://localhost:0", ignore) as listener, await connect(listener.address) as comm:
        assert comm.peer == listener.address


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:1", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:x", "tcp://127.0.0.1:65536", "udp://x:1"],
)
async def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidArgumentError):
        await connect(address)


async def test_listen_at_an_address_in_use_is_an_error() -> None:
    async with listen(ANY, ignore) as listener:
        with pytest.raises(AlreadyExistsError, match="cannot listen"):
            async with listen(listener.address, ignore):
                pass
    async with listen("inproc://once", ignore):
        with pytest.raises(AlreadyExistsError):
            async with listen("inproc://once", ignore):
                pass
    async with listen("inproc://once", ignore):
        pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "inproc://nobody"])
async def test_connect_without_a_listener_is_unavailable_and_names_the_peer(address: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        await connect(address, peer="/job:ps/task:0")
    assert "/job:ps/task:0" in str(caught.value)


# ── the handshake ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "end", "kind"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", False, DataLossError),
        (HelloFields(3, version=9, oldest=7).to_bytes(), False, UnimplementedError),
        (HelloFields(3, version=0, oldest=0).to_bytes(), False, UnimplementedError),
        (HelloFields(3).to_bytes()[:-1] + b"\x01", False, DataLossError),
        (HelloFields(3).to_bytes()[:20], True, UnavailableError),
        (b"", True, UnavailableError),
        (b"", False, UnavailableError),
    ],
    ids=["http", "newer", "older", "reserved", "cut", "end", "silence"],
)
async def test_connect_distinguishes_malformed_handshakes(answer: bytes, end: bool, kind: type[OpError]) -> None:
    async with raw_server(answer, end) as address:
        with pytest.raises(OpError) as caught:
            await connect(address, 5, QUICK)
        assert type(caught.value) is kind
        assert address in str(caught.value)


async def test_the_handshake_keeps_to_the_callers_deadline() -> None:
    async with raw_server(b"") as address:
        with pytest.raises(DeadlineExceededError) as caught:
            await connect(address, 0.05)
        assert address in str(caught.value)


async def test_newer_peer_that_supports_this_version_is_accepted() -> None:
    async with raw_server(HelloFields(3, version=9, oldest=1).to_bytes()) as address:
        comm = await connect(address)
        assert comm.peer_incarnation == 3
        comm.abort("done")


async def test_client_without_handshake_never_reaches_the_handler() -> None:
    reached: list[Comm] = []

    async def handler(comm: Comm) -> None:
        reached.append(comm)

    async with listen(ANY, handler, QUICK) as listener:
        host, port = listener.address.removeprefix("tcp://").split(":")
        for said in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            hello = await reader.readexactly(32)
            assert hello.startswith(b"aioflow\n")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "the listener ends the connection"
            writer.close()
        async with await connect(listener.address) as comm:
            assert await comm.receive() is None
    assert len(reached) == 1


async def test_a_listener_has_a_bounded_number_of_connections() -> None:
    options = CommOptions(connections=2)
    for address in (ANY, "inproc://few"):
        async with listen(address, ignore, options) as listener:
            first, second = await connect(listener.address), await connect(listener.address)
            with pytest.raises(UnavailableError, match="too many connections of clients"):
                await (await connect(listener.address)).receive()
            for comm in (first, second):
                await comm.close()


async def test_closing_a_listener_ends_its_connections_and_tasks() -> None:
    before = asyncio.all_tasks()
    for address in (ANY, "inproc://ends"):
        async with listen(address, ignore) as listener:
            comm = await connect(listener.address)
        with pytest.raises(UnavailableError):
            await comm.receive()
    assert asyncio.all_tasks() == before


async def test_failing_handler_closes_its_connection_and_is_reported() -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fail(comm: Comm) -> None:
        raise KeyError("a bug")

    async with listen(ANY, fail) as listener:
        for _ in range(2):
            comm = await connect(listener.address)
            with pytest.raises(UnavailableError):
                await comm.receive()
    assert [type(context["exception"]) for context in reported] == [KeyError, KeyError]


# ── heartbeats ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_peer_that_falls_silent_is_unavailable() -> None:
    async with raw_server(HelloFields(3).to_bytes()) as address:
        comm = await connect(address, 5, QUICK)
        with pytest.raises(UnavailableError, match="no data for") as caught:
            await comm.receive()
        assert address in str(caught.value)
        with pytest.raises(UnavailableError):
            await comm.send(WireMessage(FrameKind.PUSH))


async def test_frame_that_arrives_too_slowly_is_unavailable() -> None:
    frame = encode(WireMessage(FrameKind.PUSH, 1, {"text": "x" * 5000})).head

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HelloFields(3).to_bytes())
        for byte in frame:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.005)

    async with raw(trickle) as address:
        comm = await connect(address, 5, QUICK)
        with pytest.raises(UnavailableError, match="one frame"):
            await comm.receive()


async def test_two_idle_peers_stay_connected() -> None:
    async with listen(ANY, echo, QUICK) as listener, await connect(listener.address, 5, QUICK) as comm:
        # Several dead-peer timeouts, in which only heartbeats are sent.
        await asyncio.sleep(0.3)
        await comm.send(WireMessage(FrameKind.REQUEST, 4))
        reply = await comm.receive()
        assert reply is not None
        assert reply.request == 4


async def test_a_peer_that_does_not_read_for_long_is_not_dead() -> None:
    sizes: list[int] = []
    late = asyncio.Event()

    async def slow(comm: Comm) -> None:
        await late.wait()
        while sizes[-1:] != [1]:
            message = await comm.receive()
            assert message is not None
            sizes.append(message.tensors[0].nbytes)

    slowly = replace(QUICK, limits=Limits(unread_bytes=1000))
    async with listen(ANY, slow, slowly) as listener:
        comm = await connect(listener.address, 5, QUICK)
        async with asyncio.TaskGroup() as tg:
            sending = tg.create_task(push(comm, 20))
            await asyncio.sleep(0.2)
            late.set()
            await sending
        await comm.send(WireMessage(FrameKind.PUSH, 2, {}, (np.zeros(1, np.uint8),)))
        assert await comm.receive() is None, "the handler has received all and has ended"
    assert sizes == [2_000_000] * 20 + [1]


async def push(comm: Comm, count: int, size: int = 2_000_000) -> None:
    for _ in range(count):
        await comm.send(WireMessage(FrameKind.PUSH, 1, {}, (np.zeros(size, np.uint8),)))


async def test_an_urgent_message_overtakes_a_large_one() -> None:
    async with listen(ANY, echo) as listener, asyncio.TaskGroup() as tg, await connect(listener.address) as comm:
        large = tg.create_task(comm.send(WireMessage(FrameKind.PUSH, 1, {}, (np.zeros(32_000_000, np.uint8),))))
        for _ in range(3):
            await asyncio.sleep(0)
        await comm.send(WireMessage(FrameKind.PUSH, 2), urgent=True)
        assert not large.done()
        replies = [await comm.receive(), await comm.receive()]
        assert [reply.request for reply in replies if reply is not None] == [2, 1]


async def test_send_cancelled_inside_a_message_aborts_the_connection() -> None:
    late = asyncio.Event()
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def unread(comm: Comm) -> None:
        await late.wait()
        try:
            while await comm.receive() is not None:
                pass
        except UnavailableError as error:
            ended.set_result(str(error))

    options = CommOptions(limits=Limits(unread_bytes=1000))
    async with listen(ANY, unread, options) as listener, asyncio.TaskGroup() as tg:
        comm = await connect(listener.address)
        assert isinstance(comm, TcpComm)
        sending, still = tg.create_task(push(comm, 1000, 4 * CHUNK_BYTES)), 0
        while still < 5:  # until the peer and the system accept no more bytes
            await asyncio.sleep(0.02)
            still = 0 if comm._sender.is_ready else still + 1
        assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])
        assert comm.closed
        with pytest.raises(UnavailableError, match="in the middle"):
            await comm.send(WireMessage(FrameKind.PUSH, 2))
        late.set()
        assert "closed the connection unexpectedly" in await ended


async def test_cancelled_send_of_one_chunk_arrives_whole() -> None:
    late = asyncio.Event()
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def count(comm: Comm) -> None:
        await late.wait()
        ones = 0
        while (message := await comm.receive()) is not None:
            ones += int(message.tensors[0].sum())
        counted.set_result(ones)

    piece = WireMessage(FrameKind.PUSH, 1, {}, (np.ones(CHUNK_BYTES, np.uint8),))
    sent = 0

    async def fill(comm: Comm) -> None:
        nonlocal sent
        while True:
            await comm.send(piece)
            sent += 1

    async with listen(ANY, count, CommOptions(limits=Limits(unread_bytes=1000))) as listener, asyncio.TaskGroup() as tg:
        async with await connect(listener.address) as comm:
            filling = tg.create_task(fill(comm))
            await asyncio.sleep(0.2)  # by then the peer and the system accept no more
            filling.cancel()
            await asyncio.wait([filling])
            assert not comm.closed
            late.set()
        pieces, rest = divmod(await counted, CHUNK_BYTES)
        assert rest == 0
        assert pieces in (sent, sent + 1)


async def test_posted_message_does_not_split_a_waiting_long_message() -> None:
    # A waiting sender owns the connection from the moment in which the message before it ends, so a message that is
    # posted at that moment must not be written between its chunks.
    received: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    async def collect(comm: Comm) -> None:
        found = []
        while (message := await comm.receive()) is not None:
            found.append(message.request)
        received.set_result(found)

    def message(number: int, size: int) -> WireMessage:
        return WireMessage(FrameKind.PUSH, number, {}, (np.zeros(size, np.uint8),))

    async def send_and_post(comm: Comm) -> None:
        await comm.send(message(1, 2 * CHUNK_BYTES))
        assert comm.post(message(2, 100_000))  # longer than messages that may go between chunks

    async with listen(ANY, collect) as listener, await connect(listener.address) as comm:
        async with asyncio.TaskGroup() as tg:
            tg.create_task(send_and_post(comm))
            tg.create_task(comm.send(message(3, 2 * CHUNK_BYTES)))
        await comm.close()
        assert await asyncio.wait_for(received, 20) == [1, 2, 3]


async def echo(comm: Comm) -> None:
    while (message := await comm.receive()) is not None:
        await comm.send(message)


# ── resets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_connections_reset_before_accept_take_no_places() -> None:
    # The listener accepts these connections after the reset, when they have no peer any more.
    options = CommOptions(connections=4, handshake_timeout=60.0)
    async with listen(ANY, echo, options) as listener:
        where = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
        for _ in range(64):
            with socket.create_connection(where) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.2)  # for the resets to be seen
        async with asyncio.timeout(10), await connect(listener.address, 5.0) as comm:
            await comm.send(WireMessage(FrameKind.PUSH, 7))
            answer = await comm.receive()
            assert answer is not None
            assert answer.request == 7
