"""The service under load and attack: late, disconnected, slow and hostile clients, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.serve import Limits, ModelOptions
from tests.serve.folders import SECONDS, rows, save_model, scaled, slow
from tests.serve.service import Server, ServerOptions, asked, families, httpx, post, serving, values
from tests.support.waiting import eventually


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return await save_model(tmp_path / "m", scaled(2))


async def test_full_queue_is_429_and_late_response_504(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", slow(2**31 - 1))
    options = ModelOptions(max_batch_size=1, max_enqueued_batches=1, warmup=False)
    x = np.ones([1, 1], np.float32)
    async with serving({"m": tmp_path / "m"}, options) as (server, client):
        batched = next(iter(server.repository.get("m").calls.values()))
        late = asked(x, parameters={"timeout": 1_000_000})
        async with asyncio.TaskGroup() as group:
            running = group.create_task(client.post("/v2/models/m/infer", json=late))
            await eventually(lambda: batched.statistics().running_batches)
            waiting = group.create_task(client.post("/v2/models/m/infer", json=late))
            await eventually(lambda: batched.statistics().waiting_rows)
            response = await client.post("/v2/models/m/infer", json=late)
            assert response.status_code == 429
            assert int(response.headers["Retry-After"]) >= 1
        assert (running.result().status_code, waiting.result().status_code) == (504, 504)
        assert batched.statistics().batches == 0  # a request that expires in the queue is never computed
        stats = (await client.get("/v2/models/m/stats")).json()["model_stats"][0]
        assert stats["inference_stats"]["fail"]["count"] == 3


async def test_client_that_disconnects_stops_its_step(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", slow(2**31 - 1))
    async with serving({"m": tmp_path / "m"}, ModelOptions(warmup=False)) as (server, _):
        batched = next(iter(server.repository.get("m").calls.values()))
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(json.dumps(asked(np.ones([1, 1], np.float32))).encode()))
        await eventually(lambda: batched.statistics().running_batches)
        writer.close()
        await eventually(lambda: not batched.statistics().running_batches)
        assert server.repository.get("m").tally.outcomes["gone"] == 1
        assert batched.statistics().cancelled == 1


class Clients:
    """Clients that get correct responses, disconnect, are late or send garbage."""

    def __init__(self, server: Any, client: Any) -> None:
        self.client = client
        self.port = int(server.url.rpartition(":")[2])
        self.right = 0
        self.refused = 0

    async def good(self, seed: int) -> None:
        for number in range(25):
            x = rows(1 + (seed + number) % 4, 1000 * seed + number)
            response = await self.client.post("/v2/models/m/infer", json=asked(x, id=f"{seed}/{number}"))
            np.testing.assert_allclose(values(response), x * int(response.json()["model_version"]), rtol=1e-5)
            assert response.json()["id"] == f"{seed}/{number}"
            self.right += 1

    async def impatient(self) -> None:
        for number in range(25):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0005 * (number % 5)):
                    await self.client.post("/v2/models/m/infer", json=asked(rows(2)))

    async def late(self) -> None:
        for _ in range(25):
            response = await self.client.post("/v2/models/m/infer", json=asked(rows(), parameters={"timeout": 1}))
            assert response.status_code in (200, 504)

    async def garbage(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for number in range(25):
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                body = rng.bytes(50)
                writer.write(body if number % 4 == 0 else post(body, 50 + number % 3 * 1000))
                if number % 3 == 0:
                    self.refused += (await reader.read(12)).startswith(b"HTTP/1.1 4")
                writer.close()


async def test_clients_of_all_kinds_at_once(tmp_path: Path) -> None:
    """Newer versions are loaded during the requests. Every response must be correct, and no request may leave state."""
    await save_model(tmp_path / "1", scaled(1))
    async with serving({"m": tmp_path}) as (server, client):
        clients = Clients(server, client)
        async with asyncio.TaskGroup() as group:
            for seed in range(6):
                group.create_task(clients.good(seed))
            group.create_task(clients.impatient())
            group.create_task(clients.late())
            group.create_task(clients.garbage(2))
            for version in (2, 3):
                await save_model(tmp_path / str(version), scaled(version))
                assert (await client.post("/v2/repository/models/m/load")).status_code == 200
        assert clients.right == 150
        assert clients.refused
        model = server.repository.get("m")
        await eventually(lambda: not model.users)
        (call,) = model.calls.values()
        found = call.statistics()
        assert (found.waiting_requests, found.waiting_rows, found.running_batches) == (0, 0, 0)
        metrics = await families(client)
        assert metrics["aioflow_request_bytes"] == {(): 0.0}
        assert metrics["aioflow_pending_requests"] == {("m", "3"): 0.0}


async def test_running_requests_are_answered_at_shutdown(tmp_path: Path) -> None:
    await save_model(tmp_path / "m", slow(300))
    x = np.ones([1, 1], np.float32)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        async with Server({"m": tmp_path / "m"}, ModelOptions(warmup=False), ServerOptions(port=0)) as server:
            await server.ready()
            client = httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=SECONDS)
            asking = [group.create_task(client.post("/v2/models/m/infer", json=asked(x))) for _ in range(5)]
            model = server.repository.get("m")
            await eventually(lambda: model.users == 5)
        assert model.session.closed
        for each in asking:
            np.testing.assert_array_equal(values(await each), x)
        await client.aclose()


async def test_body_that_does_not_arrive_times_out(folder: Path) -> None:
    async with serving({"m": folder}, limits=Limits(body_seconds=0.05)) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(post(b"{", 50))
        assert (await reader.readline()).startswith(b"HTTP/1.1 504")
        writer.close()


async def test_total_size_of_all_requests_is_limited(folder: Path) -> None:
    async with serving({"m": folder}, limits=Limits(pending_bytes=300)) as (server, client):
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(post(b" " * 290, 500))
        async with asyncio.timeout(SECONDS):
            while (await families(client))["aioflow_request_bytes"] != {(): 290.0}:
                pass
        response = await client.post("/v2/models/m/infer", json=asked(rows()))
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        assert not server.repository.get("m").users  # a client that is slow to send holds no version
        writer.close()
        await eventually(lambda: server.repository.get("m").tally.outcomes["gone"])
        assert (await client.post("/v2/models/m/infer", json=asked(rows()))).status_code == 200


async def test_client_that_is_slow_to_read_holds_no_version(tmp_path: Path) -> None:
    def wide() -> Any:
        x = af.placeholder("float32", [None, 1_000_000], name="x")
        return {"x": x}, {"y": x * 2.0}

    await save_model(tmp_path / "m", wide)
    x = np.ones([4, 1_000_000], np.float32)
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    async with serving({"m": tmp_path / "m"}) as (server, client):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]), limit=1 << 10)
        length = f"Inference-Header-Content-Length: {len(head)}\r\n\r\n".encode()
        writer.write(post(head + x.tobytes()).replace(b"\r\n\r\n", b"\r\n" + length, 1))
        await writer.drain()
        model = server.repository.get("m")
        await eventually(lambda: model.tally.outcomes["ok"])
        assert (await families(client))["aioflow_request_bytes"][()] >= 2 * x.nbytes
        assert (await client.post("/v2/repository/models/m/unload")).status_code == 200
        assert model.session.closed
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        async with asyncio.timeout(SECONDS):
            while (await families(client))["aioflow_request_bytes"][()]:
                pass
