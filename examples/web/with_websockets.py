"""Digits over a WebSocket, in Starlette: each message is a request, and many may be on their way.

    uvicorn examples.web.with_websockets:app
    websockets ws://127.0.0.1:8000/predict

The second, a client for a terminal, comes with `pip install websockets`, as does what uvicorn speaks WebSockets with.

A client sends `{"id": 1, "pixels": [[…]]}`, rows of 64 numbers in 0..1, and gets `{"id": 1, "probabilities": [[…]]}` or
`{"id": 1, "error": "…"}`, in the order in which they are ready; where the queue is full, `retry_after` says when to ask
again. Of each client `IN_FLIGHT` messages are worked on at a time; the next ones are not read, so that they wait with
the client (TCP's own back pressure), and nobody fills the queue that all share. What a client has asked for ends with
its connection. When the server stops it closes connections with code 1012: what has not been answered is to be asked
again elsewhere.
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
from aioflow.session.batching import Batched
from examples.web.digits import build, restore_or_train

IN_FLIGHT: Final = 32
UNSUPPORTED_DATA: Final = 1003  # the code by which a connection is closed for what is no text

model = build()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The server listens when the model is there and warm."""
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
            if socket.application_state is WebSocketState.CONNECTED:  # else a message has failed to be sent before
                with contextlib.suppress(WebSocketDisconnect):  # whoever reads the messages notices, too
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


async def _reply(call: Batched, text: str) -> dict[str, Any]:
    number = None
    try:
        order = json.loads(text)
        number = order["id"]
        rows = af.web.rows_of(order["pixels"], model.images)
        return {"id": number, "probabilities": (await call(rows, timeout=30.0)).tolist()}
    except ResourceExhaustedError as error:  # all clients together ask for too much
        return {"id": number, "error": error.message, "retry_after": error.retry_after}
    except OpError as error:
        return {"id": number, "error": error.message}
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        return {"id": number, "error": f'expected {{"id": …, "pixels": rows}}: {type(error).__name__} {error}'}


app = Starlette(lifespan=lifespan, routes=[WebSocketRoute("/predict", converse)])
