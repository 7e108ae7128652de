"""Digits, in aiohttp: `python -m examples.web.with_aiohttp --port 8000`.

With `handler_cancellation=True` aiohttp cancels the handler of a disconnected client, and with it the pending
prediction: rows that have not been computed yet are dropped. `cleanup_ctx` keeps the session open for the lifetime of
the application.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

import aioflow as af
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from examples.web.digits import build, numbers_of, restore_or_train

PREDICT = web.AppKey("predict", af.Batched)

model = build()


async def model_of(app: web.Application) -> AsyncIterator[None]:
    """Open a session before the server listens, and close it after the last request has been answered."""
    async with af.Session(graph=model.graph) as session:
        await restore_or_train(session, model)
        async with session.batched(model.probabilities, [model.images], max_batch_size=64) as app[PREDICT]:
            await session.warmup(app[PREDICT])
            yield


async def predict(request: web.Request) -> web.Response:
    """Handle `POST` of rows of 64 numbers; return a row of 10 probabilities for each."""
    try:
        rows = af.web.rows_of(await request.read(), model.images)
        answer = await request.app[PREDICT](rows, timeout=float(request.query.get("timeout", "60")))
    except ResourceExhaustedError as error:
        after = math.ceil(error.retry_after or 1.0)
        raise web.HTTPTooManyRequests(text="too many requests", headers={"Retry-After": str(after)}) from error
    except DeadlineExceededError as error:
        raise web.HTTPGatewayTimeout(text="not answered in time") from error
    except InvalidArgumentError as error:
        raise web.HTTPBadRequest(text=error.message) from error
    return web.json_response(answer.tolist())


async def statistics(request: web.Request) -> web.Response:
    """Return the numbers of answered and waiting requests."""
    return web.json_response(numbers_of(request.app[PREDICT].statistics()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that have begun are answered first."""
    parser = argparse.ArgumentParser(description="Answer requests from a classifier of digits.")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    app = web.Application(client_max_size=1 << 20)
    app.cleanup_ctx.append(model_of)
    app.add_routes([web.post("/predict", predict), web.get("/statistics", statistics)])
    web.run_app(app, host="127.0.0.1", port=options.port, handler_cancellation=True)


if __name__ == "__main__":
    main()
