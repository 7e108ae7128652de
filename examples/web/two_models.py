"""Two models and their versions in one process, in a custom application.

    uvicorn examples.web.two_models:app
    curl http://127.0.0.1:8000/models/digits -d "[[$(printf '0.5,%.0s' $(seq 63))0.5]]"
    curl -X PUT http://127.0.0.1:8000/models/digits
    curl http://127.0.0.1:8000/inference/v2/models/digits

The folder `MODELS` has `NAME/VERSION` as `aioflow.saved.save` writes them. If it does not exist, the program creates it
with two versions of `digits` and one of `strokes`, which measures how little an image looks like a digit. Each version
has its own session, and therefore its own variables. All sessions share the threads of the process. Weights have one
budget, `MEMORY` bytes: models that do not fit are rejected before they are read.

`/ready` is 503 until the newest version of each model is loaded and warm. `PUT` loads the newest existing version. It
receives requests once it is warm; the previous version answers earlier requests. The same models are also available by
the Open Inference Protocol.
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
    """Load the models while the server listens; `/ready` reports when they can be used."""
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
    """Load each model. A model that cannot be loaded is not ready, and the index of the repository has the reason."""
    for name in NAMES:
        with contextlib.suppress(OpError):
            await repository.load(name)


async def ready(request: Request) -> Response:
    """Return the readiness and the index of the models."""
    index = [(each.name, each.version, each.state.value, each.reason) for each in repository.index()]
    return JSONResponse(index, 200 if repository.is_ready else 503)


async def predict(request: Request) -> Response:
    """Handle `POST` of rows of 64 numbers. The version is kept while it is in use, even if another is loaded."""
    body = await read_body(request)
    with repository.used(request.path_params["name"]) as model:
        call = model.calls[model.signature_name]
        (tensor,) = model.signature.inputs.values()
        rows = af.web.rows_of(body, tensor)
        answer = await af.web.until_disconnect(request.receive, call([rows], timeout=30.0, priority=0))
        (values,) = answer.values()
        return JSONResponse({"version": model.version, "values": values.tolist()})


async def load(request: Request) -> Response:
    """Handle `PUT`: replace the model by its newest version."""
    await repository.load(request.path_params["name"])
    return Response(status_code=204)


async def unload(request: Request) -> Response:
    """Handle `DELETE`: unload the model after its requests have been answered."""
    await repository.unload(request.path_params["name"])
    return Response(status_code=204)


# Status by error class; the most derived class applies.
STATUS: Final[dict[type[Exception], int]] = {
    InvalidArgumentError: 400,
    NotFoundError: 404,
    ResourceExhaustedError: 429,
    UnavailableError: 503,
    ClientDisconnectedError: 499,  # not read by the client
    ClientDisconnect: 499,
    OpError: 500,
}


async def failed(request: Request, error: Exception) -> Response:
    """Return the error's status in the table, and its message."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return JSONResponse(
        {"error": getattr(error, "message", "")}, status, {"Retry-After": "1"} if status in (429, 503) else None
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
