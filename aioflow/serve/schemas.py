"""The JSON Schemas of HTTP requests and responses, by name, in the dialect of OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aioflow.serve.protocol import DATATYPES
from aioflow.serve.repository import VersionState
from aioflow.serve.tally import OUTCOMES

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
_FLAG: Final[Schema] = {"type": "boolean"}
_ANYTHING: Final[Schema] = {"type": "object"}
_MOST: Final = (1 << 63) - 1


def ref(name: str) -> Schema:
    """Return a reference to the schema `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(needed: Mapping[str, Schema], **more: Schema) -> Schema:
    """Return the schema of an object with all members of `needed`, and optional members `more`."""
    return {"type": "object", "properties": {**needed, **more}, "required": list(needed)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_none(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


_NAME: Final[Schema] = {"type": "string", "minLength": 1}
_DATATYPE: Final[Schema] = {"type": "string", "enum": list(DATATYPES)}
_SIZES: Final[Schema] = _list(_COUNT)
_BINARY_SIZE: Final = {"binary_data_size": _COUNT}
_DATA: Final[Schema] = {
    "description": "Elements in row-major order, flat or nested by the shape; absent if sent as binary data."
}
_DURATION: Final[Schema] = _object({"count": _COUNT, "ns": _COUNT})
_QUANTILES: Final = {"p50_seconds": _or_none(_NUMBER), "p99_seconds": _or_none(_NUMBER)}
_OUTCOMES: Final[Schema] = _object(dict.fromkeys(OUTCOMES, _COUNT))

_INFERENCE: Final[dict[str, Schema]] = {
    "InputTensor": _object(
        {"name": _NAME, "datatype": _DATATYPE, "shape": _SIZES},
        data=_DATA,
        parameters={"type": ["object", "null"], "properties": _BINARY_SIZE},
    ),
    "RequestedOutput": _object(
        {"name": _NAME}, parameters={"type": ["object", "null"], "properties": {"binary_data": _FLAG}}
    ),
    "InferRequest": _object(
        {"inputs": _list(ref("InputTensor"))},
        id=_TEXT,
        outputs={"type": ["array", "null"], "items": ref("RequestedOutput")},
        parameters={
            "type": ["object", "null"],
            "properties": {
                "timeout": {**_COUNT, "maximum": _MOST, "description": "Timeout in microseconds; 0 means no timeout."},
                "priority": {**_COUNT, "maximum": _MOST, "description": "0 and 1 are the most urgent."},
                "binary_data_output": _FLAG,
                "signature": {"type": "string", "description": "Signature to use instead of the default one."},
            },
        },
    ),
    "OutputTensor": _object(
        {"name": _TEXT, "datatype": _DATATYPE, "shape": _SIZES},
        data={"type": "array"},
        parameters={"type": "object", "properties": _BINARY_SIZE},
    ),
    "InferResponse": _object(
        {"model_name": _TEXT, "model_version": _TEXT, "outputs": _list(ref("OutputTensor"))}, id=_TEXT
    ),
}

_METADATA: Final[dict[str, Schema]] = {
    "Error": _object({"error": _TEXT}),
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}, name=_TEXT),
    "Server": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "TensorMetadata": _object(
        {"name": _TEXT, "datatype": _DATATYPE, "shape": _list({"type": "integer", "minimum": -1})},
        parameters=_object({}, optional=_FLAG, labels=_list({"type": ["string", "integer"]})),
    ),
    "Model": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(ref("TensorMetadata")),
            "outputs": _list(ref("TensorMetadata")),
        }
    ),
    "Config": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "backend": _TEXT,
            "max_batch_size": _COUNT,
            "input": _list(ref("TensorConfig")),
            "output": _list(ref("TensorConfig")),
        }
    ),
    "TensorConfig": _object(
        {"name": _TEXT, "data_type": _TEXT, "dims": _list({"type": "integer", "minimum": -1})}, optional=_FLAG
    ),
    "Statistics": _object(
        {
            "model_stats": _list(
                _object(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "inference_count": _COUNT,
                        "execution_count": _COUNT,
                        "inference_stats": _object(
                            dict.fromkeys(("success", "fail", "queue", "compute_infer"), _DURATION)
                        ),
                        "batch_stats": _list(
                            _object({"batch_size": _COUNT, "compute_infer": _object({"count": _COUNT})})
                        ),
                    }
                )
            )
        }
    ),
    "IndexRequest": {"type": "object", "properties": {"ready": _FLAG}},
    "Parameters": _ANYTHING,
    "Index": _list(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {"type": "string", "enum": [each.value for each in VersionState]},
                "reason": _TEXT,
            }
        )
    ),
    "Nothing": _ANYTHING,
    "OpenAPI": _object({"openapi": _TEXT, "info": _ANYTHING, "paths": _ANYTHING}),
}

_STATUS: Final[dict[str, Schema]] = {
    "Signature": _object(
        {
            "name": _TEXT,
            "is_default": _FLAG,
            "is_batched": _FLAG,
            "inputs": _list(ref("TensorMetadata")),
            "outputs": _list(ref("TensorMetadata")),
        }
    ),
    "Served": _object(
        {
            "signatures": _list(ref("Signature")),
            "pending_requests": _COUNT,
            "waiting_requests": _COUNT,
            "waiting_rows": _COUNT,
            "running_steps": _COUNT,
            "outcomes": _OUTCOMES,
            "recent": _object({"outcomes": _OUTCOMES, "latency": _SIZES, **_QUANTILES}),
            "steps": _object(
                {
                    "count": _COUNT,
                    "rows": _COUNT,
                    "compute_seconds": _NUMBER,
                    "queue_seconds": _NUMBER,
                    "answered": _COUNT,
                    "engine": _or_none(_TEXT),
                    "sizes": _list({"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}),
                }
            ),
        }
    ),
    "Status": _object(
        {
            "server": _object(
                {
                    "version": _TEXT,
                    "process": _COUNT,
                    "ready": _FLAG,
                    "uptime_seconds": _NUMBER,
                    "window_seconds": _NUMBER,
                }
            ),
            "loop_lag": _object({**_QUANTILES, "worst_seconds": _NUMBER}),
            "memory": _object(
                {
                    "resident_bytes": _or_none(_COUNT),
                    "request_bytes": _COUNT,
                    "weight_bytes": _or_none(_COUNT),
                    "weight_limit": _or_none(_COUNT),
                }
            ),
            "latency_bounds": _list(_NUMBER),
            "models": _list(
                _object(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "state": {"type": "string", "enum": [each.value for each in VersionState]},
                        "reason": _TEXT,
                        "served": {"oneOf": [{"type": "null"}, ref("Served")]},
                    }
                )
            ),
        }
    ),
}

SCHEMAS: Final[Mapping[str, Schema]] = {**_METADATA, **_INFERENCE, **_STATUS}
