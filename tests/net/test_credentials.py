"""Connections with the right secret, another secret or no secret: over TCP, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.cli import main
from aioflow.errors import (
    DataLossError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.credentials import Credentials, read_secret
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.server import Server
from aioflow.net.transports import connect, listen
from aioflow.testing.check_comm import CHECKS, Check, Factory, connected
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_net import SimNet, simulate
from tests.support.loops import LOOPS, on_each_loop

ANY = "tcp://127.0.0.1:0"
SECRET = b"0123456789abcdef0123456789abcdef"
KNOWN = CommOptions(credentials=Credentials(SECRET))
SEALED = CommOptions(credentials=Credentials(SECRET, seals_loopback=True))
OTHER = CommOptions(credentials=Credentials(b"x" * 32))
NONE = CommOptions(credentials=Credentials())


async def echo(comm: Comm) -> None:
    while (message := await comm.receive()) is not None:
        await comm.send(message)


async def answered(comm: Comm, number: int = 5) -> None:
    await comm.send(WireMessage(FrameKind.REQUEST, number))
    reply = await comm.receive()
    assert reply is not None
    assert reply.request == number


# ── admission ────────────────────────────────────────────────────────────────────────────────────────────────────────


def sealing(factory: Factory) -> Factory:
    def with_credentials(first: CommOptions, second: CommOptions) -> contextlib.AbstractAsyncContextManager[object]:
        return factory(replace(first, credentials=KNOWN.credentials), replace(second, credentials=SEALED.credentials))

    return with_credentials  # type: ignore[return-value]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("loop", LOOPS)
def test_sealed_connection_passes_the_conformance_suite(check: Check, loop: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(check(sealing(connected(ANY))), 60))


@on_each_loop
async def test_same_secret_is_admitted_and_others_get_the_reason() -> None:
    reached: list[Comm] = []

    async def handler(comm: Comm) -> None:
        reached.append(comm)
        await echo(comm)

    async with asyncio.timeout(60):
        async with listen(ANY, handler, KNOWN) as listener:
            for options, sentence in ((OTHER, "a different secret"), (NONE, "this process has none")):
                with pytest.raises(UnauthenticatedError, match=sentence) as caught:
                    await connect(listener.address, 5, options, peer="/job:ps/task:0")
                assert "/job:ps/task:0" in str(caught.value)
            assert not reached
            async with await connect(listener.address, 5, KNOWN) as comm:
                await answered(comm)
        async with listen(ANY, handler, NONE) as listener:
            with pytest.raises(UnauthenticatedError, match="the peer has no secret"):
                await connect(listener.address, 5, KNOWN)
        assert len(reached) == 1


async def test_replayed_connection_is_rejected() -> None:
    """Replay all that an honest peer has sent, on another connection."""
    recorded = bytearray()

    def record(data: bytes) -> bytes:
        recorded.extend(data)
        return data

    async with listen(ANY, echo, KNOWN) as listener:
        async with (
            between(listener.address, record) as address,
            await connect(address, 5, KNOWN) as comm,
        ):
            await answered(comm)
        assert len(recorded) > 96
        host, port = listener.address.removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(recorded[:96])
        assert len(await reader.readexactly(64)) == 64, "its opening"
        assert await reader.read() == bytes(32), "no proof, and the end"
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def between(address: str, there: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Forward connections to an address through a relay that changes what is sent there."""
    host, port = address.removeprefix("tcp://").split(":")

    async def copy(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(change(data))
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async with asyncio.TaskGroup() as tg:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            tg.create_task(copy(reader, far_writer, there))
            tg.create_task(copy(far_reader, writer, lambda data: data))

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("size", [8, 300_000], ids=["small", "in chunks"])
async def test_change_in_transit_ends_a_sealed_connection(size: int) -> None:
    ended: asyncio.Future[OpError] = asyncio.get_running_loop().create_future()
    got: list[WireMessage] = []

    async def handler(comm: Comm) -> None:
        try:
            while (message := await comm.receive()) is not None:
                got.append(message)
        except OpError as error:
            ended.set_result(error)

    def alter(data: bytes) -> bytes:
        return data.replace(b"\x07\x07\x07\x07", b"\x07\x06\x07\x07")

    async with asyncio.timeout(30), listen(ANY, handler, SEALED) as listener, between(listener.address, alter) as there:
        comm = await connect(there, 5, KNOWN)
        await comm.send(WireMessage(FrameKind.PUSH, 1, {}, (np.ones(size, np.uint8),)))
        await comm.send(WireMessage(FrameKind.PUSH, 2, {}, (np.full(size, 7, np.uint8),)))
        assert isinstance(await ended, DataLossError)
        comm.abort("done")
    assert [message.request for message in got] in ([], [1]), "what came with it may be lost, too"


# ── unauthenticated clients ──────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_unauthenticated_clients_do_not_keep_peers_out() -> None:
    """Open three hundred connections that send nothing or half a word, against a limit of ten."""
    options = replace(KNOWN, connections=2, unauthenticated=10, handshake_timeout=60.0)
    async with asyncio.timeout(60):
        async with listen(ANY, echo, options) as listener:
            where = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
            with contextlib.ExitStack() as stack:
                for index in range(300):
                    sock = stack.enter_context(socket.create_connection(where))
                    sock.sendall(b"aioflow\n"[: index % 9])
                    await asyncio.sleep(0)
                one, two = [await connect(listener.address, 5, KNOWN) for _ in range(2)]
                await answered(one)
                await answered(two)
                with pytest.raises(UnavailableError, match="too many connections"):
                    await (await connect(listener.address, 5, KNOWN)).receive()
                for comm in (one, two):
                    await comm.close()


async def test_oldest_unauthenticated_connections_are_dropped() -> None:
    options = replace(KNOWN, unauthenticated=3, handshake_timeout=60.0)
    async with asyncio.timeout(30), listen(ANY, echo, options) as listener:
        host, port = listener.address.removeprefix("tcp://").split(":")
        streams = []
        for _ in range(5):
            streams.append(await asyncio.open_connection(host, int(port)))
            await streams[-1][0].readexactly(64)  # the connection has been accepted
        for reader, _ in streams[:2]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for reader, _ in streams[2:]:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(), 0.01)
        for _, writer in streams:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_unauthenticated_connections_use_little_memory() -> None:
    options = replace(KNOWN, handshake_timeout=60.0)
    async with listen(ANY, echo, options) as listener:
        where = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
        gc.collect()
        tracemalloc.start()
        try:
            with contextlib.ExitStack() as stack:
                for _ in range(60):
                    sock = stack.enter_context(socket.create_connection(where))
                    sock.sendall(b"aioflow\n")
                    await asyncio.sleep(0)
                await asyncio.sleep(0.05)
                assert tracemalloc.get_traced_memory()[0] < 60 * 20_000
        finally:
            tracemalloc.stop()


# ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seals", [False, True])
async def test_session_with_the_client_secret_runs_steps(seals: bool) -> None:
    known = Credentials(SECRET, seals_loopback=seals)
    with af.device("/job:ps"):
        v = af.Variable(1.0)
        more = v.assign_add(1.0)
    [ps, worker] = free_addresses(2)
    spec = {"ps": [ps], "worker": [worker]}  # the session's target is the second, which connects to the first
    async with (
        asyncio.timeout(60),
        Server(spec, "ps", 0, credentials=known) as server,
        Server(spec, "worker", 0, credentials=known) as target,
        af.Session(target.target, credentials=known.client()) as session,
    ):
        await session.run(v.initializer)
        assert await session.run(more) == 2.0
        assert server.status().activity.connections >= 1
        with pytest.raises(UnauthenticatedError):
            await connect(server.target.replace("aioflow", "tcp"), 5, OTHER)


def test_client_secret_cannot_start_a_server() -> None:
    client = Credentials(SECRET).client()
    assert client.is_client
    assert client.client() is client
    assert not Credentials(SECRET).is_client
    assert SECRET not in (client.secret or b"")
    with pytest.raises(PermissionDeniedError, match="secret of clients"):
        Server({"ps": ["127.0.0.1:0"]}, "ps", 0, credentials=client)
    with pytest.raises(FailedPreconditionError):
        Credentials().client()


def test_secret_command_makes_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["secret"]) == 0
    file = tmp_path / "cluster.secret"
    file.touch(0o600)
    file.write_text(capsys.readouterr().out)
    known = Credentials.from_environment({"AIOFLOW_SECRET_FILE": str(file)})
    assert len(known.secret or b"") == 64
    assert main(["secret", "--client-of", str(file)]) == 0
    made = capsys.readouterr().out
    assert Credentials.from_environment({"AIOFLOW_SECRET": made}) == known.client()


# ── sources of the secret ────────────────────────────────────────────────────────────────────────────────────────────


def test_secret_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(SECRET + b"\n")
    assert Credentials.from_environment({}) == Credentials()
    assert Credentials.from_environment({"AIOFLOW_SECRET": SECRET.decode()}).secret == SECRET
    assert Credentials.from_environment({"AIOFLOW_SECRET_FILE": str(file)}).secret == SECRET
    with pytest.raises(InvalidArgumentError, match="both set"):
        Credentials.from_environment({"AIOFLOW_SECRET": SECRET.decode(), "AIOFLOW_SECRET_FILE": str(file)})
    with pytest.raises(NotFoundError, match="cannot be read"):
        Credentials.from_environment({"AIOFLOW_SECRET_FILE": str(tmp_path / "none")})
    for wrong in ("", "short", "y" * 5000):
        file.write_text(wrong)
        for environment in ({"AIOFLOW_SECRET": wrong}, {"AIOFLOW_SECRET_FILE": str(file)}):
            with pytest.raises(InvalidArgumentError) as caught:
                Credentials.from_environment(environment)
            assert not wrong or wrong not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="the system has no such modes")
