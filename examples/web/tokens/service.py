"""The web service. `MODEL` may name a folder in Hugging Face's layout; without it the weights are random.

    uvicorn examples.web.tokens.service:app
    curl -N http://127.0.0.1:8000/generate -d '{"prompt": "Once upon a time", "tokens": 50}'

Each token is an event `{"token": 105, "text": "i"}`, and the last event is `end` or `error`. If the queue is full, the
response is 429. A client that disconnects frees its slot at once. When the service is stopped, streams that have begun
are completed, within the time of `--timeout-graceful-shutdown`.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import aioflow as af
from aioflow.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.serve.tokens import Sampling, TokenEngine, Tokens, token_engine
from examples.gpt2.folder import config_of, load, tokenizer_of
from examples.gpt2.model import Config, Model
from examples.gpt2.tokenizer import Tokenizer
from examples.web.bodies import read_json
from examples.web.tokens.computing import Gpt2

FOLDER: Final = Path(os.environ["MODEL"]) if "MODEL" in os.environ else None
SLOTS: Final = int(os.environ.get("SLOTS", "8"))
MOST_WAITING: Final = int(os.environ.get("MOST_WAITING", "64"))
# Numeric options of a request: minimum, maximum, default.
NUMBERS: Final[dict[str, tuple[float, float, float]]] = {
    "tokens": (1, 4096, 50),
    "temperature": (0.0, 100.0, 0.0),
    "top_k": (1, 1000, 40),
    "seed": (0, 2**31, 0),
    "timeout": (0.001, 600.0, 60.0),
}


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Load the model and run it once before the server listens."""
    model = Model(Config() if FOLDER is None else config_of(FOLDER))
    async with af.Session(graph=model.graph) as session:
        if FOLDER is None:
            await session.run(model.initializer)
        else:
            await load(session, model, FOLDER)
        async with token_engine(Gpt2(session, model, SLOTS), SLOTS, most_waiting=MOST_WAITING) as engine:
            await warm_up(engine)
            app.state.engine, app.state.tokenizer = engine, tokenizer_of(FOLDER)
            yield


async def warm_up(engine: TokenEngine) -> None:
    """Run steps of one stream and of two streams, so that both are compiled."""

    async def write(tokens: Tokens) -> None:
        async for _ in tokens:
            pass

    async with asyncio.TaskGroup() as group:
        for most in (3, 6):
            group.create_task(write(engine.begin([0, 0], most)))


async def generate(request: Request) -> Response:
    """Handle `POST` of a JSON object with a prompt, and optionally some of `NUMBERS`."""
    try:
        order = await read_json(request)
        if not isinstance(order, dict) or not isinstance(order.get("prompt"), str):
            raise HTTPException(400, 'expected an object with a text: {"prompt": "…"}')
        tokens, temperature, top_k, seed, timeout = (_number(order, name) for name in NUMBERS)
        tokenizer: Tokenizer = request.app.state.tokenizer
        stream = request.app.state.engine.begin(
            tokenizer.encode(order["prompt"]),
            int(tokens),
            sampling=Sampling(temperature, int(top_k), int(seed)),
            timeout=timeout,
            client=request.client.host if request.client else "",
        )
    except ResourceExhaustedError as error:
        raise HTTPException(429, error.message, {"Retry-After": "1"}) from error
    except (InvalidArgumentError, UnicodeEncodeError) as error:
        raise HTTPException(400, str(error)) from error
    except ClientDisconnect:
        return Response(status_code=499)  # not read by the client
    return EventStream(stream, tokenizer)


def _number(order: dict[str, Any], name: str) -> float:
    least, most, default = NUMBERS[name]
    value = order.get(name, default)
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise HTTPException(400, f"{name} must be {kind} from {least} to {most}")
    return float(value)


class EventStream(StreamingResponse):
    """Server-sent events, one for each token. The stream ends with the response, even if that has not begun."""

    def __init__(self, tokens: Tokens, tokenizer: Tokenizer) -> None:
        self._tokens = tokens
        super().__init__(
            _events(tokens, tokenizer), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        with self._tokens:
            await super().__call__(scope, receive, send)


async def _events(tokens: Tokens, tokenizer: Tokenizer) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a token may be a part of a character
    try:
        async for token in tokens:
            yield _event({"token": token, "text": decoder.decode(tokenizer.decode([token]))})
    except OpError as error:
        yield _event({"error": type(error).__name__, "message": error.message}, "error")
    else:
        yield _event({"text": decoder.decode(b"", True)}, "end")


def _event(data: dict[str, Any], kind: str = "message") -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def statistics(request: Request) -> Response:
    """Return the numbers of streams."""
    return JSONResponse(asdict(request.app.state.engine.statistics()))


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/generate", generate, methods=["POST"]), Route("/statistics", statistics)],
)
