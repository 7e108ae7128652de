"""The OpenAPI document of the service, generated from the table of its routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from aioflow.release import RELEASE
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.protocol.schemas import ref
from aioflow.serve.routes import HttpRoute
from aioflow.serve.schemas import SCHEMAS
from aioflow.serve.sources import NAME

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_GUARD: Final = (400, 403)  # a repeated header; a cross-origin request
_AGAIN: Final = (429, 503)  # responses with Retry-After
_LENGTH: Final = "Inference-Header-Content-Length"
_LENGTH_SAYS: Final = "Length of the JSON in the body, in bytes; binary tensors follow it. Default: the whole body."
_PARAMETERS: Final[Mapping[str, JsonObject]] = {
    "model": {"description": "Name of the model.", "schema": {"type": "string", "pattern": f"^{NAME.pattern}$"}},
    "version": {
        "description": "Version of the model.",
        "schema": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"},
    },
}
_QUERY: Final[Mapping[str, JsonObject]] = {
    "signature": {"description": "Signature to use instead of the default one.", "schema": {"type": "string"}},
    "open": {
        "description": "Scopes to draw expanded.",
        "schema": {"type": "array", "items": {"type": "string"}},
    },
}


def openapi_document(lines: Iterable[HttpRoute], has_token: bool) -> JsonObject:
    """Return the document in OpenAPI 3.1.

    Args:
        lines: The routes.
        has_token: Whether requests need a token.
    """
    paths: dict[str, JsonObject] = {}
    for line in lines:
        paths.setdefault(line.path, {})[line.method.lower()] = _operation(line, has_token)
    components: JsonObject = {"schemas": dict(SCHEMAS)}
    if has_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "aioflow",
            "version": RELEASE,
            "description": "Model serving by the Open Inference Protocol, version 2, with its extensions.",
        },
        "paths": paths,
        "components": components,
    }


def _operation(line: HttpRoute, has_token: bool) -> JsonObject:
    made: JsonObject = {"summary": line.says, "operationId": _identifier(line)}
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
        made["requestBody"] = {"required": "InferRequest" in line.takes.values(), "content": _content(line.takes)}
    made["responses"] = _responses(line, has_token)
    if has_token and not line.is_open:
        made["security"] = [{"token": []}]
    return made


def _identifier(line: HttpRoute) -> str:
    words = re.findall(r"\w+", line.path.replace("{", "").replace("}", ""))
    return "_".join([line.method.lower(), *words])


def _content(kinds: Mapping[str, str]) -> JsonObject:
    return {kind: {"schema": ref(schema)} if schema else {} for kind, schema in kinds.items()}


def _responses(line: HttpRoute, has_token: bool) -> JsonObject:
    found: JsonObject = {"200": {"description": HTTPStatus.OK.phrase, "content": _content(line.gives)}}
    if _BYTES in line.gives:
        length = {"description": _LENGTH_SAYS, "schema": {"type": "string", "pattern": "^[0-9]+$"}}
        found["200"]["headers"] = {_LENGTH: length}
    guard = (*_GUARD, 401) if has_token and not line.is_open else _GUARD
    for status in sorted({*line.fails, *guard}):
        found[str(status)] = _error(status)
    if line.not_ready:
        found["503"] = {
            "description": HTTPStatus.SERVICE_UNAVAILABLE.phrase,
            "content": {_JSON: {"schema": ref(line.not_ready)}},
        }
    return found


def _error(status: int) -> JsonObject:
    made: JsonObject = {
        "description": HTTPStatus(status).phrase,
        "content": {_JSON: {"schema": ref("Error")}},
    }
    if status in _AGAIN:
        made["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}}
    if status == 401:
        made["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return made
