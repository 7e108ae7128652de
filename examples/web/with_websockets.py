"""Digits over a WebSocket, in Starlette: each message is a request, and several may be in flight.

    uvicorn examples.web.with_websockets:app
    websockets ws://127.0.0.1:8000/predict

The second command is a terminal client. It comes with `pip install websockets`, as does uvicorn's WebSocket support.

A client sends `{"id": 1, "pixels": [[…]]}`, rows of 64 numbers in 0..1. It receives `{"id": 1, "probabilities": [[…]]}`
or `{"id": 1, "error": "…"}`, in the order of completion. If the queue is full, `retry_after` is the time until a retry.

At most `IN_FLIGHT` messages of a client are processed at a time. Further messages are not read, so they wait at the
client (TCP back pressure), and a single client cannot fill the shared queue. Pending requests of a client are cancelled
when its connection ends. When the server stops it closes connections with code 1012: clients should repeat unanswered
requests elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

import aioflow as af
from aioflow.errors import OpError, ResourceExhaustedError
from examples.web.digits import build, restore_or_train

IN_FLIGHT: Final = 32
UNSUPPORTED_DATA: Final = 1003  # close code for messages that are not text

model = build()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Load and warm up the model before the server listens."""
    async with af.Session(graph=model.graph) as session:
        await restore_or_train(session, model)
        async with session.batched(model.probabilities, [model.images], max_batch_size=64) as app.state.predict:
            await session.warmup(app.state.predict)
            yield


async def converse(socket: WebSocket) -> None:
    """Answer the messages of one client."""
    await socket.accept()
    room, sending = asyncio.Semaphore(IN_FLIGHT), asyncio.Lock()
    answers: set[asyncio.Task[None]] = set()

    async def answer(text: str) -> None:
        reply = json.dumps(await _reply(socket.app.state.predict, text))
        async with sending:
            if socket.application_state is WebSocketState.CONNECTED:  # otherwise an earlier send has failed
                with contextlib.suppress(WebSocketDisconnect):  # the reading loop detects the disconnect, too
                    await socket.send_text(reply)
        room.release()

    async with asyncio.TaskGroup() as group:
        while True:
            await room.acquire()
            message = await socket.receive()
            text = message.get("text")
            if text is None:
                break
            task = group.create_task(answer(text))
            answers.add(task)
            task.add_done_callback(answers.discard)
        for task in answers:
            task.cancel()
    if message["type"] == "websocket.receive":
        await socket.close(UNSUPPORTED_DATA, "messages are text")


async def _reply(call: af.Batched[Any], text: str) -> dict[str, Any]:
    number = None
    try:
        order = json.loads(text)
        number = order["id"]
        rows = af.web.rows_of(order["pixels"], model.images)
        return {"id": number, "probabilities": (await call(rows, timeout=30.0)).tolist()}
    except ResourceExhaustedError as error:  # the shared queue is full
        return {"id": number, "error": error.message, "retry_after": error.retry_after}
    except OpError as error:
        return {"id": number, "error": error.message}
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        return {"id": number, "error": f'expected {{"id": …, "pixels": rows}}: {type(error).__name__} {error}'}


app = Starlette(lifespan=lifespan, routes=[WebSocketRoute("/predict", converse)])
