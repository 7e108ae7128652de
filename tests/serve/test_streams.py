"""Streams of tokens over HTTP: the GPT-2 example as a served model, compared with a model in plain NumPy."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
import aioflow.serve.generating
from aioflow.errors import ResourceExhaustedError
from aioflow.serve import ModelOptions
from aioflow.serve.tokens.streams import GenerateRequest, read_generate
from tests.saved.altering import change_manifest
from tests.serve.folders import SECONDS, save_model, scaled
from tests.serve.service import ServerOptions, families, serving
from tests.serve.token_models import alone, counted_alone, saved, saved_counting
from tests.support.waiting import eventually

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

    async with serving({"gpt2": tmp_path / "m"}) as (server, client):
        streams = server.repository.get("gpt2").streams
        assert streams is not None
        before = streams.steps
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(client, prompt, rng.uniform(0, 0.3))) for prompt in prompts]
        assert streams.steps - before < sum(len(task.result()) for task in tasks)
    for prompt, task in zip(prompts, tasks, strict=True):
        assert task.result() == alone(weights, prompt, 30)


async def test_a_large_request_is_decoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def read(document: Any) -> Any:
        begun.set()
        assert ended.wait(SECONDS), "the event loop waits for the decoding"
        return read_generate(document)

    monkeypatch.setattr(aioflow.serve.generating, "read_generate", read)
    await saved_counting(tmp_path / "m")
    async with serving({"gpt2": tmp_path / "m"}) as (_, client):
        prompt = [1] * 200_000
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.post(WHOLE, json={"tokens": prompt, "parameters": {"max_tokens": 1}}))
            await eventually(begun.is_set)
            ended.set()
        assert call.result().json()["tokens"] == counted_alone(prompt, 1)


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
        ({"text_input": ""}, 400, "at least one token"),
        ({"text_input": 1}, 400, "'text_input'"),
        ({"tokens": []}, 400, "at least one token"),
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


# ── ends: a disconnect, the end token, a reload, the end of the service ───────────────────────────────────────────────

LONG = {"tokens": [3], "parameters": {"max_tokens": 1_000_000}}
COUNT = "/v2/models/count/generate_stream"


async def test_the_end_token_ends_a_stream(tmp_path: Path) -> None:
    expected = counted_alone([3], 50)
    end = expected[5]
    folder = await saved_counting(tmp_path / "m", end_token=end)
    async with serving({"count": folder}) as (_, client):
        *found, last = events((await client.post(COUNT, json=LONG)).text)
    assert [event["tokens"][0] for event in found] == expected[: expected.index(end)]
    assert last == {"model_name": "count", "model_version": "1", "tokens": [], "finish_reason": "stop"}


async def test_a_model_without_text_takes_tokens_only(tmp_path: Path) -> None:
    async with serving({"count": await saved_counting(tmp_path / "m")}) as (_, client):
        response = await client.post(COUNT, json={"text_input": "a"})
        assert (response.status_code, "no encoding of text" in response.json()["error"]) == (400, True)


async def test_a_model_without_a_loop_has_no_streams(tmp_path: Path) -> None:
    async with serving({"m": await save_model(tmp_path / "m", scaled(2))}) as (_, client):
        response = await client.post("/v2/models/m/generate", json={"tokens": [1]})
        assert (response.status_code, "generates no tokens" in response.json()["error"]) == (400, True)


async def test_a_disconnect_frees_the_slot(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    async with serving({"count": folder}, ModelOptions(max_batch_size=1, max_enqueued_batches=1)) as (server, client):
        streams = server.repository.get("count").streams
        assert streams is not None
        async with client.stream("POST", COUNT, json=LONG) as response:
            lines = response.aiter_lines()  # kept, since its deletion would close the response
            await anext(lines)
            assert streams.statistics().writing == 1
        await eventually(lambda: streams.statistics().free == 1)
        response = await client.post(COUNT, json={"tokens": [3, 4], "parameters": {"max_tokens": 9}})
        assert [token for each in events(response.text) for token in each["tokens"]] == counted_alone([3, 4], 9)


async def test_metrics_and_status_count_streams_and_tokens(tmp_path: Path) -> None:
    await saved_counting(tmp_path / "m")
    options = ModelOptions(max_batch_size=2, max_enqueued_batches=1)
    async with serving({"gpt2": tmp_path / "m"}, options) as (server, client):
        assert (await families(client))["aioflow_tokens_total"] == {("gpt2", "1"): 0}, "the warm-up counts"
        await client.post(WHOLE, json={"tokens": [1], "parameters": {"max_tokens": 7}})
        streams = server.repository.get("gpt2").streams
        assert streams is not None
        held = [streams.begin(GenerateRequest(None, (1,), 100_000)) for _ in range(3)]
        await eventually(lambda: streams.statistics().writing == 2)
        found = await families(client)
        counts = {state: found["aioflow_token_streams"]["gpt2", state, "1"] for state in ("writing", "waiting")}
        assert counts == {"writing": 2, "waiting": 1}
        assert found["aioflow_token_slots"] == {("gpt2", "1"): 2}
        assert found["aioflow_tokens_total"]["gpt2", "1"] > 7
        shown = (await client.get("/status")).json()["models"][0]["served"]["streams"]
        assert (shown["writing"], shown["waiting"], shown["free"]) == (2, 1, 0)
        for each in held:
            each.end()


async def test_too_many_streams_are_told_to_retry(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    async with serving({"count": folder}, ModelOptions(max_batch_size=1, max_enqueued_batches=1)) as (server, client):
        streams = server.repository.get("count").streams
        assert streams is not None
        async with client.stream("POST", COUNT, json=LONG) as first, asyncio.TaskGroup() as group:
            lines = first.aiter_lines()
            await anext(lines)
            waiting = group.create_task(client.post(COUNT, json={"tokens": [1]}))
            await eventually(lambda: streams.statistics().waiting == 1)
            response = await client.post(COUNT, json={"tokens": [1]})
            assert (response.status_code, "retry-after" in response.headers) == (429, True)
            await first.aclose()
            assert (await waiting).status_code == 200


async def rest_of(response: Any) -> list[Any]:
    """Return the remaining events of a stream."""
    return events("".join([piece async for piece in response.aiter_text()]))


async def test_a_reload_ends_the_streams_of_the_old_version_after_the_drain_time(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    where = ServerOptions(port=0, drain_seconds=0.2)
    async with serving({"count": folder}, where=where) as (_, client):
        async with client.stream("POST", COUNT, json=LONG) as response:
            assert (await client.post("/v2/repository/models/count/load")).status_code == 200
            found = await rest_of(response)
        assert found[-1] == {"error": "the model is being unloaded"}
        tokens = [token for each in found[:-1] for token in each["tokens"]]
        assert tokens == counted_alone([3], len(tokens))
        response = await client.post(COUNT, json={"tokens": [3], "parameters": {"max_tokens": 9}})
        assert response.status_code == 200


async def test_streams_end_with_an_error_when_the_service_ends(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    where = ServerOptions(port=0, drain_seconds=2.0)
    async with (
        serving({"count": folder}, where=where) as (server, client),
        client.stream("POST", COUNT, json=LONG) as response,
        asyncio.TaskGroup() as group,
    ):
        rest = group.create_task(rest_of(response))
        group.create_task(server.__aexit__(None, None, None))
        found = await rest
    assert found[-1] == {"error": "the service is shutting down"}


async def test_a_time_limit_ends_a_stream_with_an_error(tmp_path: Path) -> None:
    folder = await saved_counting(tmp_path / "m")
    async with serving({"count": folder}) as (_, client):
        data = {"tokens": [3], "parameters": {"max_tokens": 1_000_000, "timeout": 200_000}}
        *_, last = events((await client.post(COUNT, json=data)).text)
        assert "has not ended in time" in last["error"]
        response = await client.post("/v2/models/count/generate", json=data)
        assert response.status_code == 504


async def test_a_model_whose_states_do_not_fit_in_memory_is_not_loaded(tmp_path: Path) -> None:
    await saved(tmp_path / "m")
    change_manifest(tmp_path / "m", lambda content: content["token_loop"].update(max_length=1 << 60))
    with pytest.raises(ResourceExhaustedError, match="no memory for state 'past'"):
        async with serving({"gpt2": tmp_path / "m"}):
            pass


async def test_a_step_that_breaks_the_declaration_ends_its_streams_with_an_error(tmp_path: Path) -> None:
    with af.Graph().as_default() as graph:
        tokens = af.placeholder("int32", [None, None], name="tokens")
        past = af.placeholder("int32", [None, None], name="past")
        signature = af.saved.Signature(
            {"tokens": tokens, "past": past},
            {"logits": af.one_hot(tokens[:, -1], 5), "new": af.concat([tokens, tokens], 1)},
        )
    loop = af.saved.TokenLoop("tokens", "logits", 64, (af.saved.TokenState("past", "new", 0, 1),))
    async with af.Session(graph=graph) as session:
        await af.saved.save(session, tmp_path / "m", signature, token_loop=loop)
    async with serving({"m": tmp_path / "m"}) as (_, client):
        for _ in range(2):  # the service goes on
            response = await client.post("/v2/models/m/generate", json={"tokens": [1]})
            assert (response.status_code, "state of another shape" in response.json()["error"]) == (500, True)
