"""The service as an ASGI application, to be run by any server, or mounted into an application of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aioflow.errors import OpError
from aioflow.serve.admission import Admission
from aioflow.serve.endpoints import Endpoint, Endpoints
from aioflow.serve.guard import Guard
from aioflow.serve.lag import LoopLag
from aioflow.serve.metrics import CONTENT_TYPE, ServiceMetrics
from aioflow.serve.openapi import openapi_document
from aioflow.serve.options import ModelOptions
from aioflow.serve.page import Page
from aioflow.serve.page.status import Status
from aioflow.serve.protocol import Limits
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer, answer_json, path_of
from aioflow.serve.routes import INFER, Line, lines
from aioflow.serve.running import running
from aioflow.serve.sources import ModelSource

__all__ = ["create_app"]

_LOG: Final = logging.getLogger("aioflow.serve")


def create_app(
    models: Repository | Mapping[str, str | os.PathLike[str] | ModelSource],
    options: ModelOptions | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """An application that answers the Open Inference Protocol, version 2, for these models.

        app = aioflow.serve.create_app({"digits": "models/digits"})  # uvicorn module:app

    Args:
        models: By name, where they are: the application loads them when it starts, and is ready when all are there. Or
            a repository, which has a life of its own: an application that is mounted into another is not told when that
            starts, so that one enters the repository in its lifespan.
        options: How they are served, unless `models` is a repository.
        limits: What one request may ask for.
        token: What requests must bring as `Authorization: Bearer …`; not those for health. None for nothing.
        hosts: The names by which it may be asked, as in `Host: …` but for the port; None for any.
    """
    own = not isinstance(models, Repository)
    repository = Repository(models, options) if not isinstance(models, Repository) else models
    endpoints = Endpoints(repository, limits or Limits())
    watch = Watch(repository, endpoints.admission)
    table = _table(repository, endpoints, watch, lambda: app.state.has_token)
    routes = [Route(line.path, Endpoint(line.answer), methods=[line.method]) for line in table]
    is_open = frozenset(line.path for line in table if line.is_open)
    guard = Guard(token, hosts, is_open)
    nothing = Endpoint(endpoints.nothing)
    app = _Service(guard, Endpoint(endpoints.infer), nothing, routes, _lifespan(repository, watch) if own else None)
    app.router.default = nothing
    app.router.redirect_slashes = False
    app.state.repository = repository
    app.state.watch = watch
    app.state.admission = endpoints.admission
    app.state.open = is_open
    app.state.has_token = token is not None
    return app


class Watch:
    """What is looked at again and again while a service runs."""

    def __init__(self, repository: Repository, admission: Admission) -> None:
        self.lag = LoopLag()
        self.status = Status(repository, admission, self.lag)

    async def run(self) -> None:
        """The body of the task that looks."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lag.watch())
            group.create_task(self.status.watch())


def _table(repository: Repository, endpoints: Endpoints, watch: Watch, has_token: Callable[[], bool]) -> list[Line]:
    """All that can be asked, the document that says so included."""
    metrics = ServiceMetrics(repository, endpoints.admission, watch.lag)

    async def answer_metrics(scope: Scope, receive: Receive, to: Send) -> None:
        await answer(to, 200, metrics.text(), CONTENT_TYPE)

    async def answer_openapi(scope: Scope, receive: Receive, to: Send) -> None:
        await answer_json(to, openapi_document(table, has_token()))

    table = lines(endpoints, Page(repository, watch.status), answer_metrics, answer_openapi)
    return table


class _Service(Starlette):
    """An application whose most frequent request takes a short way: one pattern in place of a list of routes, and of
    the layers around it. Middleware that somebody adds is gone through by every request.
    """

    def __init__(self, guard: Guard, infer: Endpoint, nothing: Endpoint, routes: list[Route], lifespan: Any) -> None:
        super().__init__(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused})
        self._guard = guard
        self._infer = infer
        self._nothing = nothing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not await self._guard.admits(scope, send):
                return
            if scope["path"].endswith("\n"):  # a pattern of Starlette's ends before it, and one of ours does not
                await self._nothing(scope, receive, send)
                return
            if scope["method"] == "POST" and not self.user_middleware:
                found = INFER.fullmatch(path_of(scope))
                if found is not None:
                    scope["path_params"] = {key: text for key, text in found.groupdict().items() if text is not None}
                    await self._infer(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses, such as the wrong method, in the protocol's form."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _lifespan(repository: Repository, watch: Watch) -> Any:
    """The life of a repository that belongs to an application: models are loaded while it answers that it is not ready
    yet, and requests that there are at the end are answered before it ends.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with repository, running() as group:
            tasks = [group.create_task(watch.run()), group.create_task(_load(repository))]
            try:
                yield
            finally:
                repository.drain()
                for task in tasks:
                    task.cancel()

    return lifespan


async def _load(repository: Repository) -> None:
    for name in repository.names:
        try:
            await repository.load(name)
        except Exception as error:  # the index says why, and the others are served all the same
            _LOG.error("model %s cannot be loaded: %s", name, error, exc_info=not isinstance(error, OpError))
