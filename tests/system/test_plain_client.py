"""Tests that docs/wire.md suffices: a client written from it alone runs steps on worker processes."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from aioflow.net.cluster_spec import free_addresses
from tests.net.certificates import Authority
from tests.net.plain_client import PS, WORKER, Failed, Part, PlainClient, doubling
from tests.net.plain_wire import Tensor, client_secret
from tests.support.processes import program_on_loop
from tests.system.processes import arguments_of

SECRET = b"0123456789abcdef0123456789abcdef"


def fresh() -> int:
    """Return a random step number that no other step has."""
    return secrets.randbits(57) or 1


def floats(*values: float) -> Tensor:
    return "float32", (len(values),), struct.pack(f"<{len(values)}f", *values)


def numbers(tensor: Tensor) -> tuple[float, ...]:
    dtype, (count,), data = tensor
    assert dtype == "float32"
    return struct.unpack(f"<{count}f", data)


def edge(part: Part) -> dict[str, object]:
    ends = {"send_device": f"{PS}/device:CPU:0", "recv_device": f"{WORKER}/device:CPU:0"}
    return {"tensor_name": "edge", **ends, "maybe_dead": False}


def sending() -> Part:
    """Return the part on ps: a constant that is sent to worker."""
    part = Part(PS, f"{PS}/device:CPU:0", feeds=0, fetches=0)
    kind = part.dtype("float32")
    value = part.constant(*floats(1.0, 2.0))
    c = part.node("c", "Const", [], {"value": value, "dtype": kind}, [("float32", [2])])
    part.node("send", "_Send", [(c, 0)], {"T": kind, **edge(part)})
    return part


def receiving() -> Part:
    """Return the part on worker: the received value, which is fetched."""
    part = Part(WORKER, f"{WORKER}/device:CPU:0", feeds=0, fetches=1)
    kind = part.dtype("float32")
    attrs = {"tensor_type": kind, "shape": [1, 2], **edge(part)}
    got = part.node("receive", "_Recv", [], attrs, [("float32", [2])])
    part.node("fetch", "_Retval", [(got, 0)], {"T": kind, "index": 0})
    return part


@asynccontextmanager
async def worker(*options: str, jobs: Sequence[str] = ("ps",), job: str = "ps") -> AsyncIterator[tuple[str, int]]:
    """Start a worker process, and yield the address on which it listens."""
    command = ["-m", "aioflow.worker", *arguments_of({name: ["127.0.0.1:0"] for name in jobs}), "--job", job, *options]
    async with program_on_loop(*command) as process:
        yield await address_of(process)


async def address_of(process: asyncio.subprocess.Process) -> tuple[str, int]:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    host, _, port = line.split()[-1].removeprefix("aioflow://").rpartition(":")
    return host, int(port)


def runs_steps(client: PlainClient) -> None:
    """Run everything that a small client needs."""
    hello, _ = client.call("hello", {})
    assert hello["task"] == PS
    assert hello["devices"] == [f"{PS}/device:CPU:0"]
    before, after = (client.call("clock", {})[0]["now"] for _ in range(2))
    assert 0 <= before <= after
    handle = client.call("register", *doubling().message())[0]["handle"]
    assert client.call("state", {})[0]["registered"] == 1
    header, (doubled,) = client.answer(client.run(handle, fresh(), [floats(1.5, -2.0, 0.0)]))
    assert numbers(doubled) == (3.0, -4.0, 0.0)
    assert header == {"devices": None, "origin": 0.0}
    large = floats(*range(700_000))  # three chunks if frames have tags
    (doubled,) = client.answer(client.run(handle, fresh(), [large]))[1]
    assert numbers(doubled) == tuple(range(0, 1_400_000, 2))
    with pytest.raises(Failed) as caught:
        client.answer(client.run(handle, fresh(), [("int32", (1,), bytes(4))]))
    assert caught.value.args[0]["error"] == "InvalidArgumentError"
    with pytest.raises(Failed) as caught:
        client.call("no such thing", {})
    assert caught.value.args[0]["error"] == "UnimplementedError"
    assert client.call("deregister", {"handle": handle}) == ({}, [])
    with pytest.raises(Failed) as caught:
        client.answer(client.run(handle, fresh()))
    assert caught.value.args[0]["error"] == "NotFoundError"


async def in_a_thread(where: tuple[str, int], **options: object) -> None:
    def talk() -> None:
        with PlainClient(where, secrets.randbits(63) or 1, **options) as client:  # type: ignore[arg-type]
            runs_steps(client)

    async with asyncio.timeout(60):
        await asyncio.to_thread(talk)


async def test_client_runs_steps_without_a_secret() -> None:
    async with worker() as where:
        await in_a_thread(where)


async def test_client_runs_steps_with_a_secret_and_with_tags(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_bytes(SECRET)
    async with worker("--secret-file", str(tmp_path / "secret")) as where:
        for seals in (False, True):
            await in_a_thread(where, secret=SECRET, nonce=secrets.token_bytes(32), seals=seals)
        await in_a_thread(where, secret=client_secret(SECRET), nonce=secrets.token_bytes(32))
        with pytest.raises(PermissionError):
            await in_a_thread(where, secret=SECRET[::-1], nonce=secrets.token_bytes(32))


async def test_client_runs_steps_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("worker", "client"):
        authority.tls(name)
    files = {"cert": "worker.pem", "key": "worker.key", "ca": "ca.pem"}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    given = [text for kind, file in files.items() for text in (f"--tls-{kind}", str(tmp_path / file))]
    async with worker(*given) as where:
        await in_a_thread(where, tls=context)


async def test_client_runs_a_step_of_two_tasks() -> None:
    addresses = free_addresses(2)
    cluster = {"ps": [addresses[0]], "worker": [addresses[1]]}
    command = ["-m", "aioflow.worker", *arguments_of(cluster), "--job"]
    async with asyncio.timeout(60), program_on_loop(*command, "ps") as ps, program_on_loop(*command, "worker") as other:
        places = [await address_of(process) for process in (ps, other)]
        await asyncio.to_thread(partial(two_tasks, *places))


def two_tasks(first: tuple[str, int], second: tuple[str, int]) -> None:
    number = secrets.randbits(63) or 1  # of this client process, for both workers
    with PlainClient(first, number) as ps, PlainClient(second, number) as other:
        body, tensors = sending().message()
        body["peers"] = {WORKER: other.peer_incarnation}
        sender = ps.call("register", body, tensors)[0]["handle"]
        receiver = other.call("register", *receiving().message())[0]["handle"]
        for step in (fresh(), fresh()):
            begun = [other.run(receiver, step), ps.run(sender, step)]
            (received,) = other.answer(begun[0])[1]
            assert numbers(received) == (1.0, 2.0)
            assert ps.answer(begun[1])[1] == []
        waits = other.run(receiver, step := fresh())  # for a value that is never sent
        error = {"error": "CancelledError", "message": "given up", "applied": True, "traceback": ""}
        error |= dict.fromkeys(("node", "op", "source", "expected", "actual"))
        assert other.call("abort", {"step": step, "error": error})[0] == {"begun": False}, "it has changed nothing"
        with pytest.raises(Failed) as caught:
            other.answer(waits)
        assert "given up" in caught.value.args[0]["message"]
