"""The service that streams tokens, as a process with real clients: each stream equals that of a NumPy model alone."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from benchmarks.plain_gpt2 import PlainModel
from examples.gpt2.model import Config
from tests.examples.web.load import post
from tests.examples.web.services import Service, serving, uvicorn
from tests.support.processes import SECONDS

CONFIG = Config(n_layer=2, n_head=2, n_embd=32, n_positions=128, vocab_size=256)
COMMAND = uvicorn("examples.web.tokens.service:app")


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    """Return weights in the names and layouts of the published files.

    Large weights make the likeliest token win by far.
    """
    rng, width = np.random.default_rng(5), CONFIG.n_embd
    shapes = {"wte.weight": [CONFIG.vocab_size, width], "wpe.weight": [CONFIG.n_positions, width]}
    shapes |= {"ln_f.weight": [width], "ln_f.bias": [width]}
    for i in range(CONFIG.n_layer):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": [width], f"h.{i}.{norm}.bias": [width]}
        for name, a, b in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            shapes |= {f"h.{i}.{name}.weight": [a * width, b * width], f"h.{i}.{name}.bias": [b * width]}
    return {name: (rng.normal(size=shape) / 2).astype("f") for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def model(weights: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {name: getattr(CONFIG, name) for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")}
    (folder / "config.json").write_text(json.dumps(sizes))
    safetensors.numpy.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


class Streams:
    """Clients of a service, with the streams that they expect."""

    def __init__(self, service: Service, weights: dict[str, Any]) -> None:
        self.service = service
        self.weights = weights

    def expected(self, prompt: str, count: int) -> list[int]:
        plain, text, found = PlainModel(CONFIG, self.weights), np.array([list(prompt.encode())]), []
        for _ in range(min(count, CONFIG.n_positions - text.shape[1] + 1)):
            text = plain.logits(text)[:, -1:].argmax(-1)
            found.append(text.item())
        return found

    async def whole(self, client: httpx.AsyncClient, prompt: str, count: int, **order: Any) -> str:
        """Read and check a stream. Return the name of its last event, or "full" if the service has no room."""
        body = {"prompt": prompt, "tokens": count} | order
        async with client.stream("POST", "/generate", json=body) as response:
            if response.status_code == 429:
                assert int(response.headers["Retry-After"]) >= 1
                return "full"
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            events = [event async for event in events_of(response)]
        last: str
        *tokens, (last, data) = events
        assert all(kind == "message" for kind, _ in tokens)
        found, expected = [each["token"] for _, each in tokens], self.expected(prompt, count)
        assert found == expected[: len(found)]
        if last == "end":
            assert found == expected
            text = "".join(each["text"] for _, each in events)
            assert text == bytes(expected).decode(errors="replace")
        else:
            assert data["error"] == "DeadlineExceededError", data
        return last

    async def leave(self, chance: random.Random) -> None:
        """Disconnect: before the response, while waiting in the queue, or in the middle of the stream."""
        _, writer = await self.service.connect()
        body = json.dumps({"prompt": prompt_by_chance(chance), "tokens": 100}).encode()
        writer.write(post("/generate", body))
        await asyncio.sleep(chance.choice([0, 0.01, 0.1]))
        writer.transport.abort()

    async def statistics(self, client: httpx.AsyncClient) -> dict[str, int]:
        found: dict[str, int] = (await client.get("/statistics")).json()
        return found

    async def until(self, client: httpx.AsyncClient, **numbers: int) -> None:
        async with asyncio.timeout(SECONDS):
            while not numbers.items() <= (await self.statistics(client)).items():  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)


async def events_of(response: httpx.Response) -> Any:
    kind = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def prompt_by_chance(chance: random.Random) -> str:
    return "".join(chance.choice("abcdefgh ü") for _ in range(chance.choice([1, 4, 20, 60])))


async def test_streams_are_correct_under_load(model: str, weights: dict[str, Any]) -> None:
    async with serving(*COMMAND, MODEL=model, SLOTS="4", MOST_WAITING="12") as service, service.client() as client:
        streams, seen = Streams(service, weights), []
        await streams.whole(client, "x", 2)
        files = service.files  # with one open connection

        async def read(chance: random.Random) -> None:
            for _ in range(6):
                limit = {"timeout": chance.choice([0.05, 0.3])} if chance.random() < 0.3 else {}
                seen.append(await streams.whole(client, prompt_by_chance(chance), chance.randint(1, 60), **limit))

        async def go(chance: random.Random) -> None:
            for _ in range(10):
                await streams.leave(chance)

        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(read(random.Random(number)))
            for number in range(3):
                group.create_task(go(random.Random(-number)))
        assert seen.count("end") > 8
        await streams.until(client, free=4, waiting=0, writing=0, reading=0)
        assert await streams.whole(client, "and then", 20) == "end"
        await client.aclose()
        await service.closed(files)


async def test_full_queue_disconnecting_client_and_invalid_requests(model: str, weights: dict[str, Any]) -> None:
    async with serving(*COMMAND, MODEL=model, SLOTS="1", MOST_WAITING="1") as service, service.client() as client:
        streams = Streams(service, weights)
        orders: list[Any] = [
            7, [], {}, {"prompt": 3}, {"prompt": ""}, {"prompt": "x" * 129}, {"prompt": "x", "tokens": 0},
            {"prompt": "x", "tokens": True}, {"prompt": "x", "tokens": 1.5}, {"prompt": "x", "timeout": -1},
            {"prompt": "x", "temperature": "hot"}, {"prompt": "\ud800"},
        ]  # fmt: skip
        bodies = [json.dumps(order) for order in orders]
        statuses = [(await client.post("/generate", content=body)).status_code for body in bodies]
        assert set(statuses) == {400}
        order = {"prompt": "a", "tokens": 120}
        async with client.stream("POST", "/generate", json=order) as first:
            event = events_of(first)
            await anext(event)
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(streams.whole(client, "b", 5)) for _ in range(4)]
        assert [task.result() for task in answers].count("end") >= 1
        await streams.until(client, free=1)


async def test_started_streams_finish_when_the_service_stops(model: str, weights: dict[str, Any]) -> None:
    async with serving(*COMMAND, MODEL=model, SLOTS="2") as service, service.client() as client:
        streams = Streams(service, weights)
        async with AsyncExitStack() as open_responses:
            begun = []
            for prompt in ("a", "b", "c", "d"):  # two write, two wait in the queue
                order = {"prompt": prompt, "tokens": 100}
                response = await open_responses.enter_async_context(client.stream("POST", "/generate", json=order))
                begun.append((prompt, response))
            service.stop()
            for prompt, response in begun:
                *tokens, (last, _) = [event async for event in events_of(response)]
                assert [data["token"] for _, data in tokens] == streams.expected(prompt, 100)
                assert last == "end"
        await service.process.wait()


async def test_draws_follow_the_seed_whatever_other_clients_do(model: str) -> None:
    async with serving(*COMMAND, MODEL=model) as service, service.client() as client:

        async def draw(seed: int) -> list[int]:
            order = {"prompt": "a", "tokens": 20, "temperature": 1.0, "seed": seed}
            async with client.stream("POST", "/generate", json=order) as response:
                return [data.get("token") async for _, data in events_of(response)]

        alone = [await draw(seed) for seed in range(4)]
        assert await asyncio.gather(*(draw(seed) for seed in range(4))) == alone
        assert len({tuple(each) for each in alone}) == 4
