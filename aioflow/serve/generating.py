"""Triton's generate extension: the tokens of a stream as one response, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from starlette.types import Receive, Scope, Send

from aioflow.errors import ClientDisconnectedError, OpError
from aioflow.memory.values import Buffer
from aioflow.serve.counting import counted
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import Limits, message_of
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.rest import json_object
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer_json, read_body
from aioflow.serve.running import beside
from aioflow.serve.tokens.engine import Tokens
from aioflow.serve.tokens.streams import GenerateRequest, read_generate, streams_of
from aioflow.web import until_disconnect

_EVENTS: Final = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]

Work = Callable[[ServedModel, GenerateRequest, Tokens], Awaitable[None]]


class Generating:
    """The endpoints of token streams."""

    def __init__(self, repository: Repository, limits: Limits, admission: RequestAdmission) -> None:
        self._repository = repository
        self._limits = limits
        self._admission = admission

    async def whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate all tokens and return them in one response."""
        found: JsonObject = {}

        async def collect(model: ServedModel, request: GenerateRequest, tokens: Tokens) -> None:
            events = [event async for event in events_of(model, request, tokens)]
            found.update(events[-1], tokens=[token for event in events for token in event["tokens"]])
            if "text_output" in found:
                found["text_output"] = "".join(event["text_output"] for event in events)

        await self._call(scope, receive, collect)
        await answer_json(send, found)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send each token as an event when it is generated.

        An error before the first token has its HTTP status. A later one is an event with "error".
        """
        has_begun = False

        async def sending(model: ServedModel, request: GenerateRequest, tokens: Tokens) -> None:
            nonlocal has_begun
            async with aclosing(events_of(model, request, tokens)) as events:
                async for event in events:
                    if not has_begun:
                        has_begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                    await self._send(send, event)

        try:
            await self._call(scope, receive, sending)
        except ClientDisconnectedError:
            raise
        except OpError as error:
            if not has_begun:
                raise
            await self._send(send, {"error": message_of(error)})
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, event: JsonObject) -> None:
        body = f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as error:
            # The stream itself goes on while a client does not read; its connection must not stay open.
            raise ClientDisconnectedError("the client does not read its stream") from error

    async def _call(self, scope: Scope, receive: Receive, work: Work) -> None:
        """Begin the stream of a request, and run `work` for it until the client disconnects."""
        name, version = scope["path_params"]["model"], scope["path_params"].get("version")
        client = scope["client"][0] if scope.get("client") else ""
        with self._admission.holding() as held:
            # An unknown model is refused before its body is read.
            with counted(self._repository.get(name, version), only_failures=True):
                body = await read_body(scope, receive, self._limits, held)
            with self._repository.used(name, version) as model, counted(model):
                streams = streams_of(model.streams, name)
                request = await beside(len(body), self._read, body)
                with streams.begin(request, client) as tokens:
                    await until_disconnect(receive, work(model, request, tokens))

    def _read(self, body: Buffer) -> GenerateRequest:
        return read_generate(json_object(body, self._limits))


async def events_of(model: ServedModel, request: GenerateRequest, tokens: Tokens) -> AsyncGenerator[JsonObject, None]:
    """Yield the events of a stream as JSON."""
    head: JsonObject = {"model_name": model.name, "model_version": str(model.version)}
    if request.id:
        head["id"] = request.id
    async with aclosing(streams_of(model.streams, model.name).events(tokens)) as events:
        async for event in events:
            document: JsonObject = {**head, "tokens": list(event.tokens)}
            if event.text is not None:
                document["text_output"] = event.text
            if event.reason is not None:
                document["finish_reason"] = event.reason
            yield document
