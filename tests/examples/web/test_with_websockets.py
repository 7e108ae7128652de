"""The service of WebSocket messages, as a process with real clients."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from examples.web.with_websockets import IN_FLIGHT
from tests.examples.web.load import rows_by_chance
from tests.examples.web.services import IMAGES, Oracle, Service, serving, uvicorn
from tests.support.processes import SECONDS

client = pytest.importorskip("websockets.asyncio.client")
ConnectionClosed: Any = pytest.importorskip("websockets.exceptions").ConnectionClosed

COMMAND = uvicorn("examples.web.with_websockets:app")


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[Any]:
    url = f"ws://127.0.0.1:{service.port}/predict"
    async with asyncio.timeout(SECONDS), client.connect(url, proxy=None, max_size=1 << 24, compression=None) as socket:
        yield socket


async def converse(service: Service, oracle: Oracle, chance: random.Random, count: int) -> None:
    """Send messages without waiting, some of them malformed. Check that each answer belongs to its own message."""
    asked: dict[int, Any] = {}

    async def send(socket: Any, number: int) -> None:
        await socket.send(json.dumps({"id": number, "pixels": asked[number].tolist()}))

    async def send_all(socket: Any) -> None:
        for number in range(count):
            asked[number] = rows_by_chance(chance)
            await send(socket, number)
            if chance.random() < 0.2:
                nonsense = ["", "7", "[]", "{}", '{"id": 3', '{"id": -1, "pixels": [[1]]}', "[" * 100_000]
                await socket.send(chance.choice(nonsense))

    async def send_again(socket: Any, number: int, pause: float) -> None:
        await asyncio.sleep(pause)
        await send(socket, number)

    async with connected(service) as socket, asyncio.TaskGroup() as group:
        group.create_task(send_all(socket))
        answered = 0
        while answered < count:
            answer = json.loads(await socket.recv())
            if "retry_after" in answer:  # waiting here would also stop reading pongs
                group.create_task(send_again(socket, answer["id"], answer["retry_after"]))
            elif "error" in answer:
                assert answer["id"] in (None, -1), answer
            else:
                assert oracle.agrees(asked.pop(answer["id"]), answer["probabilities"])
                answered += 1


async def leave(service: Service, chance: random.Random) -> None:
    """Send many messages, then close or abort the connection."""
    async with connected(service) as socket:
        for number in range(chance.randint(1, 40)):
            await socket.send(json.dumps({"id": number, "pixels": rows_by_chance(chance).tolist()}))
        if chance.random() < 0.5:
            socket.transport.abort()


async def test_the_service_answers_under_load(folder: Path, oracle: Oracle) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        async with connected(service):
            pass  # the service now has what it creates once
        files = service.files
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(converse(service, oracle, random.Random(number), 60))
            for number in range(12):
                group.create_task(leave(service, random.Random(-number)))
        await service.closed(files)
        await converse(service, oracle, random.Random(9), 5)


async def test_a_client_that_does_not_read_only_blocks_itself(folder: Path, oracle: Oracle) -> None:
    """Unread answers fill the buffers of both ends; then unread messages do."""
    text = json.dumps({"id": 0, "pixels": IMAGES[:30].tolist()})
    patient = (*COMMAND, "--ws-ping-timeout", "600")  # the default closes connections that do not read pings
    async with serving(*patient, MODEL=str(folder)) as service, connected(service) as greedy:
        greedy.transport.pause_reading()
        sent = await _send_until_stuck(greedy, text)
        assert IN_FLIGHT <= sent < 20_000
        await converse(service, oracle, random.Random(1), 20)
        greedy.transport.resume_reading()
        for _ in range(sent):
            answer = json.loads(await greedy.recv())
            assert "retry_after" in answer or oracle.agrees(IMAGES[:30], answer["probabilities"])


async def _send_until_stuck(socket: Any, text: str) -> int:
    sent = 0
    with suppress(TimeoutError):
        while sent < 20_000:
            async with asyncio.timeout(2.0):
                await socket.send(text)
            sent += 1
    return sent


async def test_connections_are_closed_with_a_code(folder: Path) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        async with connected(service) as binary:
            await binary.send(b"\0\1")
            with pytest.raises(ConnectionClosed) as closed:
                await binary.recv()
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1003, "messages are text")
        async with connected(service) as other:
            service.stop()
            with pytest.raises(ConnectionClosed) as closed:
                await other.recv()
            assert closed.value.rcvd.code == 1012
        await service.process.wait()
