"""The service in FastAPI, as a process with real clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.demo.digits import load_digits
from tests.examples.web.load import Api, Load, answered_although_it_ends
from tests.examples.web.services import IMAGES, Oracle, serving, uvicorn

pytest.importorskip("fastapi")

COMMAND = uvicorn("examples.web.with_fastapi:app")
DIGITS = load_digits()


def api_of(oracle: Oracle) -> Api:
    def agrees(rows: Any, answer: Any) -> bool:
        expected = oracle.probabilities(rows)
        best = expected.argmax(1).tolist()
        return answer["digits"] == best and np.allclose(answer["probabilities"], expected.max(1), rtol=1e-3)

    return Api(agrees, body=lambda rows: {"pixels": rows.tolist()})


async def test_the_service_answers_under_load(folder: Path, oracle: Oracle) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service:
        await Load(service, api_of(oracle)).run()
        await answered_although_it_ends(service, api_of(oracle))


async def test_lines_are_streamed_and_end_with_the_client(folder: Path, oracle: Oracle) -> None:
    async with serving(*COMMAND, MODEL=str(folder)) as service, service.client() as client:
        files = service.files
        found: list[int] = []
        async with client.stream("POST", "/predict/lines", json={"pixels": IMAGES[:500].tolist()}) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            async for line in response.aiter_lines():
                found += json.loads(line)["digits"]
        assert found == oracle.probabilities(IMAGES[:500]).argmax(1).tolist()
        for _ in range(5):
            async with client.stream("POST", "/predict/lines", json={"pixels": IMAGES[:1000].tolist()}) as response:
                await anext(response.aiter_lines())
        await service.closed(files + 1)


async def test_learned_weights_are_saved_after_the_response_and_restored(folder: Path, oracle: Oracle) -> None:
    lesson = {"pixels": DIGITS.images[:80].tolist(), "labels": DIGITS.labels[:80].tolist()}
    first = int(str(af.train.latest_checkpoint(folder)).rpartition("-")[2])
    async with serving(*COMMAND, MODEL=str(folder)) as service, service.client() as client:
        async with asyncio.TaskGroup() as group:
            learning = [group.create_task(client.post("/learn", json=lesson)) for _ in range(10)]
            answers = [group.create_task(client.post("/predict", json=lesson)) for _ in range(10)]
        learnt = [task.result().json() for task in learning]
        assert {task.result().status_code for task in answers} == {200}
        assert sorted(each["step"] for each in learnt) == list(range(first + 1, first + 11)), "one at a time"
        by_step = sorted(learnt, key=lambda each: each["step"])
        assert by_step[-1]["loss"] < by_step[0]["loss"]
        wrong = await client.post("/learn", json=lesson | {"labels": [1, 2]})
        assert wrong.status_code == 400
        after = (await client.post("/predict", json=lesson)).json()
        service.stop()
    assert af.train.latest_checkpoint(folder) == str(folder / f"model-{first + 10}")
    async with serving(*COMMAND, MODEL=str(folder)) as service, service.client() as client:
        again = (await client.post("/predict", json=lesson)).json()
    assert again["digits"] == after["digits"]
    np.testing.assert_allclose(again["probabilities"], after["probabilities"], rtol=1e-5)
