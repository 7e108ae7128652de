"""Servers cancelled at each turn of the loop: their ports are closed afterwards, and nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from aioflow import errors
from aioflow.serve import Repository
from aioflow.serve.calls import CallLimit
from aioflow.web import until_disconnect
from tests.serve.folders import SECONDS, save_model, scaled
from tests.serve.service import Server, ServerOptions, create_app
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop
from tests.support.waiting import eventually

# The head of a request with a body of nine bytes, of which only the first is sent.
HEAD = b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


async def refuses(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


# ── Server ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_server_cancelled_at_any_turn_closes_its_port() -> None:
    port = free_port()

    async def work() -> None:
        async with Server({}, where=ServerOptions(port=port)) as server:
            await server.ready()

    assert await cancel_at_each_turn(work, lambda: refuses(port), turns=10) == 10


@pytest.mark.parametrize("over_grpc", [False, True])
@on_each_loop
async def test_server_cancelled_while_it_ends_aborts_its_requests(over_grpc: bool) -> None:
    if over_grpc:
        pytest.importorskip("grpc", reason="aioflow-engine[grpc] is not installed")

    async def serve() -> None:
        async with Server({}, where=ServerOptions(port=0, grpc_port=0 if over_grpc else None)) as server:
            started.set_result(server)
            await server.stopped()

    started: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        serving = group.create_task(serve())
        server = await started
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        await eventually(lambda: server.app.state.admission.bytes)
        server.stop()
        await eventually(lambda: not server.repository.is_ready)
        serving.cancel()
        await asyncio.wait([serving], timeout=SECONDS / 2)
        assert serving.cancelled()
        assert not server.app.state.admission.bytes
        await refuses(port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()


@on_each_loop
async def test_server_that_is_entered_twice_still_ends() -> None:
    async with asyncio.timeout(SECONDS), Server({}, where=ServerOptions(port=0)) as server:
        with pytest.raises(errors.ClosedSessionError):
            await server.__aenter__()


@on_each_loop
async def test_server_cancelled_at_any_turn_closes_the_sockets_passed_to_it() -> None:
    async def work() -> None:
        given.append(socket.create_server(("127.0.0.1", 0)))
        async with Server({}, sockets=given[-1:]):
            await asyncio.sleep(0)

    async def closed() -> None:
        assert {each.fileno() for each in given} == {-1}

    given: list[socket.socket] = []
    await cancel_at_each_turn(work, closed, turns=4)


@on_each_loop
async def test_application_raises_the_error_of_its_block() -> None:
    app = create_app({})
    with pytest.raises(ValueError, match="of the block"):
        async with app.router.lifespan_context(app):
            raise ValueError("of the block")


@on_each_loop
async def test_application_cancelled_at_any_turn_leaves_no_tasks(tmp_path: Path) -> None:
    async def work() -> None:
        app = create_app({"m": tmp_path / "m"})
        async with app.router.lifespan_context(app):
            await eventually(lambda: app.state.repository.served())

    await save_model(tmp_path / "m", scaled(1))
    await cancel_at_each_turn(work, turns=30)


# ── GrpcServer ───────────────────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_grpc_server_cancelled_at_any_turn_closes_its_port() -> None:
    serve = pytest.importorskip("aioflow.serve.grpc", reason="aioflow-engine[grpc] is not installed")
    port = free_port()

    async def work() -> None:
        async with serve.GrpcServer(repository, ServerOptions(grpc_port=port)):
            await asyncio.sleep(0)

    async with Repository({}) as repository:
        await cancel_at_each_turn(work, lambda: refuses(port), turns=20)


# ── Repository ───────────────────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_repository_cancelled_while_it_ends_closes_every_version(tmp_path: Path) -> None:
    async def hold(repository: Repository, ready: asyncio.Event, end: asyncio.Event) -> None:
        async with repository:
            await repository.load_all()
            ready.set()
            await end.wait()

    await save_model(tmp_path / "a", scaled(1))
    await save_model(tmp_path / "b", scaled(2))
    for turns in range(6):
        repository = Repository({name: tmp_path / name for name in "ab"}, memory_budget=1000)
        ready, end = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            holding = group.create_task(hold(repository, ready, end))
            await ready.wait()
            versions = repository.served()
            with repository.used("a"):  # a request outlives the end of the block
                end.set()
                for _ in range(turns + 1):
                    await asyncio.sleep(0)
                holding.cancel()
                await asyncio.wait([holding])
        assert holding.cancelled()
        assert [each.session.closed for each in versions] == [True, True]
        assert repository.memory is not None
        assert repository.memory.taken == 0


async def refused(change: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(errors.UnavailableError, match="shutting down"):
        await change


@on_each_loop
async def test_repository_that_ends_before_a_load_begins_rejects_it() -> None:
    for change in (Repository.load, Repository.unload):
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            async with Repository({"m": "nowhere"}) as repository:
                changing = group.create_task(refused(change(repository, "m")))
                await asyncio.sleep(0)
            await changing


@on_each_loop
async def test_repository_that_ends_while_it_unloads_closes_the_version(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", scaled(1))
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        async with Repository({"m": tmp_path / "m"}) as repository:
            await repository.load("m")
            (served,) = repository.served()
            group.create_task(refused(repository.unload("m")))
            await eventually(lambda: not repository.served())
        assert served.session.closed


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@on_each_loop
async def test_turns_cancelled_at_any_turn_of_the_loop_are_released() -> None:
    turns = CallLimit(1, 4)

    async def take() -> None:
        async with turns.turn():
            await asyncio.sleep(0)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(take())

    async def unused() -> None:
        assert (turns.running, turns.waiting) == (0, 0)

    await cancel_at_each_turn(work, unused)


@on_each_loop
async def test_until_disconnect_cancelled_at_any_turn_leaves_no_tasks() -> None:
    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    async def compute() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def work() -> None:
        await until_disconnect(receive, compute())

    await cancel_at_each_turn(work)
