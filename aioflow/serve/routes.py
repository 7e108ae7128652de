"""The table of HTTP routes: each has its path, its endpoint, and its description for the OpenAPI document.

The application, the guard and `/openapi.json` are derived from these routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aioflow.serve.endpoints import AnswerFunction, Endpoints
from aioflow.serve.page import Page

_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
_STORED: Final = "/v2/repository/models/{model}"
# TensorFlow Serving's API.
_V1: Final = tuple(f"/v1/models/{{model}}{which}" for which in ("", "/versions/{version}", "/labels/{label}"))
_BOTH: Final = ((_MODEL, "a model"), (_VERSION, "a version"))
INFER: Final = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")

# Statuses of errors, besides those of the guard.
_READING: Final = (400, 413, 415, 429, 504)  # reading a body
_FINDING: Final = (404, 503)  # finding a model
_COMPUTING: Final = (500, 501, 507)
_CALLING: Final = (*_READING, *_FINDING, *_COMPUTING)

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_EVENTS: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One HTTP route.

    Attributes:
        method, path: The requests that it matches.
        answer: The endpoint, an ASGI application.
        summary: Its description, a sentence.
        gives: The media types of a successful response, each with the name of its schema; "" if it is not JSON.
        takes: The same for the request body; None if requests have no body.
        fails: The statuses of errors, besides those of the guard.
        not_ready: The schema of a 503 response that is not an error; "" for none.
        query: The names of the query parameters.
        is_open: True if it requires no token.
    """

    method: str
    path: str
    answer: AnswerFunction
    summary: str
    gives: Mapping[str, str]
    takes: Mapping[str, str] | None = None
    fails: tuple[int, ...] = ()
    not_ready: str = ""
    query: tuple[str, ...] = ()
    is_open: bool = False


def lines(endpoints: Endpoints, page: Page, metrics: AnswerFunction, openapi: AnswerFunction) -> list[HttpRoute]:
    """Return all routes, the most frequent first."""
    tensors = {_JSON: "InferRequest", _BYTES: ""}, {_JSON: "InferResponse", _BYTES: ""}
    calls = [
        HttpRoute("POST", path + "/infer", endpoints.infer, f"Call {which}", tensors[1], tensors[0], _CALLING)
        for path, which in _BOTH
    ]
    generating = endpoints.generating
    generate, events, prompt = {_JSON: "GenerateResponse"}, {_EVENTS: ""}, {_JSON: "GenerateRequest"}
    for path, which in _BOTH:
        whole, stream = path + "/generate", path + "/generate_stream"
        calls += [
            HttpRoute("POST", whole, generating.whole, f"Generate tokens with {which}", generate, prompt, _CALLING),
            HttpRoute("POST", stream, generating.stream, f"Stream tokens of {which}", events, prompt, _CALLING),
        ]
    return [
        *calls,
        *_of_health(endpoints),
        *_of_models(endpoints),
        *_of_repository(endpoints),
        *_of_tensorflow(endpoints),
        HttpRoute("GET", "/metrics", metrics, "Metrics in the Prometheus format", {"text/plain": ""}),
        HttpRoute("GET", "/openapi.json", openapi, "This document", {_JSON: "OpenAPI"}),
        *_of_page(page),
    ]


def _of_health(endpoints: Endpoints) -> list[HttpRoute]:
    return [
        HttpRoute("GET", "/v2/health/live", endpoints.live, "Liveness of the server", {_JSON: "Live"}, is_open=True),
        HttpRoute(
            "GET",
            "/v2/health/ready",
            endpoints.ready,
            "Readiness of all requested models",
            {_JSON: "Ready"},
            not_ready="Ready",
            is_open=True,
        ),
        HttpRoute("GET", "/v2", endpoints.server, "Server metadata", {_JSON: "Server"}),
    ]


def _of_models(endpoints: Endpoints) -> list[HttpRoute]:
    statistics = {_JSON: "Statistics"}
    found = [HttpRoute("GET", "/v2/models/stats", endpoints.statistics, "Statistics of all models", statistics)]
    for path, which in _BOTH:
        summaries = f"Inputs and outputs of {which}", f"Readiness of {which}", f"Statistics of {which}"
        found += [
            HttpRoute("GET", path, endpoints.model, summaries[0], {_JSON: "Model"}, fails=_FINDING),
            HttpRoute(
                "GET", path + "/ready", endpoints.model_ready, summaries[1], {_JSON: "Ready"}, None, (404,), "Ready"
            ),
            HttpRoute(
                "GET",
                path + "/config",
                endpoints.config,
                f"Serving configuration of {which}",
                {_JSON: "Config"},
                fails=_FINDING,
            ),
            HttpRoute("GET", path + "/stats", endpoints.statistics, summaries[2], statistics, fails=_FINDING),
        ]
    return found


def _of_repository(endpoints: Endpoints) -> list[HttpRoute]:
    index, parameters, nothing = ({_JSON: name} for name in ("IndexRequest", "Parameters", "Nothing"))
    load, unload = _STORED + "/load", _STORED + "/unload"
    return [
        HttpRoute(
            "POST", "/v2/repository/index", endpoints.index, "List all models", {_JSON: "Index"}, index, _READING
        ),
        HttpRoute("POST", load, endpoints.load, "Load or reload a model", nothing, parameters, _CALLING),
        HttpRoute("POST", unload, endpoints.unload, "Unload a model", nothing, parameters, _CALLING),
    ]


def _of_tensorflow(endpoints: Endpoints) -> list[HttpRoute]:
    asked, given = {_JSON: "PredictRequest"}, {_JSON: "PredictResponse"}
    examples, results = {_JSON: "ExamplesRequest"}, {_JSON: "Results"}
    found = []
    for path, which in zip(_V1, ("a model", "a version", "a labelled version"), strict=True):
        predict, classify, regress = (f"{path}:{verb}" for verb in ("predict", "classify", "regress"))
        found += [
            HttpRoute("POST", predict, endpoints.predict, f"Predict with {which}", given, asked, _CALLING),
            HttpRoute("POST", classify, endpoints.classify, f"Classify with {which}", results, examples, _CALLING),
            HttpRoute("POST", regress, endpoints.regress, f"Regression with {which}", results, examples, _CALLING),
            HttpRoute("GET", path, endpoints.versions, f"State of {which}", {_JSON: "VersionStatus"}, fails=(404,)),
            HttpRoute(
                *("GET", path + "/metadata", endpoints.signatures, f"Signatures of {which}", {_JSON: "Signatures"}),
                fails=_FINDING,
            ),
        ]
    return found


def _of_page(page: Page) -> list[HttpRoute]:
    graph = "/status/models/{model}/versions/{version}/graph"
    return [
        *(
            HttpRoute("GET", file.path, file.answer, file.summary, {file.kind.partition(";")[0]: ""}, is_open=True)
            for file in page.files
        ),
        HttpRoute(
            "GET", "/status", page.status, "Data of the status page", {_JSON: "Status"}, query=("model", "version")
        ),
        HttpRoute(
            "GET",
            graph,
            page.graph,
            "Drawing of the placed graph",
            {"image/svg+xml": ""},
            fails=(*_FINDING, *_COMPUTING),
            query=("signature", "open"),
        ),
    ]
