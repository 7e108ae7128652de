"""uvicorn inside a program: what clients that go away cost, and what is left of a server that is cancelled."""

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

from aioflow.web_server import EmbeddedServer, EmbeddedSettings  # it may not be there
from tests.cancelling import LOOPS, cancel_at_each_turn, run_on

Loop = Callable[[], asyncio.AbstractEventLoop]
loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)

LIMIT = 60.0  # seconds in which whatever a test waits for must have come
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0)


async def answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[EmbeddedServer, int]]:
    """A server and its port."""
    server = EmbeddedServer(EmbeddedSettings(app, lifespan="off", access_log=False, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve(sockets=[listener]))
            try:
                yield server, listener.getsockname()[1]
            finally:
                serving.cancel()


@pytest.mark.parametrize("is_reset", [False, True])
@loops
def test_pipelined_requests_of_a_lost_connection_all_learn_of_it(
    loop: Loop, is_reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        assert (await receive())["type"] == "http.request"
        ended.append((await receive())["type"])
        await answer(send)

    begun: list[str] = []
    ended: list[str] = []

    async def main() -> None:
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

    run_on(loop, main())


@loops
def test_answered_requests_log_nothing_without_an_access_log(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    async def main() -> None:
        async with serving(app) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.close()
        assert not [each for each in caplog.records if each.name == "uvicorn.access"]

    run_on(loop, main())


@pytest.mark.parametrize("is_cancelled", [False, True])
@loops
def test_requests_that_are_cut_off_are_answered(
    loop: Loop, is_cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By a server that is cancelled, and by one whose requests take too long when it ends."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()  # does not ask whether its client has gone
        finally:
            ended.append(True)

    begun = asyncio.Event()
    ended: list[bool] = []

    async def main() -> None:
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

    run_on(loop, main())


@loops
def test_cancelled_server_does_not_wait_for_a_client_that_does_not_read(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % (1 << 30))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            sent.append(True)

    sent: list[bool] = []

    async def main() -> None:
        async with asyncio.timeout(LIMIT), serving(app) as (_, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(REQUEST)
                await until(lambda: sent)

    run_on(loop, main())


@loops
def test_a_server_that_has_ended_drops_connections_that_it_was_accepting(loop: Loop) -> None:
    async def main() -> None:
        async with serving(None) as (server, port):
            server.server_state.is_over = True
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(LIMIT):
                    assert await reader.read(1) == b""
            writer.close()
            assert not server.server_state.connections

    run_on(loop, main())


@loops
def test_a_server_cancelled_at_any_turn_leaves_nothing(loop: Loop) -> None:
    async def work() -> None:
        async with serving(None):
            await asyncio.sleep(0)

    async def main() -> None:
        await cancel_at_each_turn(work, turns=10)

    run_on(loop, main())
