"""Throughput and latency of the services in `examples/web`, and the savings of token streams from shared steps.

Each service is a separate process. The client is another process, which uses loopback and keep-alive connections. The
token streams are measured in one process.

    python -m benchmarks.web_examples
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

import httpx
import numpy as np

import aioflow as af
from aioflow.demo.digits import load_digits
from aioflow.serve.tokens import token_engine
from examples.gpt2.generation import generate
from examples.gpt2.model import Config, Model
from examples.web.digits import build, restore_or_train
from examples.web.saved_models import make_models
from examples.web.tokens.computing import Gpt2

Asking = Callable[[], Coroutine[Any, Any, None]]

IMAGES: Final = load_digits().images


@asynccontextmanager
async def serving(*command: str, **environment: str) -> AsyncIterator[int]:
    """Start a service as a separate process, yield its port, and end it with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", *command), env=os.environ | environment, stdout=PIPE, stderr=STDOUT
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            found = re.search(rb"http://127.0.0.1:(\d+)", line)
            if found:
                yield int(found[1])
                break
    finally:
        process.terminate()
        await process.communicate()


def uvicorn(app: str) -> list[str]:
    """Return the command that serves an application on a free port."""
    return ["-m", "uvicorn", app, "--port", "0", "--log-level", "info", "--no-access-log"]


def post(path: str, body: Any, options: str = "") -> bytes:
    """Return the bytes of a request."""
    text = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{options}"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


async def over_http(port: int, path: str, body: Any) -> Asking:
    """Open a connection and return a function that sends a request on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = post(path, body)

    async def ask() -> None:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        (length,) = (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)

    return ask


async def over_http_when_ready(port: int) -> Asking:
    """Wait until the service of two models is ready, and return a function that sends it a request."""
    ask = await over_http(port, "/models/digits", IMAGES[:1].tolist())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.1)
    return ask


async def over_websocket(port: int) -> Asking:
    """Open a WebSocket and return a function that sends a message on it."""
    from websockets.asyncio.client import connect

    socket = await connect(f"ws://127.0.0.1:{port}/predict", proxy=None, compression=None)
    text = json.dumps({"id": 1, "pixels": IMAGES[:1].tolist()})

    async def ask() -> None:
        await socket.send(text)
        assert "probabilities" in await socket.recv()

    return ask


async def stream(port: int, tokens: int) -> Asking:
    """Return a function that reads a stream of tokens, each on its own connection."""
    request = post("/generate", {"prompt": "Once upon a time", "tokens": tokens}, "Connection: close\r\n")

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        text = await reader.read()
        assert text.count(b'"token"') == tokens, text[-200:]
        writer.close()

    return ask


async def measure(clients: list[Asking], seconds: float) -> tuple[float, float, float]:
    """Return the responses per second, and the median and 99th percentile of the latency in ms."""
    times: list[float] = []

    async def again_and_again(ask: Asking, until: float) -> None:
        while (begun := perf_counter()) < until:
            await ask()
            times.append(perf_counter() - begun)

    for warm in (True, False):
        times.clear()
        begun = perf_counter()
        async with asyncio.TaskGroup() as group:
            for ask in clients:
                group.create_task(again_and_again(ask, begun + (1.0 if warm else seconds)))
        passed = perf_counter() - begun
    return len(times) / passed, *(np.percentile(times, [50, 99]) * 1e3)


Case = tuple[str, list[str], Callable[[int], Coroutine[Any, Any, Asking]]]


def cases() -> list[Case]:
    """Return each service: its name, its command, and its client."""
    rows = IMAGES[:1].tolist()

    def plain(port: int) -> Coroutine[Any, Any, Asking]:
        return over_http(port, "/predict", rows)

    def of_fastapi(port: int) -> Coroutine[Any, Any, Asking]:
        return over_http(port, "/predict", {"pixels": rows})

    return [
        ("Starlette", uvicorn("examples.web.with_starlette:app"), plain),
        (
            "FastAPI",
            uvicorn("examples.web.with_fastapi:app"),
            lambda port: over_http(port, "/predict", {"pixels": rows}),
        ),
        ("aiohttp", ["-m", "examples.web.with_aiohttp", "--port", "0"], plain),
        ("WebSocket", uvicorn("examples.web.with_websockets:app"), over_websocket),
        ("two models", uvicorn("examples.web.two_models:app"), over_http_when_ready),
    ]


async def main(seconds: float, clients: int, only: str) -> None:
    """Measure all services, one after another."""
    print(f"| service | answers a second, {clients} clients | p50, ms | p99, ms |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        model = build()
        async with af.Session(graph=model.graph) as session:
            await restore_or_train(session, model, Path(name) / "digits")
        await make_models(Path(name) / "models")
        for title, command, client in cases():
            if only in title:
                async with serving(*command, MODEL=f"{name}/digits", MODELS=f"{name}/models") as port:
                    rate, middle, slow = await measure([await client(port) for _ in range(clients)], seconds)
                print(f"| {title} | {rate:,.0f} | {middle:.1f} | {slow:.1f} |", flush=True)
    for count in (1, 8, 32):
        if only in "streams":
            async with serving(*uvicorn("examples.web.tokens.service:app"), SLOTS="32") as port:
                rate, middle, slow = await measure([await stream(port, 100) for _ in range(count)], seconds)
            print(
                f"| {count} streams of 100 tokens | {rate * 100:,.0f} tokens | {middle:.0f} | {slow:.0f} |", flush=True
            )


async def streams_in_process(count: int, tokens: int = 100) -> tuple[float, float]:
    """Return tokens per second of processor time for `count` concurrent streams: in separate and in shared steps."""
    model, prompt = Model(Config()), list(b"Once upon a time")
    async with af.Session(graph=model.graph) as session, token_engine(Gpt2(session, model, count), count) as engine:
        await session.run(model.initializer)

        async def alone() -> None:
            async with aclosing(generate(session, model, prompt, most=tokens, temperature=0.0)) as stream:
                assert len([token async for token in stream]) == tokens

        async def together() -> None:
            with engine.begin(prompt, tokens) as stream:
                assert len([token async for token in stream]) == tokens

        async def measured(way: Asking) -> float:
            begun = process_time()
            await asyncio.gather(*(way() for _ in range(count)))
            return count * tokens / (process_time() - begun)

        rounds = [(await measured(alone), await measured(together)) for _ in range(6)][1:]
    return median(first for first, _ in rounds), median(second for _, second in rounds)


async def show_streams() -> None:
    """Print the savings from shared steps."""
    print("| streams | tokens per second of processor time, each in its own steps | in shared steps |\n|---|---|---|")
    for count in (1, 8, 32):
        alone, together = await streams_in_process(count)
        print(f"| {count} | {alone:,.0f} | {together:,.0f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the services of examples/web.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--only", default="", help="a part of a service's name")
    options = parser.parse_args()
    asyncio.run(main(options.seconds, options.clients, options.only))
    asyncio.run(show_streams())