@pytest.mark.parametrize(
    ("mode", "is_read"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o602, False)]
)
def test_read_secret_refuses_a_file_that_others_may_access(mode: int, is_read: bool, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(mode)
    if is_read:
        assert read_secret(file) == SECRET
        return
    with pytest.raises(InvalidArgumentError, match=f"mode {mode:03o}") as caught:
        read_secret(file)
    assert caught.value.expected == f"chmod 600 {file}"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no such users")
@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o640, True), (0o644, False), (0o660, False)])
def test_read_secret_allows_group_access_to_a_file_of_another_user(
    mode: int, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with contextlib.nullcontext() if is_read else pytest.raises(InvalidArgumentError, match="chmod 640"):
        assert read_secret(file) == SECRET


@pytest.mark.parametrize("secret", [SECRET, b"\xff\xfe" + SECRET, "geheimes Wört ".encode() + SECRET])
def test_credentials_round_trip_through_an_environment(secret: bytes) -> None:
    assert Credentials.from_environment(Credentials(secret).environment()).secret == secret


@pytest.mark.parametrize("secret", [b"\0" + SECRET, SECRET + b"\n", b" " + SECRET])
def test_secret_that_an_environment_cannot_hold_is_refused(secret: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="passed in the environment") as caught:
        Credentials(secret).environment()
    assert SECRET.decode() not in str(caught.value)


def test_credentials_of_wrong_type_are_refused_without_showing_them() -> None:
    for wrong in (SECRET, SECRET.decode(), True):
        with pytest.raises(DTypeError):
            Server({"ps": ["127.0.0.1:0"]}, "ps", 0, credentials=wrong)  # type: ignore[arg-type]
        with pytest.raises(DTypeError) as refused:
            af.Session("aioflow://127.0.0.1:1", credentials=wrong)  # type: ignore[arg-type]
        assert SECRET.decode() not in str(refused.value), "which somebody may have taken for credentials"
        with pytest.raises((DTypeError, InvalidArgumentError)):
            Credentials("text" * 8, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError) as caught:
        Credentials("text" * 8)  # type: ignore[arg-type]
    assert "texttext" not in str(caught.value)


def test_secret_is_not_shown_in_repr_or_errors() -> None:
    assert SECRET.decode() not in repr(KNOWN)
    with pytest.raises(InvalidArgumentError) as caught:
        replace(KNOWN, heartbeat=-1.0)
    assert SECRET.decode() not in str(caught.value)


# ── beyond the loopback ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_listening_beyond_the_loopback_requires_a_secret() -> None:
    with pytest.raises(PermissionDeniedError, match="AIOFLOW_SECRET_FILE"):
        async with listen("tcp://0.0.0.0:0", echo, NONE):
            pass
    async with listen("tcp://0.0.0.0:0", echo, KNOWN) as listener:
        port = listener.address.rpartition(":")[2]
        async with await connect(f"tcp://127.0.0.1:{port}", 5, KNOWN) as comm:
            await answered(comm)


# ── a cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_session_and_server_accept_credentials() -> None:
    known = Credentials(SECRET)
    async with Server({"ps": ["127.0.0.1:0"]}, "ps", 0, credentials=known) as server:
        with af.Graph().as_default():
            doubled = af.constant(21.0) * 2.0
        # In another thread: on the server's event loop the target would be used without a connection.
        assert await asyncio.to_thread(run_there, server.target, doubled, known) == 42.0
        with pytest.raises(UnauthenticatedError, match="a different secret"):
            await asyncio.to_thread(run_there, server.target, doubled, Credentials(b"y" * 32))


def run_there(target: str, fetched: af.Tensor, credentials: Credentials) -> float:
    async def run() -> float:
        async with af.Session(target, graph=fetched.graph, credentials=credentials) as session:
            return float(await session.run(fetched))

    return asyncio.run(run())


@pytest.mark.parametrize("seals", [False, True])
def test_simulated_cluster_with_a_secret_is_deterministic(seals: bool) -> None:
    """Run handshake and sealing on the simulated network, with equal traces for equal seeds."""

    async def story(net: SimNet) -> str:
        options = CommOptions(credentials=Credentials(SECRET, seals_loopback=seals))
        cluster = SimCluster(net, {"ps": 1, "worker": 1}, options=options)
        await cluster.start()
        with af.Graph().as_default() as graph:
            with af.device("/job:ps"):
                x = af.constant([1.0, 2.0]) * 2.0
            with af.device("/job:worker"):
                y = af.reduce_sum(x)

        async def client() -> None:
            target = cluster.target("worker0")
            async with af.Session(target, graph=graph, config=SIMULATED, credentials=Credentials(SECRET)) as session:
                assert await session.run(y) == 6.0
            with pytest.raises(UnauthenticatedError):
                async with af.Session(target, graph=graph, credentials=Credentials(b"z" * 32)):
                    pass

        await net.host("client").start(client, "client")
        await cluster.stop()
        return net.trace.digest

    assert simulate(story, seed=3) == simulate(story, seed=3)
