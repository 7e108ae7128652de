"""Unauthenticated clients: each line of SECURITY.md's table, as requests that must have no effect."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import aioflow as af
from aioflow.net.comm import CommOptions
from aioflow.net.credentials import Credentials
from aioflow.net.server import Server
from tests.net.plain_client import PS, Part, PlainClient, doubling
from tests.net.plain_wire import CONNECTING, PROVES, PUSH, REQUEST, Tensor, frames, hello, proof

SECRET: Final = b"0123456789abcdef0123456789abcdef"
LARGE: Final = ("uint8", (1 << 22,), bytes(1 << 22))
TABLE: Final = Path(__file__).resolve().parents[2] / "SECURITY.md"
ERROR: Final[dict[str, Any]] = {"error": "CancelledError", "message": "x", "applied": True, "traceback": ""}
DEVICE: Final = f"{PS}/device:CPU:0".encode()
NO_PLACE: Final = dict.fromkeys(("node", "op", "source", "expected", "actual"))


class Scene(NamedTuple):
    """Targets of an attack: a folder, a running step, a registered part, and the client of a connection."""

    where: tuple[str, int]
    folder: Path
    step: int
    handle: int
    client: int


def asked(kind: str, body: dict[str, Any], tensors: Any = (), number: int = 1, what: int = REQUEST) -> bytes:
    return b"".join(frames(what, number, {"kind": kind, "timeout": None, "body": body}, tensors))


def texts(*row: bytes) -> Tensor:
    """Return a string tensor of one row."""
    lengths = b"".join(len(text).to_bytes(4, "little") for text in row)
    return "string", (1, len(row)), lengths + b"".join(row)


def registered(part: Part) -> bytes:
    return asked("register", *part.message())


def opening_a_file(scene: Scene, op: str) -> Part:
    """Return a part that reads or writes a file."""
    part = Part(PS, f"{PS}/device:CPU:0", feeds=0, fetches=0)
    text = str(scene.folder / "written").encode()
    value = part.constant("string", (), len(text).to_bytes(4, "little") + text)
    name = part.node("name", "Const", [], {"value": value, "dtype": part.dtype("string")}, [("string", [])])
    part.node("file", op, [(name, 0)] * (2 if op == "WriteFile" else 1), {}, [])
    return part


def calling(scene: Scene) -> Part:
    part = Part(PS, f"{PS}/device:CPU:0", feeds=0, fetches=0)
    part.node("f", "PyFunc", [], {"token": "pyfunc_0"}, [])
    return part


def ran(scene: Scene) -> bytes:
    body = {"handle": scene.handle, "trace": False, "beat": 0, "patience": 9.0, "seconds": None, "answered": True}
    return asked("run", body, [("float32", (1,), bytes(4))], secrets.randbits(50) + 1)


# Requests that attempt what the table denies to unauthenticated clients. Each key is a substring of a row of the table.
WORDS: Final[dict[str, Callable[[Scene], bytes]]] = {
    "its own Python code": lambda scene: registered(calling(scene)) + ran(scene),
    "a Python function of the worker": lambda scene: registered(calling(scene)) + ran(scene),
    "run graphs": lambda scene: registered(doubling()) + ran(scene),
    "outside of the worker": lambda scene: registered(opening_a_file(scene, "ReadFile")) + ran(scene),
    "files in those folders": lambda scene: registered(opening_a_file(scene, "WriteFile")) + ran(scene),
    "the variables, queues": lambda scene: asked("reset", {"containers": None}),
    "request a device for a variable": lambda scene: asked("settle", {}, [texts(b"", b"v", b"", DEVICE)]),
    "report the devices of variables": lambda scene: (
        asked("claim", {}, [texts(b"", b"v", b"", DEVICE)]) + asked("holds", {}, [texts(b"", b"v")], 2)
    ),
    "end the connection of another process": lambda scene: asked("hello", {"ended": [scene.client]}),
    "stop a step": lambda scene: asked("abort", {"step": scene.step, "error": {**ERROR, **NO_PLACE}}),
    "send values to": lambda scene: asked("deliver", {"edge": "e", "tag": "", "dead": True}, (), scene.step, PUSH),
    "read paths": lambda scene: asked("nothing", {}) + asked("register", {}) + b"".join(frames(REQUEST, 1, {})),
    "slow the worker down": lambda scene: b"".join(frames(REQUEST, 1, {}, [LARGE])),
}
ELSEWHERE: Final = {
    "connection that is reserved for tasks": "test_places: only authenticated clients have connections at all",
    "keep an idle connection": "test_credentials, test_hostile_connections: they are closed after seconds",
    "change data in transit": "test_credentials, test_proving: changed data ends the connection",
    "read data in transit": "below",
}


def rows_of_the_table() -> list[str]:
    lines = TABLE.read_text("utf-8").splitlines()
    rows = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in lines if line.startswith("|")]
    start = next(number for number, row in enumerate(rows) if "unauthenticated client" in row)
    return [row[0] for row in rows[start + 2 :] if len(row) > 1]


def test_security_table_rows_are_all_covered() -> None:
    rows = rows_of_the_table()
    assert len(rows) >= 12
    for row in rows:
        assert sum(key in row for key in (*WORDS, *ELSEWHERE)) == 1, row


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[Scene, af.Session, Any]]:
    """Serve with a secret, a variable of value 7 and a step that waits for a queue; nothing else runs."""
    credentials = Credentials(SECRET)
    with af.Graph().as_default() as graph:
        v = af.Variable(7.0, name="v")
        queue = af.FIFOQueue(3, [af.float32], shapes=[()], shared_name="queue")
        taken, put = queue.dequeue(), queue.enqueue(1.0)
    # PlainClient answers heartbeats only while it waits for an answer.
    options = CommOptions(heartbeat=60.0)
    folders = [folder]
    async with (
        asyncio.timeout(100),
        Server(
            {"ps": ["127.0.0.1:0"]}, "ps", 0, credentials=credentials, allow_dirs=folders, options=options
        ) as server,
        af.Session(server.target, graph=graph, credentials=credentials) as session,
        asyncio.TaskGroup() as tg,
    ):
        await session.run(v.initializer)
        waiting = tg.create_task(session.run(taken))
        host, _, port = server.target.removeprefix("aioflow://").rpartition(":")
        where = (host, int(port))
        while not server.status().activity.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (step,) = [step.id for step in server.status().activity.steps]
        client = secrets.randbits(60) + 1
        with await asyncio.to_thread(PlainClient, where, client, SECRET, secrets.token_bytes(32)) as known:
            handle = await asyncio.to_thread(has_registered, known)
            yield Scene(where, folder, step, handle, client), session, v
            assert (await asyncio.to_thread(known.call, "clock", {}))[0]["now"] > 0, "it is connected as before"
        assert not waiting.done()
        await session.run(put)
        assert await waiting == 1.0


def has_registered(client: PlainClient) -> int:
    """Greet the worker, register a part and return its handle."""
    client.call("hello", {})
    handle: int = client.call("register", *doubling().message())[0]["handle"]
    return handle


async def said(where: tuple[str, int], words: bytes, how: str) -> bytes:
    """Send `words` at the stage of the handshake that `how` names; return all bytes received."""
    reader, writer = await asyncio.open_connection(*where)
    heard = b""
    try:
        if how == "without a hello":
            writer.write(words)
        elif how == "without a secret":
            writer.write(hello(5) + words)
        else:
            ours = hello(secrets.randbits(60) + 1, PROVES) + secrets.token_bytes(32)
            writer.write(ours)
            heard = await reader.readexactly(64)
            secret = {"with a wrong one": b"another secret than that", "with the right one": SECRET}.get(how)
            writer.write((b"" if secret is None else proof(secret, CONNECTING, ours, heard)) + words)
            if secret == SECRET:
                return heard + await reader.readuntil(b"aiof\x02")
        with contextlib.suppress(ConnectionError):
            heard += await reader.read()
    finally:
        writer.transport.abort()
    return heard


@pytest.mark.blocks_loop("the graph is compiled on it")
async def test_requests_without_a_valid_proof_have_no_answer_or_effect(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("as it was")
    async with scene(tmp_path) as (there, session, v):
        before = await session.health(30.0)
        for line, words in WORDS.items():
            for how in ("without a hello", "without a secret", "without a proof", "with a wrong one"):
                heard = await said(there.where, words(there), how)
                assert heard[64:] in (b"", bytes(32)), (line, how)
                assert b"aiof\x02" not in heard, (line, how)
        assert await session.run(v) == 7.0
        assert contents(tmp_path) == {"there": "as it was"}
        after = await session.health(30.0)
        assert registered_parts(after) <= registered_parts(before) + 1, "the read of the variable"


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.blocks_loop("the graph is compiled on it")
async def test_client_with_the_secret_is_answered(tmp_path: Path) -> None:
    # The control: the requests above go unanswered only because their proof is missing.
    async with scene(tmp_path) as (there, _, _):
        assert b"aiof\x02" in await said(there.where, WORDS["run graphs"](there), "with the right one")


def registered_parts(health: Any) -> int:
    return sum(state.registered for state in health.values())
