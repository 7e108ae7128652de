"""The OpenAPI document of the service, generated from the table of its routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aioflow.release import RELEASE
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.schemas import COUNT, DATATYPE, FLAG, FORMS, TEXT, Schema, list_of, object_of, or_none, ref
from aioflow.serve.repository import VersionState
from aioflow.serve.routes import HttpRoute
from aioflow.serve.sources import NAME
from aioflow.serve.tally import OUTCOMES

# ── the JSON Schemas of requests and responses, by name, in the dialect of OpenAPI 3.1 ────────────────────────────────


_NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
_ANYTHING: Final[Schema] = {"type": "object"}
_DURATION: Final[Schema] = object_of({"count": COUNT, "ns": COUNT})
_QUANTILES: Final = {"p50_seconds": or_none(_NUMBER), "p99_seconds": or_none(_NUMBER)}
_OUTCOMES: Final[Schema] = object_of(dict.fromkeys(OUTCOMES, COUNT))

_INFERENCE: Final[dict[str, Schema]] = {
    "OutputTensor": object_of(
        {"name": TEXT, "datatype": DATATYPE, "shape": list_of(COUNT)},
        data={"type": "array"},
        parameters=object_of({}, binary_data_size=COUNT),
    ),
    "InferResponse": object_of(
        {"model_name": TEXT, "model_version": TEXT, "outputs": list_of(ref("OutputTensor"))}, id=TEXT
    ),
}

_GENERATION: Final[dict[str, Schema]] = {
    "GenerateResponse": object_of(
        {"model_name": TEXT, "model_version": TEXT, "tokens": list_of(COUNT)},
        id=TEXT,
        text_output=TEXT,
        finish_reason={"type": "string", "enum": ["length", "stop"]},
    ),
}

_METADATA: Final[dict[str, Schema]] = {
    "Error": object_of({"error": TEXT}),
    "Live": object_of({"live": FLAG}),
    "Ready": object_of({"ready": FLAG}, name=TEXT, reason=TEXT),
    "Server": object_of({"name": TEXT, "version": TEXT, "extensions": list_of(TEXT)}),
    "TensorMetadata": object_of(
        {"name": TEXT, "datatype": DATATYPE, "shape": list_of({"type": "integer", "minimum": -1})},
        parameters=object_of({}, optional=FLAG, labels=list_of({"type": ["string", "integer"]})),
    ),
    "Model": object_of(
        {
            "name": TEXT,
            "versions": list_of(TEXT),
            "platform": TEXT,
            "inputs": list_of(ref("TensorMetadata")),
            "outputs": list_of(ref("TensorMetadata")),
        }
    ),
    "Config": object_of(
        {
            "name": TEXT,
            "platform": TEXT,
            "backend": TEXT,
            "max_batch_size": COUNT,
            "input": list_of(ref("TensorConfig")),
            "output": list_of(ref("TensorConfig")),
        }
    ),
    "TensorConfig": object_of(
        {"name": TEXT, "data_type": TEXT, "dims": list_of({"type": "integer", "minimum": -1})}, optional=FLAG
    ),
    "Statistics": object_of(
        {
            "model_stats": list_of(
                object_of(
                    {
                        "name": TEXT,
                        "version": TEXT,
                        "inference_count": COUNT,
                        "execution_count": COUNT,
                        "inference_stats": object_of(
                            dict.fromkeys(("success", "fail", "queue", "compute_infer"), _DURATION),
                            cache_hit=_DURATION,
                            cache_miss=_DURATION,
                        ),
                        "batch_stats": list_of(
                            object_of({"batch_size": COUNT, "compute_infer": object_of({"count": COUNT})})
                        ),
                    }
                )
            )
        }
    ),
    "Parameters": _ANYTHING,
    "Index": list_of(
        object_of(
            {
                "name": TEXT,
                "version": TEXT,
                "state": {"type": "string", "enum": [each.value for each in VersionState]},
                "reason": TEXT,
            }
        )
    ),
    "Nothing": _ANYTHING,
    "OpenAPI": object_of({"openapi": TEXT, "info": _ANYTHING, "paths": _ANYTHING}),
}

_TENSORFLOW: Final[dict[str, Schema]] = {
    "PredictResponse": object_of({}, predictions={"type": "array"}, outputs={}),
    "Example": _ANYTHING,  # a value or a list of values for each feature
    "Results": object_of({"results": {"type": "array"}}),
    "VersionStatus": object_of(
        {
            "model_version_status": list_of(
                object_of(
                    {
                        "version": TEXT,
                        "state": {"type": "string", "enum": ["LOADING", "AVAILABLE", "UNLOADING", "END"]},
                        "status": object_of({"error_code": TEXT, "error_message": TEXT}),
                    }
                )
            )
        }
    ),
    "Signatures": object_of({"model_spec": _ANYTHING, "metadata": _ANYTHING}),
}

_STATUS: Final[dict[str, Schema]] = {
    "Signature": object_of(
        {
            "name": TEXT,
            "is_default": FLAG,
            "is_batched": FLAG,
            "inputs": list_of(ref("TensorMetadata")),
            "outputs": list_of(ref("TensorMetadata")),
        }
    ),
    "Served": object_of(
        {
            "signatures": list_of(ref("Signature")),
            "pending_requests": COUNT,
            "waiting_requests": COUNT,
            "waiting_rows": COUNT,
            "running_steps": COUNT,
            "streams": or_none(object_of(dict.fromkeys(("writing", "reading", "waiting", "free", "made"), COUNT))),
            "outcomes": _OUTCOMES,
            "recent": object_of({"outcomes": _OUTCOMES, "latency": list_of(COUNT), **_QUANTILES}),
            "steps": object_of(
                {
                    "count": COUNT,
                    "rows": COUNT,
                    "compute_seconds": _NUMBER,
                    "queue_seconds": _NUMBER,
                    "answered": COUNT,
                    "engine": or_none(TEXT),
                    "sizes": list_of({"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}),
                }
            ),
        }
    ),
    "Status": object_of(
        {
            "server": object_of(
                {
                    "version": TEXT,
                    "process": COUNT,
                    "ready": FLAG,
                    "uptime_seconds": _NUMBER,
                    "window_seconds": _NUMBER,
                }
            ),
            "loop_lag": object_of({**_QUANTILES, "worst_seconds": _NUMBER}),
            "memory": object_of(
                {
                    "resident_bytes": or_none(COUNT),
                    "request_bytes": COUNT,
                    "weight_bytes": or_none(COUNT),
                    "weight_limit": or_none(COUNT),
                }
            ),
            "latency_bounds": list_of(_NUMBER),
            "models": list_of(
                object_of(
                    {
                        "name": TEXT,
                        "version": TEXT,
                        "state": {"type": "string", "enum": [each.value for each in VersionState]},
                        "reason": TEXT,
                        "served": {"oneOf": [{"type": "null"}, ref("Served")]},
                    }
                )
            ),
            "history": object_of(
                {
                    "age_seconds": list_of(_NUMBER),
                    "loop_lag_p99_seconds": list_of(or_none(_NUMBER)),
                    "requests_per_second": list_of(_NUMBER),
                    "p50_seconds": list_of(or_none(_NUMBER)),
                    "p99_seconds": list_of(or_none(_NUMBER)),
                    "rows_per_batch": list_of(or_none(_NUMBER)),
                }
            ),
        }
    ),
}

_REQUESTS: Final = {name: form.schema for name, form in FORMS.items()}
SCHEMAS: Final[Mapping[str, Schema]] = {**_METADATA, **_REQUESTS, **_INFERENCE, **_GENERATION, **_TENSORFLOW, **_STATUS}


# ── the document ──────────────────────────────────────────────────────────────────────────────────────────────────────


_CALLS: Final = {"InferRequest", "GenerateRequest", "PredictRequest", "ExamplesRequest"}
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_GUARD: Final = (400, 403)  # a repeated header; a cross-origin request
_MEANINGS: Final[Mapping[int, str]] = {
    400: "The request violates the protocol or does not fit the model, or a kernel rejected its rows.",
    401: "The token is missing or wrong.",
    403: "A page of another site sent the request, or the host name is not allowed.",
    404: "There is no such model or version.",
    413: "The request exceeds a limit: send less.",
    415: "The compression of the body is not supported.",
    429: "The queue is full: retry after the seconds of Retry-After.",
    500: "A fault of the server or of the model; see its log.",
    501: "The protocol has no datatype for an output.",
    503: "The model is being loaded, or the service is shutting down.",
    504: "The time limit of the request or of its body has passed.",
    507: "There is not enough memory for the model or for this step.",
}
_WITHOUT_A_BODY: Final = "The request violates the protocol, for example by a repeated header."
_ADMINISTERED: Final = "The token may not load or unload models. Or: " + _MEANINGS[403]
_AGAIN: Final = (429, 503)  # responses with Retry-After
_LENGTH: Final = "Inference-Header-Content-Length"
_LENGTH_SAYS: Final = "Length of the JSON in the body, in bytes; binary tensors follow it. Default: the whole body."
_PARAMETERS: Final[Mapping[str, JsonObject]] = {
    "model": {"description": "Name of the model.", "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"}},
    "version": {
        "description": "Version of the model.",
        "schema": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"},
    },
    "label": {"description": "Label of a version. There are none here.", "schema": {"type": "string"}},
}
_QUERY: Final[Mapping[str, JsonObject]] = {
    "model": {"description": "Model whose history is included.", "schema": {"type": "string"}},
    "version": {"description": "Version whose history is included.", "schema": {"type": "string"}},
    "signature": {"description": "Signature to use instead of the default one.", "schema": {"type": "string"}},
    "open": {
        "description": "Scopes to draw expanded.",
        "schema": {"type": "array", "items": {"type": "string"}},
    },
}


_TAGS: Final = (  # names, prefixes of their paths, descriptions; the first with a matching prefix counts
    (
        "Models",
        ("/v2/models",),
        "Call models, and see their inputs and outputs: the Open Inference Protocol, version 2.",
    ),
    ("Service", ("/v2/health", "/v2/repository"), "Health, and loading and unloading of models."),
    ("TensorFlow Serving", ("/v1/",), "The same models for clients of TensorFlow Serving."),
    ("Monitoring", ("/metrics", "/openapi.json", "/status", "/v2"), "Metrics, status, and this document."),
    ("Pages", ("/",), "The pages of the service and their files."),
)


def openapi_document(lines: Sequence[HttpRoute], needs_token: Callable[[HttpRoute], bool]) -> JsonObject:
    """Return the document in OpenAPI 3.1.

    Args:
        lines: The routes.
        needs_token: Returns whether requests of a route need a token.
    """
    paths: dict[str, JsonObject] = {}
    for line in lines:
        paths.setdefault(line.path, {})[line.method.lower()] = _operation(line, needs_token(line))
    components: JsonObject = {"schemas": dict(SCHEMAS)}
    if any(needs_token(line) for line in lines):
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "aioflow",
            "version": RELEASE,
            "description": "Model serving by the Open Inference Protocol, version 2, and by TensorFlow Serving's API.",
        },
        "tags": [{"name": name, "description": description} for name, _, description in _TAGS],
        "paths": paths,
        "components": components,
    }


def _operation(line: HttpRoute, needs_token: bool) -> JsonObject:
    made: JsonObject = {"summary": line.summary, "operationId": _identifier(line), "tags": [_tag(line.path)]}
    parameters = [
        {"name": name, "in": "path", "required": True, **_PARAMETERS[name]}
        for name in re.findall(r"{(\w+)}", line.path)
    ]
    parameters += [{"name": name, "in": "query", **_QUERY[name]} for name in line.query]
    if line.takes and _BYTES in line.takes:
        length = {"type": "integer", "minimum": 0}
        parameters.append({"name": _LENGTH, "in": "header", "description": _LENGTH_SAYS, "schema": length})
    if parameters:
        made["parameters"] = parameters
    if line.takes is not None:
        made["requestBody"] = {"required": not _CALLS.isdisjoint(line.takes.values()), "content": _content(line.takes)}
    made["responses"] = _responses(line, needs_token)
    if needs_token:
        made["security"] = [{"token": []}]
    return made


def _tag(path: str) -> str:
    return next(name for name, prefixes, _ in _TAGS if path.startswith(prefixes))


def _identifier(line: HttpRoute) -> str:
    words = re.findall(r"\w+", line.path.replace("{", "").replace("}", ""))
    return "_".join([line.method.lower(), *words])


def _content(kinds: Mapping[str, str]) -> JsonObject:
    return {kind: {"schema": ref(schema)} if schema else {} for kind, schema in kinds.items()}


def _responses(line: HttpRoute, needs_token: bool) -> JsonObject:
    found: JsonObject = {"200": {"description": "Success.", "content": _content(line.gives)}}
    if _BYTES in line.gives:
        length = {"description": _LENGTH_SAYS, "schema": {"type": "string", "pattern": "^[0-9]+$"}}
        found["200"]["headers"] = {_LENGTH: length}
    guard = (*_GUARD, 401) if needs_token else _GUARD
    for status in sorted({*line.fails, *guard}):
        found[str(status)] = _error(status, _meaning(line, status))
    if line.not_ready:
        found["503"] = {
            "description": "Not ready: the response has the reason.",
            "content": {_JSON: {"schema": ref(line.not_ready)}},
        }
    return found


def _meaning(line: HttpRoute, status: int) -> str:
    if status == 400 and line.takes is None:
        return _WITHOUT_A_BODY
    if status == 403 and line.path.endswith(("/load", "/unload")):
        return _ADMINISTERED
    return _MEANINGS[status]


def _error(status: int, meaning: str) -> JsonObject:
    made: JsonObject = {
        "description": meaning,
        "content": {_JSON: {"schema": ref("Error")}},
    }
    if status in _AGAIN:
        made["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
    if status == 401:
        made["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return made
