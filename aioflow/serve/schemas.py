"""The JSON Schemas of HTTP requests and responses, by name, in the dialect of OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aioflow.serve.protocol.schemas import COUNT, DATATYPE, FLAG, FORMS, TEXT, Schema, list_of, object_of, or_none, ref
from aioflow.serve.repository import VersionState
from aioflow.serve.tally import OUTCOMES

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

_METADATA: Final[dict[str, Schema]] = {
    "Error": object_of({"error": TEXT}),
    "Live": object_of({"live": FLAG}),
    "Ready": object_of({"ready": FLAG}, name=TEXT),
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
                            dict.fromkeys(("success", "fail", "queue", "compute_infer"), _DURATION)
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
        }
    ),
}

_REQUESTS: Final = {name: form.schema for name, form in FORMS.items()}
SCHEMAS: Final[Mapping[str, Schema]] = {**_METADATA, **_REQUESTS, **_INFERENCE, **_STATUS}
