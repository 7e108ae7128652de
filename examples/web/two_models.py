"""Two models and their versions in one process, in an application of one's own.

    uvicorn examples.web.two_models:app
    curl http://127.0.0.1:8000/models/digits -d "[[$(printf '0.5,%.0s' $(seq 63))0.5]]"
    curl -X PUT http://127.0.0.1:8000/models/digits
    curl http://127.0.0.1:8000/inference/v2/models/digits

The folder `MODELS` has `NAME/VERSION` as `aioflow.saved.save` writes them; where there is none, the program makes one
with two versions of `digits` and one of `strokes`, which says how little an image looks like a digit. Every version has
a session of its own, so its variables are its own; threads are those of the process, whatever the number of sessions.
Weights have one budget, `MEMORY` bytes: what does not fit is refused before it is read.

`/ready` is 503 until the newest version of each model is loaded and warm. `PUT` loads the newest there now is: requests
come to it when it is warm, and what has come before is answered by the version before. The same models are there by the
Open Inference Protocol, for whoever speaks that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

import aioflow as af
from aioflow.errors import (
    ClientDisconnectedError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.serve import Repository, create_app
from examples.web.bodies import read_body
from examples.web.saved_models import make_models

FOLDER: Final = Path(os.environ.get("MODELS", "models"))
MEMORY: Final = int(os.environ.get("MEMORY", 64 << 20))
NAMES: Final = ("digits", "strokes")

repository = Repository({name: FOLDER / name for name in NAMES}, memory_budget=MEMORY)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The server listens at once; `/ready` says when it may be used."""
    if not FOLDER.exists():
        await make_models(FOLDER)
    async with repository, asyncio.TaskGroup() as group:
        starting = group.create_task(start(app))
        try:
            yield
        finally:
            repository.drain()
            starting.cancel()


async def start(app: Starlette) -> None:
    """Load each model. What cannot be loaded is not ready, and the index of the repository says why."""
    for name in NAMES:
        with contextlib.suppress(OpError):
            await repository.load(name)


async def ready(request: Request) -> Response:
    """Whether it may be used, and what there is."""
    index = [(each.name, each.version, each.state.value, each.reason) for each in repository.index()]
    return JSONResponse(index, 200 if repository.is_ready else 503)


async def predict(request: Request) -> Response:
    """`POST` rows of 64 numbers. The version stays while it is used, whatever is loaded meanwhile."""
    body = await read_body(request)
    with repository.used(request.path_params["name"]) as model:
        call = model.calls[model.signature_name]
        (tensor,) = model.signature.inputs.values()
        rows = af.web.rows_of(body, tensor)
        answer = await af.web.until_disconnect(request.receive, call([rows], timeout=30.0, priority=0))
        (values,) = answer.values()
        return JSONResponse({"version": model.version, "values": values.tolist()})


async def load(request: Request) -> Response:
    """`PUT`: the newest version takes over."""
    await repository.load(request.path_params["name"])
    return Response(status_code=204)


async def unload(request: Request) -> Response:
    """`DELETE`: the model leaves, when what has come to it is answered."""
    await repository.unload(request.path_params["name"])
    return Response(status_code=204)


# What an error is to a client; the nearest class counts.
STATUS: Final[dict[type[Exception], int]] = {
    InvalidArgumentError: 400,
    NotFoundError: 404,
    ResourceExhaustedError: 503,
    UnavailableError: 503,
    ClientDisconnectedError: 499,  # which nobody reads
    ClientDisconnect: 499,
    OpError: 500,
}


async def failed(request: Request, error: Exception) -> Response:
    """The status of the table, and what happened."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return JSONResponse(
        {"error": getattr(error, "message", "")}, status, {"Retry-After": "1"} if status == 503 else None
    )


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/ready", ready),
        Route("/models/{name}", predict, methods=["POST"]),
        Route("/models/{name}", load, methods=["PUT"]),
        Route("/models/{name}", unload, methods=["DELETE"]),
        Mount("/inference", create_app(repository)),
    ],
    exception_handlers=dict.fromkeys(STATUS, failed),
)
