"""The service in Starlette, as a process with real clients."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tests.examples.web.load import (
    Api,
    Load,
    answered_although_it_ends,
    callers_share_steps,
    gone_before_they_are_computed,
)
from tests.examples.web.services import IMAGES, Oracle, Service, serving, uvicorn
from tests.support.processes import SECONDS

COMMAND = uvicorn("examples.web.with_starlette:app")


async def test_the_service_answers_under_load(folder: Path, oracle: Oracle) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        load = Load(service, Api(oracle.agrees))
        await load.run()
        assert load.seen["late"] > 0 < load.seen["cancelled"]
        await nothing_left(service)
        await callers_share_steps(service, Api(oracle.agrees))
        await gone_before_they_are_computed(service, Api(oracle.agrees))
        await answered_although_it_ends(service, Api(oracle.agrees))


async def nothing_left(service: Service) -> dict[str, int]:
    """Return the statistics once no request waits."""
    async with asyncio.timeout(SECONDS), service.client() as client:
        while True:
            found: dict[str, int] = (await client.get("/statistics")).json()
            if not found["waiting_rows"] + found["running_batches"]:
                return found


async def test_a_full_queue_sends_retry_after_and_large_bodies_are_rejected(folder: Path, oracle: Oracle) -> None:
    """16 batches of 64 rows may wait. Every accepted request is answered."""
    rows = IMAGES[:900]
    async with serving(*COMMAND, MODEL=str(folder)) as service, service.client() as client:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(client.post("/predict", json=rows.tolist())) for _ in range(12)]
        answers = [task.result() for task in asked]
        assert {answer.status_code for answer in answers} == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["Retry-After"]) >= 1
            else:
                assert oracle.agrees(rows, answer.json())
        assert (await client.post("/predict", json=rows.tolist())).status_code == 200
        answer = await client.post("/predict", content=b"[" + b"0," * (1 << 19) + b"0]")
        assert answer.status_code == 413
        for limit in ("abc", "nan", "-1"):
            answer = await client.post(f"/predict?timeout={limit}", json=IMAGES[:1].tolist())
            assert answer.status_code in (400, 504)


async def test_early_requests_are_answered_once_the_service_is_ready(folder: Path, oracle: Oracle) -> None:
    """The socket exists before the service, as with systemd or another supervisor."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        async with serving(*COMMAND, listener=listener, MODEL=str(folder)) as service, service.client() as client:
            assert not service.printed, "it has not even begun"
            async with asyncio.TaskGroup() as group:
                rows = [IMAGES[i : i + 1] for i in range(20)]
                asked = [group.create_task(client.post("/predict", json=each.tolist())) for each in rows]
            assert all(oracle.agrees(each, task.result().json()) for each, task in zip(rows, asked, strict=True))


async def test_the_service_creates_a_missing_checkpoint(tmp_path: Path) -> None:
    async with serving(*COMMAND, MODEL=str(tmp_path / "new")) as service, service.client() as client:
        answer = await client.post("/predict", json=IMAGES[:50].tolist())
    assert Oracle(tmp_path / "new").agrees(IMAGES[:50], answer.json())
