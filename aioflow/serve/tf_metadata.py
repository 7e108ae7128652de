"""Descriptions of models in the JSON of TensorFlow Serving's REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.interop.model import Signature
from aioflow.protos import enum
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import MalformedRequestError
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import IndexEntry, VersionState

_PREDICT: Final = "tensorflow/serving/predict"
_TYPE: Final = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_STATES: Final = {
    VersionState.LOADING: "LOADING",
    VersionState.READY: "AVAILABLE",
    VersionState.UNLOADING: "UNLOADING",
    VersionState.UNAVAILABLE: "END",
}


def check_label(path: Mapping[str, str]) -> None:
    """Raise MalformedRequestError if a path has the label of a version, because versions have no labels here."""
    if "label" in path:
        raise MalformedRequestError(
            "versions have no labels here", expected="/versions/NUMBER, or nothing for the newest", actual=path["label"]
        )


def version_status_of(entries: Iterable[IndexEntry]) -> JsonObject:
    """Return the states of versions. A model without versions has version "0"."""
    return {
        "model_version_status": [
            {
                "version": each.version or "0",
                "state": _STATES[each.state],
                "status": {"error_code": "UNKNOWN" if _has_failed(each) else "OK", "error_message": each.reason},
            }
            for each in entries
        ]
    }


def _has_failed(entry: IndexEntry) -> bool:
    return entry.state is VersionState.UNAVAILABLE and entry.reason != "unloaded"


def signatures_of(model: ServedModel) -> JsonObject:
    """Return the signatures of a model that can be called."""
    found = {name: _signature(model.model.signatures[name]) for name in sorted(model.calls)}
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": str(model.version)},
        "metadata": {"signature_def": {"@type": _TYPE, "signature_def": found}},
    }


def _signature(signature: Signature) -> JsonObject:
    return {
        "inputs": _tensors(signature.all_inputs),
        "outputs": _tensors(signature.outputs),
        "method_name": signature.method or _PREDICT,
    }


def _tensors(tensors: Mapping[str, Tensor]) -> JsonObject:
    return {name: _tensor(tensor) for name, tensor in tensors.items()}


def _tensor(tensor: Tensor) -> JsonObject:
    dims = tensor.dims
    return {
        "dtype": enum("DataType").Name(tensor.dtype.as_datatype_enum),
        # 64-bit numbers are text in the JSON of protocol buffers.
        "tensor_shape": {
            "dim": [{"size": "-1" if size is None else str(size), "name": ""} for size in dims or ()],
            "unknown_rank": dims is None,
        },
        "name": tensor.name,
    }
