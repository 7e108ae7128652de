"""Tests of a worker that serves honest clients during attacks by unauthenticated and by authenticated ones."""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

import psutil
import pytest

import aioflow as af
from aioflow.net.comm import Comm, CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.transports import listen
from tests.net.certificates import Authority
from tests.net.intruders import UNAUTHENTICATED, Place, Silent, exchange, hostile_frames, recorded_words
from tests.net.recording import Stream, recorded
from tests.support.processes import program_on_loop
from tests.system.test_plain_client import address_of

SECRET: Final = b"0123456789abcdef0123456789abcdef"
SEED: Final = 2026
EACH: Final = 60  # connections of each kind
AT_A_TIME: Final = 16
GROWTH: Final = 96 << 20  # bytes by which the worker may grow
LINES: Final = 10  # lines in the worker's log
SECONDS: Final = 10.0  # for a step of an honest client on a busy machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")


class Worker:
    """A worker process, its initial memory, and its log."""

    def __init__(self, where: Place, pid: int, log: IO[bytes], credentials: Credentials) -> None:
        self.where, self.credentials = where, credentials
        self._process, self._log = psutil.Process(pid), log
        self._before = self._process.memory_info().rss

    def is_well(self) -> None:
        """Check that the worker's memory has hardly grown and its log is short."""
        assert self._process.memory_info().rss - self._before < GROWTH
        self._log.seek(0)
        lines = self._log.read().decode().splitlines()
        assert len(lines) <= LINES, "\n".join(lines[:30])


@asynccontextmanager
async def worker(folder: Path, credentials: Credentials, *options: str) -> AsyncIterator[Worker]:
    command = ["-m", "aioflow.worker", "--cluster", "ps=127.0.0.1:0", "--job", "ps", *options]
    if credentials.secret is not None:
        (folder / "secret").touch(0o600)
        (folder / "secret").write_bytes(credentials.secret)
        command += ["--secret-file", str(folder / "secret")]
    with (folder / "log").open("w+b") as log:
        async with asyncio.timeout(200), program_on_loop(*command, stderr=log) as process:
            where = await address_of(process)
            found = Worker(where, process.pid, log, credentials)
            async with af.Session(target(where), credentials=credentials, graph=af.Graph()) as session:
                await session.health(30.0)
            yield found


def target(where: Place) -> str:
    return f"aioflow://{where[0]}:{where[1]}"


async def while_served(there: Worker, intrusion: Awaitable[None]) -> None:
    """Run steps of an honest client in time until the intrusion ends; every hundredth uses a new connection."""
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [])
        with af.device("/job:ps"):
            doubled = x * 2.0
    done = asyncio.Event()

    async def intrude() -> None:
        try:
            await intrusion
        finally:
            done.set()

    steps = 0
    async with asyncio.TaskGroup() as tg:
        tg.create_task(intrude())
        async with af.Session(target(there.where), credentials=there.credentials, graph=graph) as session:
            while not done.is_set() or steps < 20:
                assert await session.run(doubled, {x: 21.0}, timeout=SECONDS) == 42.0
                if steps % 100 == 0:
                    await comes_new(there, graph, doubled, x)
                steps += 1
    await comes_new(there, graph, doubled, x)


async def comes_new(there: Worker, graph: af.Graph, doubled: af.Tensor, x: af.Tensor) -> None:
    async with asyncio.timeout(SECONDS):
        async with af.Session(target(there.where), credentials=there.credentials, graph=graph) as session:
            assert await session.run(doubled, {x: 1.0}) == 2.0


async def some_at_a_time(ones: Sequence[Callable[[], Awaitable[object]]]) -> None:
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(make: Callable[[], Awaitable[object]]) -> None:
        async with room:
            await make()

    async with asyncio.TaskGroup() as tg:
        for make in ones:
            tg.create_task(one(make))


