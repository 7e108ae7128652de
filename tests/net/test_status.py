"""The status page of a server: its content, the Prometheus format, and the bounded cost of requests."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import aioflow as af
from aioflow.net.server import Server
from aioflow.net.status import Activity, RunningStep, ServerStatus
from aioflow.net.status_page import MOST_BYTES, answer, as_metrics, as_text, serve_status
from tests.net.clusters import cluster
from tests.support.loops import on_each_loop

SECONDS = 60.0
TASK = "/job:ps/replica:0/task:0"


def status(state: str = "serves", **activity: Any) -> ServerStatus:
    return ServerStatus(TASK, "aioflow://127.0.0.1:1", state, 1.5, (f"{TASK}/device:CPU:0",), Activity(**activity))


def asked(request: bytes, now: ServerStatus | None = None) -> tuple[int, dict[str, str], str]:
    """Return the status code, headers and body of the answer to a complete request."""
    found = answer(request, lambda: now or status())
    assert found is not None
    head, _, body = found.decode().partition("\r\n\r\n")
    first, *headers = head.split("\r\n")
    version, code, _ = first.split(" ", 2)
    assert version == "HTTP/1.0"
    named = dict(header.split(": ", 1) for header in headers)
    assert int(named["Content-Length"]) == len(body.encode()) or request.startswith(b"HEAD")
    return int(code), named, body


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("state", "code"), [("begins", 503), ("serves", 200), ("drains", 503), ("ended", 503)])
def test_health_reports_whether_the_server_accepts_steps(state: str, code: int) -> None:
    assert asked(b"GET /health HTTP/1.1\r\n\r\n", status(state))[::2] == (code, f"{state}\n")
    assert f'aioflow_ready{{task="{TASK}"}} {int(state == "serves")}\n' in as_metrics(status(state))


SAMPLE = re.compile(r'([a-z_]+)\{task="((?:[^"\\\n]|\\[\\"n])*)"\} (-?[0-9.e+-]+)')


def test_metrics_are_in_prometheus_format() -> None:
    code, headers, body = asked(b"GET /metrics HTTP/1.0\n\n", status(begun=1_234_567_890_123, running=2))
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert body.endswith("\n")
    values: dict[str, str] = {}
    for help_line, type_line, sample in zip(*[iter(body.splitlines())] * 3, strict=True):
        found = SAMPLE.fullmatch(sample)
        assert found, sample
        assert help_line.startswith(f"# HELP {found[1]} ")
        assert type_line == f"# TYPE {found[1]} {'counter' if found[1].endswith('_total') else 'gauge'}"
        assert found[2] == TASK
        values[found[1]] = found[3]
    assert values["aioflow_steps_begun_total"] == "1234567890123"
    assert values["aioflow_steps_running"] == "2"
    assert values["aioflow_uptime_seconds"] == "1.5"


def test_text_lists_running_steps_without_control_characters() -> None:
    step = RunningStep(7, 2.0, ("dequeue on the queue q", "x" * 10_000, "evil\x1b[2J\nstate  serves on it"))
    text = as_text(status(running=3, steps=(step, RunningStep(0, 1.0, ()))))
    assert "step 7 has been running for 2.000 s\n    waits for dequeue on the queue q\n" in text
    assert "a step on this task only has been running for 1.000 s\n  and 1 more\n" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) == 13
    assert len(text) < 2000


# ── hostile requests ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.1\n\n", 200),
        (b"HEAD / HTTP/1.1\r\n\r\n", 200),
        (b"GET /.. HTTP/1.1\r\n\r\n", 404),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", 405),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\xfe\0 / HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MOST_BYTES, 431),
        (b"a" * MOST_BYTES, 431),
    ],
)
def test_answer_status_of_requests(request_bytes: bytes, code: int) -> None:
    assert asked(request_bytes)[0] == code


def test_incomplete_requests_get_no_answer_yet() -> None:
    request = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    assert [answer(request[:n], status) for n in range(len(request))] == [None] * len(request)


@given(st.binary(max_size=300) | st.builds(b"".join, st.lists(st.sampled_from([b"GET ", b"/", b" HTTP/1.1", b"\n"]))))
@example(b"\n\n")
def test_any_bytes_are_incomplete_or_answered_once(data: bytes) -> None:
    found = answer(data, status)
    assert found is None or found.startswith(b"HTTP/1.0 ")


# ── over a connection ────────────────────────────────────────────────────────────────────────────────────────────────


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, "all places are taken"


async def test_page_shows_running_steps() -> None:
    with af.device("/job:ps"):
        element = af.FIFOQueue(1, [af.float32], shapes=[()], name="q").dequeue(name="take")
    async with (
        cluster("ps", "worker") as (ps, worker),
        asyncio.timeout(SECONDS),
        serve_status(ps.status) as url,
        af.Session(worker.target) as session,
        asyncio.TaskGroup() as tg,
    ):
        assert await asyncio.to_thread(fetched, f"{url}health") == (200, "serves\n")
        running = tg.create_task(session.run(element))
        while not any(step.waiting for step in ps.status().activity.steps):  # noqa: ASYNC110
            await asyncio.sleep(0)
        code, text = await asyncio.to_thread(fetched, url)
        assert code == 200
        assert "1 running, 1 begun" in text
        assert "waits for take on" in text
        running.cancel()
        await asyncio.wait([running])
        await ps.stop()
        assert await asyncio.to_thread(fetched, f"{url}health") == (503, "ended\n")
        assert (await asyncio.to_thread(fetched, f"{url}nothing"))[0] == 404


async def test_silent_and_surplus_connections_are_closed() -> None:
    server = Server.create_local_server()

    async def connections(url: str, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        port = int(url.rstrip("/").rpartition(":")[2])
        return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]

    async with asyncio.timeout(SECONDS), serve_status(server.status, seconds=10 * SECONDS, most=2) as url:
        *silent, (reader, writer) = await connections(url, 3)
        assert await ended(reader) == b""
        for each in (writer, *(out for _, out in silent)):
            each.close()
    async with asyncio.timeout(SECONDS), serve_status(server.status, seconds=0.1, most=2) as url:
        silent = await connections(url, 2)
        for still, out in silent:
            assert await ended(still) == b""
            out.close()
        assert (await asyncio.to_thread(fetched, f"{url}health"))[0] == 503
    await server.stop()


async def test_answer_arrives_when_the_client_sent_too_much() -> None:
    server = Server.create_local_server()
    async with asyncio.timeout(SECONDS), serve_status(server.status) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        writer.write(b"a" * (1 << 20))
        assert (await ended(reader)).startswith(b"HTTP/1.0 431")
        writer.close()
    await server.stop()


@on_each_loop
async def test_reset_connections_free_their_places() -> None:
    # More resets than places for connections: a place that a reset leaves taken would block the request below.
    server = Server.create_local_server()
    async with asyncio.timeout(SECONDS), serve_status(server.status, seconds=SECONDS, most=4) as url:
        await asyncio.to_thread(reset, int(url.rstrip("/").rpartition(":")[2]), 30)
        while (await asyncio.to_thread(fetched, f"{url}health")) != (503, "begins\n"):
            pass
    await server.stop()


def reset(port: int, count: int) -> None:
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port)) as client, suppress(ConnectionError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 2:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes received until the connection ends; b"" if it was reset."""
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_port_in_use_is_an_error() -> None:
    server = Server.create_local_server()
    async with serve_status(server.status) as url:
        with pytest.raises(OSError, match="in use"):
            async with serve_status(server.status, int(url.rstrip("/").rpartition(":")[2])):
                pass
    await server.stop()
