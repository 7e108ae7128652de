"""uvicorn inside a program: disconnecting clients, and cleanup after the server is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="aioflow-engine[serve] is not installed")
pytest.importorskip("httptools", reason="aioflow-engine[serve] is not installed")

from aioflow.serve.embedded import EmbeddedServer, EmbeddedSettings  # after importorskip: it needs uvicorn
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop

LIMIT = 60.0  # seconds that a test waits at most
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
# SO_LINGER with a timeout of 0: closing the socket sends RST instead of FIN.
RESET = struct.pack("ii", 1, 0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110  # no event signals this
            await asyncio.sleep(0)


async def answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[EmbeddedServer, int]]:
    """Yield a server and its port."""
    server = EmbeddedServer(EmbeddedSettings(app, lifespan="off", access_log=False, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            try:
                yield server, listener.getsockname()[1]
            finally:
                serving.cancel()


@pytest.mark.parametrize("is_reset", [False, True])
@on_each_loop
async def test_lost_connection_ends_its_request_and_drops_pipelined_ones(
    is_reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        assert (await receive())["type"] == "http.request"
        ended.append((await receive())["type"])
        await answer(send)

    begun: list[str] = []
    ended: list[str] = []

    async with serving(app) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(REQUEST * 3)
            await until(lambda: begun)
            if is_reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await until(lambda: ended)
        await until(lambda: not server.server_state.tasks)
    assert (begun, ended) == (["/"], ["http.disconnect"])
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING or each.exc_info]


@on_each_loop
async def test_answered_requests_log_nothing_without_an_access_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    async with serving(app) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert not [each for each in caplog.records if each.name == "uvicorn.access"]


@pytest.mark.parametrize("is_cancelled", [False, True])
@on_each_loop
async def test_aborted_requests_are_answered_with_503(is_cancelled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The server is cancelled, or the requests exceed the timeout of its shutdown."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()  # never receives the disconnect
        finally:
            ended.append(True)

    begun = asyncio.Event()
    ended: list[bool] = []

    async with asyncio.timeout(LIMIT), serving(app) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await begun.wait()
        if not is_cancelled:
            server.config.timeout_graceful_shutdown = 0
            server.should_exit = True
            await until(lambda: ended)
    async with asyncio.timeout(LIMIT):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
        assert b"the service has ended" in await reader.read()
    writer.close()
    assert ended
    assert not [each for each in caplog.records if each.exc_info]


@on_each_loop
async def test_cancelled_server_does_not_wait_for_a_client_that_does_not_read() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % (1 << 30))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            sent.append(True)

    sent: list[bool] = []

    async with asyncio.timeout(LIMIT), serving(app) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(REQUEST)
            await until(lambda: sent)


@on_each_loop
async def test_ended_server_drops_new_connections() -> None:
    async with serving(None) as (server, port):
        server.server_state.is_over = True
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(LIMIT):
                assert await reader.read(1) == b""
        writer.close()
        assert not server.server_state.connections


@on_each_loop
async def test_server_cancelled_at_any_turn_leaves_no_tasks() -> None:
    async def work() -> None:
        async with serving(None):
            await asyncio.sleep(0)

    await cancel_at_each_turn(work, turns=10)