# ── unauthenticated clients ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.blocks_loop("the client compiles on the loop of the test")
async def test_unauthenticated_clients_learn_nothing_while_honest_ones_are_served(tmp_path: Path) -> None:
    heard: dict[str, set[int]] = {}
    print(f"seed {SEED}")

    async def attack(where: Place) -> None:
        silent = Silent(where)
        replayed = recorded_words(SECRET)

        async def one(name: str, number: int) -> None:
            chance = random.Random(f"{SEED} {name} {number}")
            say = replayed(chance) if name == "replayed" else UNAUTHENTICATED[name]
            heard.setdefault(name, set()).add(len(await exchange(where, say, chance)))
            if number % 10 == 0:
                silent.drip(number // 10)

        try:
            await silent.open(150)
            names = [*UNAUTHENTICATED, "replayed"]
            await some_at_a_time([lambda n=n, i=i: one(n, i) for i in range(EACH) for n in names])  # type: ignore[misc]
        finally:
            silent.close()

    async with worker(tmp_path, Credentials(SECRET)) as there:
        await while_served(there, attack(there.where))
        there.is_well()
    assert set(heard) == {*UNAUTHENTICATED, "replayed"}
    # The opening, 64 bytes or the rest of it, perhaps 32 zeros: nothing that would help to guess the secret.
    assert all(size <= 96 for sizes in heard.values() for size in sizes), heard


# ── authenticated clients ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def streams() -> list[Stream]:
    found = recorded()
    return [stream for stream in found if len(stream) == 1] * 4 + found


@pytest.mark.blocks_loop("the client compiles on the loop of the test")
@pytest.mark.parametrize("secret", [SECRET, None], ids=["a secret", "none"])
async def test_hostile_frames_close_their_connection_only(
    tmp_path: Path, streams: list[Stream], secret: bytes | None
) -> None:
    print(f"seed {SEED}")

    async def attack(where: Place) -> None:
        say = hostile_frames(secret, streams)
        chances = [random.Random(f"{SEED} {number}") for number in range(400)]
        await some_at_a_time([lambda c=c: exchange(where, say, c) for c in chances])  # type: ignore[misc]

    async with worker(tmp_path, Credentials(secret)) as there:
        await while_served(there, attack(there.where))
        there.is_well()


# ── certificates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def showing(folder: Path, name: str | None) -> ssl.SSLContext:
    """Return the context of a client with the certificate in the files of that name, or without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


@pytest.mark.blocks_loop("the client compiles on the loop of the test, and certificates are read there")
async def test_clients_without_a_valid_certificate_receive_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    other = Authority(tmp_path, "other")
    good = authority.tls("worker")
    other.tls("foreign")
    authority.dated("late", "200101000000Z", "210101000000Z")
    authority.dated("early", "450101000000Z", "460101000000Z")
    names = {
        "that has ended": "late",
        "that has not begun": "early",
        "of another authority": "foreign",
        "signed by itself": "other",
        "none": None,
        "of an old version": "worker",
    }
    contexts = {which: showing(tmp_path, name) for which, name in names.items()}
    contexts["of an old version"].maximum_version = ssl.TLSVersion.TLSv1_2
    files = {"tls-cert": "worker.pem", "tls-key": "worker.key", "tls-ca": "ca.pem"}
    options = [text for name, file in files.items() for text in (f"--{name}", str(tmp_path / file))]
    heard: dict[str, set[int]] = {}

    async def attack(where: Place) -> None:
        async def one(name: str) -> None:
            tls, words = contexts.get(name), UNAUTHENTICATED["no secret" if name in contexts else "garbage"]
            heard.setdefault(name, set()).add(len(await exchange(where, words, random.Random(name), tls)))

        await some_at_a_time([lambda n=n: one(n) for _ in range(20) for n in [*contexts, "no TLS"]])  # type: ignore[misc]

    async with worker(tmp_path, Credentials(tls=good), *options) as there:
        await while_served(there, attack(there.where))
        there.is_well()
    assert set(heard) == {*contexts, "no TLS"}
    assert heard.pop("no TLS") <= set(range(8)), "an alert at most"
    assert set().union(*heard.values()) == {0}


@pytest.mark.blocks_loop("the client compiles on the loop of the test")
async def test_tls_handshakes_at_a_plain_port_do_no_harm(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def attack(where: Place) -> None:
        chance = random.Random(SEED)
        await some_at_a_time([lambda: exchange(where, UNAUTHENTICATED["garbage"], chance, context) for _ in range(40)])

    async with worker(tmp_path, Credentials(SECRET)) as there:
        await while_served(there, attack(there.where))
        there.is_well()


# ── slow handshakes ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by_tls", [False, True])
async def test_slow_handshake_does_not_extend_the_timeout(tmp_path: Path, by_tls: bool) -> None:
    tls = Authority(tmp_path).tls("worker") if by_tls else None
    options = CommOptions(credentials=Credentials(SECRET, tls), handshake_timeout=0.2)
    reached: list[Comm] = []

    async def handler(comm: Comm) -> None:
        reached.append(comm)

    words = b"\x16\x03\x01\x02\x00\x01\x00" if by_tls else b"aioflow\n"
    async with asyncio.timeout(30), listen("tcp://127.0.0.1:0", handler, options) as listener:
        host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        said = 0
        async with asyncio.TaskGroup() as tg:
            ended = tg.create_task(until_the_end(reader))
            while not ended.done():
                writer.write(words[said : said + 1] or b"\0")
                said += 1
                await asyncio.wait([ended], timeout=0.02)
        writer.transport.abort()
    assert said < 31, "more than three times as long as it should"
    assert not reached


async def until_the_end(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1000):
            pass
