"""Streams of tokens over HTTP: the GPT-2 example as a served model, compared with a model in plain NumPy."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.service import serving
from tests.serve.token_models import alone, saved

STREAM, WHOLE = "/v2/models/gpt2/generate_stream", "/v2/models/gpt2/generate"


def events(body: str) -> list[Any]:
    """Return the data of server-sent events."""
    lines = body.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_text_is_streamed_token_by_token(tmp_path: Path) -> None:
    weights = await saved(tmp_path / "m")
    expected = alone(weights, b"Hello", 20)
    async with serving({"gpt2": tmp_path / "m"}) as (_, client):
        data = {"text_input": "Hello", "id": "7", "parameters": {"max_tokens": 20}}
        response = await client.post(STREAM, json=data)
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        *found, last = events(response.text)
        assert [event["tokens"] for event in found] == [[token] for token in expected]
        assert (last["tokens"], last["finish_reason"]) == ([], "length")
        assert {(each["model_name"], each["model_version"], each["id"]) for each in (*found, last)} == {
            ("gpt2", "1", "7")
        }
        text = "".join(each["text_output"] for each in (*found, last))
        assert text == bytes(expected).decode(errors="replace")
        response = await client.post(WHOLE, json=data)
        assert response.json() == {
            "model_name": "gpt2",
            "model_version": "1",
            "id": "7",
            "tokens": expected,
            "text_output": text,
            "finish_reason": "length",
        }


async def test_many_streams_share_steps_and_equal_each_alone(tmp_path: Path) -> None:
    weights = await saved(tmp_path / "m")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, rng.integers(1, 36)).tolist() for _ in range(24)]

    async def one(client: Any, prompt: list[int], pause: float) -> list[int]:
        await asyncio.sleep(pause)
        response = await client.post(WHOLE, json={"tokens": prompt, "parameters": {"max_tokens": 30}})
        found: list[int] = response.json()["tokens"]
        return found

    async with serving({"gpt2": tmp_path / "m"}) as (_, client), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(client, prompt, rng.uniform(0, 0.3))) for prompt in prompts]
        await asyncio.wait(tasks)
    for prompt, task in zip(prompts, tasks, strict=True):
        assert task.result() == alone(weights, prompt, 30)


async def test_sampling_depends_on_the_seed(tmp_path: Path) -> None:
    await saved(tmp_path / "m")
    async with serving({"gpt2": tmp_path / "m"}) as (_, client):
        found = []
        for seed in (1, 1, 2):
            parameters = {"max_tokens": 20, "temperature": 30.0, "top_k": 50, "seed": seed}
            response = await client.post(WHOLE, json={"tokens": [1], "parameters": parameters})
            found.append(response.json()["tokens"])
        assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        ({}, 400, "no prompt"),
        ({"text_input": "a", "tokens": [1]}, 400, "no prompt, or two"),
        ({"text_input": ""}, 400, "a prompt of one token"),
        ({"text_input": 1}, 400, "'text_input'"),
        ({"tokens": []}, 400, "a prompt of one token"),
        ({"tokens": [256]}, 400, "does not fit"),
        ({"tokens": [-1]}, 400, "'tokens'"),
        ({"tokens": [True]}, 400, "'tokens'"),
        ({"tokens": [1.5]}, 400, "'tokens'"),
        ({"tokens": [10**30]}, 400, "does not fit"),
        ({"tokens": [1] * 41}, 400, "does not fit"),
        ({"tokens": [1], "parameters": []}, 400, "'parameters'"),
        ({"tokens": [1], "parameters": {"max_tokens": 0}}, 400, "'max_tokens'"),
        ({"tokens": [1], "parameters": {"temperature": -1}}, 400, "'temperature'"),
        ({"tokens": [1], "parameters": {"temperature": "1"}}, 400, "'temperature'"),
        ({"tokens": [1], "parameters": {"top_k": 0}}, 400, "'top_k'"),
        ({"tokens": [1], "parameters": {"seed": -1}}, 400, "'seed'"),
    ],
)
async def test_invalid_requests_have_a_status(quick_models: Path, data: Any, status: int, said: str) -> None:
    async with serving({"gpt2": quick_models}) as (_, client):
        for path in (STREAM, WHOLE):
            response = await client.post(path, json=data)
            assert (response.status_code, said in response.json()["error"]) == (status, True), response.text


@pytest.fixture(scope="module")
def quick_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams") / "m"
    asyncio.run(saved(folder))
    return folder
