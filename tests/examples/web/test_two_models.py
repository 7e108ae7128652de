"""The service of several models, as a process: versions change under load, and no accepted request is lost."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from examples.web.saved_models import make_models
from tests.examples.web.load import Api, Load, answered_although_it_ends, rows_by_chance
from tests.examples.web.services import IMAGES, serving, uvicorn
from tests.support.processes import SECONDS

pytest.importorskip("prometheus_client")

COMMAND = uvicorn("examples.web.two_models:app")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    asyncio.run(make_models(folder))
    return folder


def weights(models: Path, version: str) -> dict[str, Any]:
    return safetensors.numpy.load_file(models / version / "weights.safetensors")


def digits(models: Path, number: int, rows: Any) -> Any:
    """Compute the probabilities, [n, 10], with NumPy."""
    found = weights(models, f"digits/{number}")
    logits = np.maximum(rows @ found["hidden"], 0) @ found["output"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def strokes(models: Path, rows: Any) -> Any:
    """Compute the reconstruction errors, [n], with NumPy."""
    found = weights(models, "strokes/1")
    return np.square(np.tanh(rows @ found["encoder"]) @ found["decoder"] - rows).mean(1)


def close(found: Any, expected: Any) -> bool:
    return np.shape(found) == expected.shape and bool(np.allclose(found, expected, rtol=1e-3, atol=1e-4))


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(SECONDS):
        while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)


async def test_both_models_answer_under_load(models: Path) -> None:
    def newest(rows: Any, answer: Any) -> bool:
        return bool(answer["version"] == 2) and close(answer["values"], digits(models, 2, rows))

    def distant(rows: Any, answer: Any) -> bool:
        return close(answer["values"], strokes(models, rows))

    async with serving(*COMMAND, MODELS=str(models)) as service:
        async with service.client() as client:
            await until_ready(client)
            assert (await client.get("/inference/v2/models/digits")).json()["versions"] == ["2"]
        apis = [Api(newest, path="/models/digits"), Api(distant, path="/models/strokes")]
        for number, api in enumerate(apis):
            await Load(service, api, requests=20).run(number)
        await answered_although_it_ends(service, apis[1])


async def test_no_request_is_lost_while_versions_change(models: Path, tmp_path: Path) -> None:
    """Each answer is that of one version, and names the version."""
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    async with serving(*COMMAND, MODELS=str(tmp_path)) as service, service.client() as client:
        await until_ready(client)
        changing, seen = True, set()

        async def ask(chance: random.Random) -> None:
            while changing:
                rows = rows_by_chance(chance)
                response = await client.post("/models/digits", json=rows.tolist())
                assert response.status_code == 200, response.text
                answer = response.json()
                seen.add(answer["version"])
                assert close(answer["values"], digits(models, answer["version"], rows))

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(ask(random.Random(number)))
            for _ in range(6):
                shutil.rmtree(tmp_path / "digits" / "2")
                assert (await client.put("/models/digits")).status_code == 204
                shutil.copytree(models / "digits" / "2", tmp_path / "digits" / "2")
                assert (await client.put("/models/digits")).status_code == 204
            changing = False
        assert seen == {1, 2}


async def test_oversized_and_unknown_models_are_rejected(models: Path) -> None:
    large, other = _size(models, "digits/2"), _size(models, "strokes/1")
    memory = large + max(large, other)  # enough for two models
    rows = IMAGES[:1].tolist()
    async with serving(*COMMAND, MODELS=str(models), MEMORY=str(memory)) as service, service.client() as client:
        await until_ready(client)
        refused = await client.put("/models/digits")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert "no memory left" in refused.json()["error"]
        assert (await client.post("/models/digits", json=rows)).status_code == 200, "and nobody has noticed"
        assert (await client.delete("/models/strokes")).status_code == 204
        assert (await client.put("/models/digits")).status_code == 204
        assert (await client.post("/models/digits", json=rows)).status_code == 200
        for method, name in (("POST", "strokes"), ("POST", "others"), ("PUT", "others"), ("DELETE", "others")):
            assert (await client.request(method, f"/models/{name}", json=rows)).status_code == 404


def _size(models: Path, version: str) -> int:
    return sum(array.nbytes for array in weights(models, version).values())


async def test_a_damaged_model_does_not_affect_the_other_one(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    (tmp_path / "digits" / "2" / "aioflow.json").write_bytes(b"nonsense")
    async with serving(*COMMAND, MODELS=str(tmp_path)) as service, service.client() as client:
        async with asyncio.timeout(SECONDS):
            rows = IMAGES[:1].tolist()
            while (await client.post("/models/strokes", json=rows)).status_code != 200:  # noqa: ASYNC110  # see above
                await asyncio.sleep(0.02)
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert ["digits", "", "UNAVAILABLE"] in [each[:3] for each in answer.json()]
        shutil.rmtree(tmp_path / "digits" / "2")
        assert (await client.put("/models/digits")).status_code == 204
        assert (await client.get("/ready")).status_code == 200
