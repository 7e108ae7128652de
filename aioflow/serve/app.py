"""The service as an ASGI application, to be run by any server or mounted into another application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aioflow.errors import OpError
from aioflow.serve.endpoints import Endpoint, Endpoints
from aioflow.serve.guard import CHANGE, RequestGuard
from aioflow.serve.lag import LoopLag
from aioflow.serve.memory_limits import RequestAdmission
from aioflow.serve.metrics import CONTENT_TYPE, ServiceMetrics
from aioflow.serve.openapi import openapi_document
from aioflow.serve.options import ModelOptions
from aioflow.serve.page import Page
from aioflow.serve.page.status import ServiceStatus
from aioflow.serve.protocol import Limits, message_of
from aioflow.serve.repository import Repository
from aioflow.serve.requests import answer, answer_json, path_of
from aioflow.serve.routes import INFER, HttpRoute, lines
from aioflow.serve.running import running
from aioflow.serve.sources import ModelSource

_LOG: Final = logging.getLogger("aioflow.serve")


def create_app(
    models: Repository | Mapping[str, str | os.PathLike[str] | ModelSource],
    options: ModelOptions | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    admin_token: str | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """Return an application that serves these models by the Open Inference Protocol, version 2.

        app = aioflow.serve.create_app({"digits": "models/digits"})  # uvicorn module:app

    Args:
        models: The paths or sources of the models, by name. The application loads them when it starts, and is ready
            when all are loaded. Or a repository that the caller opens and closes: a mounted application receives no
            lifespan events, so the outer application enters the repository in its own lifespan.
        options: Options of all models, unless `models` is a repository.
        limits: Limits for a single request.
        token: The token that requests must send as `Authorization: Bearer …`, except for health checks. None for no
            authentication.
        admin_token: The token that requests to load or unload a model must send instead, and other requests may send.
            None if `token` suffices.
        hosts: The allowed values of `Host: …`, without the port; None for any.

    Raises:
        InvalidArgumentError: a token is empty, or both are the same.
    """
    own = not isinstance(models, Repository)
    repository = Repository(models, options) if not isinstance(models, Repository) else models
    endpoints = Endpoints(repository, limits or Limits())
    watch = ServiceWatch(repository, endpoints.admission)

    def needs_token(line: HttpRoute) -> bool:
        # Read for each document, because a serving process that checks tokens outside the application sets them later.
        state = app.state
        return bool((state.has_token and not line.is_open) or (state.has_admin_token and CHANGE.fullmatch(line.path)))

    table = _table(repository, endpoints, watch, needs_token)
    routes = [route for line in table for route in _routes_of(line)]
    is_open = frozenset(line.path for line in table if line.is_open)
    guard = RequestGuard(token, hosts, is_open, admin_token)
    nothing = Endpoint(endpoints.nothing)
    app = _Service(guard, Endpoint(endpoints.infer), nothing, routes, _lifespan(repository, watch) if own else None)
    app.router.default = nothing
    # Starlette would answer a path with a slash too many by a redirect instead of a 404.
    app.router.redirect_slashes = False
    app.state.repository = repository
    app.state.watch = watch
    app.state.admission = endpoints.admission
    app.state.open = is_open
    app.state.has_token, app.state.has_admin_token = token is not None, admin_token is not None
    return app


def _routes_of(line: HttpRoute) -> list[Route]:
    route = Route(line.path, Endpoint(line.answer), methods=[line.method])
    if ":" not in line.path or line.method == "GET":
        return [route]
    # Otherwise GET /v1/models/m:predict would find the route of the states of a model "m:predict".
    other = Route(line.path, partial(_other_method, line.method), methods=["GET"], include_in_schema=False)
    return [route, other]


async def _other_method(allowed: str, request: Request) -> Response:
    raise HTTPException(405, headers={"Allow": allowed})


class ServiceWatch:
    """The periodic measurements of a running service."""

    def __init__(self, repository: Repository, admission: RequestAdmission) -> None:
        self.lag = LoopLag()
        self.status = ServiceStatus(repository, admission, self.lag)

    async def run(self) -> None:
        """Run all measurements until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lag.watch())
            group.create_task(self.status.watch())


def _table(
    repository: Repository, endpoints: Endpoints, watch: ServiceWatch, needs_token: Callable[[HttpRoute], bool]
) -> list[HttpRoute]:
    """Return all routes, including that of the OpenAPI document that describes them."""
    metrics = ServiceMetrics(repository, endpoints.admission, watch.lag)

    async def answer_metrics(scope: Scope, receive: Receive, to: Send) -> None:
        await answer(to, 200, metrics.text(), CONTENT_TYPE)

    async def answer_openapi(scope: Scope, receive: Receive, to: Send) -> None:
        await answer_json(to, openapi_document(table, needs_token))

    table = lines(endpoints, Page(repository, watch.status), answer_metrics, answer_openapi)
    return table


class _Service(Starlette):
    """An application with a fast path for inference requests, the most frequent ones.

    One pattern replaces Starlette's list of routes and its layers of middleware. If the user adds middleware, every
    request passes through it.
    """

    def __init__(
        self, guard: RequestGuard, infer: Endpoint, nothing: Endpoint, routes: list[Route], lifespan: Any
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused})
        self._guard = guard
        self._infer = infer
        self._nothing = nothing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not await self._guard.admits(scope, send):
                return
            # "$" in Starlette's patterns also matches before a final newline; `fullmatch` does not.
            if scope["path"].endswith("\n"):
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
    """Return Starlette's own errors, such as a wrong method, in the protocol's form."""
    if not isinstance(error, HTTPException):
        raise error
    said = error.detail
    if error.status_code == 405:
        said = f"this path does not accept {request.method[:20]}; expected: {(error.headers or {}).get('Allow')}"
    return JSONResponse({"error": said}, error.status_code, error.headers)


def _lifespan(repository: Repository, watch: ServiceWatch) -> Any:
    """Return the lifespan of an application that owns its repository.

    While models load, the application runs and reports that it is not ready. At the end it answers pending requests
    before it stops.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with repository, running() as group:
            tasks = [group.create_task(watch.run()), group.create_task(_load(repository))]
            try:
                yield
            finally:
                # Before the tasks end: load balancers see that the service is not ready while it still answers.
                repository.drain()
                for task in tasks:
                    task.cancel()

    return lifespan


async def _load(repository: Repository) -> None:
    try:
        await repository.load_all(strict=False)
    except Exception as error:
        # The application goes on without models: only its server could end it. The index reports the reasons.
        _LOG.error("no model can be loaded: %s", message_of(error), exc_info=not isinstance(error, OpError))
