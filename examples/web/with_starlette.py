"""Digits, in Starlette: a session with the lifetime of the application, and callers that share its steps.

    uvicorn examples.web.with_starlette:app
    curl "http://127.0.0.1:8000/predict?timeout=0.5" -d "[[$(printf '0.5,%.0s' $(seq 63))0.5]]"

The server listens when `lifespan` reaches its `yield`. The variables then have their values, and each batch size that
clients may cause has been run. Until then connections wait or are refused, depending on the listening socket. When the
server is stopped, the received requests are answered, and then the session is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aioflow as af
from aioflow.errors import (
    ClientDisconnectedError,
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from examples.web.bodies import read_body
from examples.web.digits import build, numbers_of, restore_or_train

model = build()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the session and the batched call that all requests share."""
    async with af.Session(graph=model.graph) as session:
        await restore_or_train(session, model)
        async with session.batched(model.probabilities, [model.images], max_batch_size=64) as app.state.predict:
            await session.warmup(app.state.predict)
            yield


async def predict(request: Request) -> Response:
    """Handle `POST` of rows of 64 numbers; return a row of 10 probabilities for each. `?timeout=` is in seconds."""
    call = request.app.state.predict
    rows = af.web.rows_of(await read_body(request), model.images)
    answer = await af.web.until_disconnect(request.receive, call(rows, timeout=_timeout(request)))
    return JSONResponse(answer.tolist())


def _timeout(request: Request) -> float | None:
    text = request.query_params.get("timeout")
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise HTTPException(400, f"timeout must be a number of seconds, not {text!r}") from error


async def statistics(request: Request) -> Response:
    """Return the numbers of answered and waiting requests."""
    return JSONResponse(numbers_of(request.app.state.predict.statistics()))


# -- error responses ------------ ------------------------------------------------------------------------------------


async def wrong(request: Request, error: Exception) -> Response:
    """Return 400 with the expected input."""
    # Not `str(error)`, which would also reveal where in this program it was raised.
    return JSONResponse({"error": getattr(error, "message", ""), "expected": str(getattr(error, "expected", ""))}, 400)


async def full(request: Request, error: Exception) -> Response:
    """Return 429 because the queue is full; the client may retry later."""
    after = getattr(error, "retry_after", None) or 0.0
    return JSONResponse({"error": "too many requests"}, 429, {"Retry-After": str(max(1, round(after)))})


async def late(request: Request, error: Exception) -> Response:
    """Return 504 because the deadline has passed."""
    return JSONResponse({"error": "not answered in time"}, 504)


async def gone(request: Request, error: Exception) -> Response:
    """Return a response that the disconnected client does not read."""
    return Response(status_code=499)


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/predict", predict, methods=["POST"]), Route("/statistics", statistics)],
    exception_handlers={
        InvalidArgumentError: wrong,
        ResourceExhaustedError: full,
        DeadlineExceededError: late,
        ClientDisconnectedError: gone,
        ClientDisconnect: gone,
    },
)
