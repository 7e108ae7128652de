"""TLS connections over TCP with mutual authentication, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError, NotFoundError, OpError, UnauthenticatedError, UnavailableError
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.framing import FrameKind, WireMessage
from aioflow.net.tls import Tls
from aioflow.net.transports import connect, listen
from aioflow.testing.check_comm import CHECKS, Check, connected
from tests.net.certificates import Authority
from tests.net.test_connecting import refusal
from tests.net.test_credentials import between
from tests.support.loops import LOOPS, on_each_loop
from tests.support.processes import program_on_loop

ANY = "tcp://127.0.0.1:0"
SECRET = b"0123456789abcdef0123456789abcdef"
NONE = CommOptions(credentials=Credentials())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def worker(authority: Authority) -> Tls:
    return authority.tls("worker")


def known(tls: Tls, secret: bytes | None = None) -> CommOptions:
    return CommOptions(credentials=Credentials(secret, tls))


async def echo(comm: Comm) -> None:
    while (message := await comm.receive()) is not None:
        await comm.send(message)


async def answered(comm: Comm) -> None:
    await comm.send(WireMessage(FrameKind.REQUEST, 5, {}, (np.arange(300_000.0),)))
    reply = await comm.receive()
    assert reply is not None
    np.testing.assert_array_equal(reply.tensors[0], np.arange(300_000.0))


def on(loop: str, main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(main(), 60))  # type: ignore[arg-type]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("loop", LOOPS)
def test_tls_connection_keeps_the_contract(check: Check, loop: str, worker: Tls) -> None:
    def factory(first: CommOptions, second: CommOptions) -> AbstractAsyncContextManager[tuple[Comm, Comm]]:
        credentials = Credentials(SECRET, worker)
        return connected(ANY)(replace(first, credentials=credentials), replace(second, credentials=credentials))

    on(loop, lambda: check(factory))


@on_each_loop
async def test_peers_without_a_trusted_certificate_are_rejected(authority: Authority, worker: Tls) -> None:
    other = Authority(authority.folder, "other")
    wrong = {
        "of another authority": other.tls("foreign", ca=authority.cert),
        "that has ended": authority.tls("late", days=-1),
    }
    async with asyncio.timeout(60):
        reached: list[Comm] = []

        async def handler(comm: Comm) -> None:
            reached.append(comm)
            await echo(comm)

        async with listen(ANY, handler, known(worker)) as listener:
            for which, tls in wrong.items():
                # In TLS 1.3 the client completes the handshake before the server checks its certificate.
                with pytest.raises((UnauthenticatedError, UnavailableError), match="certificate"):
                    await connect(listener.address, 5, known(tls))
                assert not reached, which
            with pytest.raises(OpError):
                await connect(listener.address, 5, NONE)
            with pytest.raises(OpError):
                await connect(listener.address, 5, CommOptions(credentials=Credentials(SECRET)))
            assert not reached
            async with await connect(listener.address, 5, known(worker)) as comm:
                await answered(comm)
        for tls in wrong.values():
            async with listen(ANY, handler, known(tls)) as listener:
                with pytest.raises(UnauthenticatedError, match="certificate"):
                    await connect(listener.address, 5, known(worker))
        async with listen(ANY, handler, NONE) as listener:
            with pytest.raises(OpError):
                await connect(listener.address, 5, known(worker))
        assert len(reached) == 1


async def test_certificate_is_valid_for_its_host_only(authority: Authority, worker: Tls) -> None:
    elsewhere = authority.tls("elsewhere", host="DNS:ps.example")
    async with listen(ANY, echo, known(elsewhere)) as listener:
        with pytest.raises(UnauthenticatedError, match="certificate"):
            await connect(listener.address, 5, known(worker))


async def test_secret_is_required_over_tls_too(worker: Tls) -> None:
    async with listen(ANY, echo, known(worker, SECRET)) as listener:
        for secret in (None, b"x" * 32):
            with pytest.raises(UnauthenticatedError, match="secret"):
                await connect(listener.address, 5, known(worker, secret))


@on_each_loop
async def test_new_connections_use_the_newest_certificate(tmp_path: Path) -> None:
    first = Authority(tmp_path, "first")
    worker = first.tls("worker", ca=tmp_path / "both.pem") if _both(tmp_path, first) else None
    assert worker is not None
    options = known(worker)
    async with asyncio.timeout(60):
        async with listen(ANY, echo, options) as listener, await connect(listener.address, 5, options) as early:
            second = Authority(tmp_path, "second")
            _both(tmp_path, second)
            client = known(second.tls("client"))
            with pytest.raises(UnauthenticatedError):
                await connect(listener.address, 5, client)
            second.tls("worker")
            async with await connect(listener.address, 5, client) as comm:
                await answered(comm)
            await answered(early)
            with pytest.raises(UnauthenticatedError):
                await connect(listener.address, 5, known(first.tls("before")))


def _both(folder: Path, authority: Authority) -> bool:
    (folder / "both.pem").write_bytes(authority.cert.read_bytes())
    return True


async def test_invalid_new_files_keep_the_old_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    options = known(authority.tls("worker"))
    cert = tmp_path / "worker.pem"
    whole = cert.read_bytes()
    async with listen(ANY, echo, options) as listener:
        with caplog.at_level(logging.WARNING, "aioflow.net"):
            cert.write_text("half of it")
            for _ in range(3):
                async with await connect(listener.address, 5, options) as comm:
                    await answered(comm)
            cert.unlink()
            for _ in range(3):
                async with await connect(listener.address, 5, options) as comm:
                    await answered(comm)
        assert len(caplog.records) == 2, "once for each state of the files"
        cert.write_bytes(whole)
        async with await connect(listener.address, 5, options) as comm:
            await answered(comm)


def test_missing_or_invalid_files_are_rejected(tmp_path: Path, authority: Authority, worker: Tls) -> None:
    cert, key, ca = (authority.folder / name for name in ("worker.pem", "worker.key", "ca.pem"))
    with pytest.raises(NotFoundError, match="cannot be read"):
        Tls(tmp_path / "none", key, ca)
    for files in ((key, cert, ca), (cert, authority.folder / "ca.key", ca), (cert, key, key)):
        with pytest.raises(InvalidArgumentError):
            Tls(*files)
    key.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="chmod 600"):
        Tls(cert, key, ca)
    key.chmod(0o600)
    environment = {"AIOFLOW_TLS_CERT": str(cert), "AIOFLOW_TLS_KEY": str(key), "AIOFLOW_TLS_CA": str(ca)}
    assert Credentials.from_environment(environment).tls is not None
    del environment["AIOFLOW_TLS_CA"]
    with pytest.raises(InvalidArgumentError, match="three files"):
        Credentials.from_environment(environment)


@on_each_loop
async def test_clients_that_never_start_tls_do_not_block_peers(worker: Tls) -> None:
    options = replace(known(worker), connections=2, unauthenticated=5, handshake_timeout=60.0)
    async with asyncio.timeout(60):
        before = asyncio.all_tasks()
        async with listen(ANY, echo, options) as listener:
            where = ("127.0.0.1", int(listener.address.rpartition(":")[2]))
            with contextlib.ExitStack() as stack:
                for index in range(100):
                    sock = stack.enter_context(socket.create_connection(where))
                    sock.sendall(b"\x16\x03\x01\x02" * (index % 3) + b"GET /" * (index % 2))
                    await asyncio.sleep(0)
                comms = [await connect(listener.address, 5, options) for _ in range(2)]
                for comm in comms:
                    await answered(comm)
                with pytest.raises(UnavailableError):
                    await connect(listener.address, 5, options)
                for comm in comms:
                    await comm.close()
        assert asyncio.all_tasks() == before


async def test_worker_takes_tls_files_from_the_command_line(authority: Authority, worker: Tls) -> None:
    secret = authority.folder / "secret"
    secret.touch(0o600)
    secret.write_bytes(SECRET)
    files: dict[str, Path | str] = {
        "secret-file": secret,
        "tls-cert": "worker.pem",
        "tls-key": "worker.key",
        "tls-ca": "ca.pem",
    }
    given = [part for name, file in files.items() for part in (f"--{name}", str(authority.folder / file))]
    cluster = ("--cluster", "ps=127.0.0.1:0", "--job", "ps")
    async with asyncio.timeout(60), program_on_loop("-m", "aioflow.worker", *cluster, *given) as process:
        assert process.stdout is not None
        target = (await process.stdout.readline()).decode().split()[-1]
        address = target.replace("aioflow://", "tcp://")
        with pytest.raises(OpError):
            await connect(address, 5, NONE)
        comm = await connect(address, 5, known(worker, SECRET))
        comm.abort("done")


async def test_incomplete_tls_options_are_rejected_without_a_traceback(authority: Authority, worker: Tls) -> None:
    cluster = ("--cluster", "ps=127.0.0.1:0", "--job", "ps", "--tls-cert", str(authority.folder / "worker.pem"))
    async with asyncio.timeout(60), program_on_loop("-m", "aioflow.worker", *cluster, stderr=PIPE) as process:
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
        assert "--tls-key" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("by_tls", [False, True])
async def test_tls_hides_messages_from_intermediaries(tmp_path: Path, by_tls: bool) -> None:
    tls = Authority(tmp_path).tls("worker") if by_tls else None
    options = CommOptions(credentials=Credentials(SECRET, tls, seals_loopback=True))
    marks = np.frombuffer(b"that nobody is to read" * 100, np.uint8)
    passed, got = bytearray(), asyncio.Event()

    def listens(data: bytes) -> bytes:
        passed.extend(data)
        return data

    async def take(comm: Comm) -> None:
        assert await comm.receive() is not None
        got.set()

    async with (
        asyncio.timeout(60),
        listen("tcp://127.0.0.1:0", take, options) as listener,
        between(listener.address, listens) as address,
        await connect(address, 5, options) as comm,
    ):
        await comm.send(WireMessage(FrameKind.PUSH, 1, {"secret": "in the header"}, (marks,)))
        await got.wait()
    assert (b"that nobody is to read" in passed) == (b"in the header" in passed) == (not by_tls)


async def test_session_does_not_try_refused_certificates_again(
    worker: Tls, tmp_path_factory: pytest.TempPathFactory
) -> None:
    foreign = Authority(tmp_path_factory.mktemp("foreign"), "foreign").tls("client")
    known = Credentials(tls=worker)
    for server, client in ((known, Credentials(tls=foreign)), (Credentials(), known)):
        assert isinstance(await refusal(server, client), UnauthenticatedError)
