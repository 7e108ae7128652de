"""Descriptions of models: tensors, configuration, state and statistics, as plain data for every transport."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import labels_of
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import datatype_of
from aioflow.serve.protocol.json_text import JsonObject
from aioflow.serve.repository import IndexEntry, VersionState
from aioflow.serve.response_cache import ResponseCache

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
_NANOSECONDS: Final = 1e9
_PLATFORM: Final = "aioflow"


def metadata_of(model: ServedModel, versions: Sequence[int], parameters: bool = True) -> JsonObject:
    """Return the inputs and outputs of a model. Unknown sizes are -1.

    Args:
        model: The model.
        versions: Its versions.
        parameters: Whether tensors have parameters: `optional` for an input with a default value, and `labels` for an
            output with labelled columns. Without parameters, optional inputs are omitted.
    """
    signature = model.signature
    inputs, outputs = tensors_of(signature.inputs), tensors_of(signature.outputs)
    if parameters:
        inputs += [{**each, "parameters": {"optional": True}} for each in tensors_of(signature.optional)]
        for each in outputs:
            if labels := labels_of(signature.outputs[each["name"]]):
                each["parameters"] = {"labels": list(labels)}
    return {
        "name": model.name,
        "versions": [str(version) for version in versions],
        "platform": _PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
    }


def config_of(model: ServedModel) -> JsonObject:
    """Return the configuration of a model in the format of Triton's extension.

    If requests share steps, `dims` has the shape of a row.
    """
    is_batched = model.calls[model.signature_name].is_batched
    signature = model.signature

    def tensors(found: Mapping[str, Tensor]) -> list[JsonObject]:
        return [
            {
                "name": each["name"],
                "data_type": f"TYPE_{'STRING' if each['datatype'] == 'BYTES' else each['datatype']}",
                # Triton's `dims` omit the batch axis if and only if `max_batch_size` is more than 0.
                "dims": each["shape"][1:] if is_batched else each["shape"],
            }
            for each in tensors_of(found)
        ]

    return {
        "name": model.name,
        "platform": _PLATFORM,
        "backend": _PLATFORM,
        "max_batch_size": model.options.max_batch_size if is_batched else 0,
        "input": tensors(signature.inputs) + [{**each, "optional": True} for each in tensors(signature.optional)],
        "output": tensors(signature.outputs),
    }


def tensors_of(tensors: Mapping[str, Tensor]) -> list[JsonObject]:
    """Describe tensors of a signature, with the protocol's datatype names. Unknown sizes are -1."""
    return [
        {
            "name": name,
            "datatype": datatype_of(tensor.dtype, name),
            # The protocol has no notation for an unknown rank.
            "shape": [-1] if tensor.dims is None else [-1 if size is None else size for size in tensor.dims],
        }
        for name, tensor in tensors.items()
    ]


def index_of(entries: Iterable[IndexEntry], only_ready: bool = False) -> list[dict[str, str]]:
    """Return the index of the repository in the format of Triton's extension, optionally only of ready versions."""
    return [
        {"name": each.name, "version": each.version, "state": each.state.value, "reason": each.reason}
        for each in entries
        if each.state is VersionState.READY or not only_ready
    ]


def statistics_of(model: ServedModel) -> JsonObject:
    """Return the statistics of a version in the format of Triton's extension. Times are in nanoseconds."""
    tally = model.tally
    batches = [call.statistics() for call in model.all_calls]
    succeeded, failed = tally.outcomes["ok"], sum(tally.outcomes.values()) - tally.outcomes["ok"]
    executed = sum(each.batches for each in batches)
    compute = _duration(executed, sum(each.compute_seconds for each in batches))
    sizes: dict[int, int] = {}
    for each in batches:
        for size, count in each.sizes.items():
            sizes[size] = sizes.get(size, 0) + count
    return {
        "name": model.name,
        "version": str(model.version),
        "inference_count": sum(each.rows for each in batches),
        "execution_count": executed,
        "inference_stats": {
            "success": _duration(succeeded, tally.seconds["ok"]),
            "fail": _duration(failed, sum(tally.seconds.values()) - tally.seconds["ok"]),
            "queue": _duration(sum(each.answered for each in batches), sum(each.queue_seconds for each in batches)),
            "compute_infer": compute,
            **_cache_statistics(model.cache),
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": {"count": count}} for size, count in sorted(sizes.items())
        ],
    }


def _cache_statistics(cache: ResponseCache | None) -> JsonObject:
    if cache is None:
        return {}
    return {
        "cache_hit": _duration(cache.hits, cache.hit_seconds),
        "cache_miss": _duration(cache.misses, cache.miss_seconds),
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * _NANOSECONDS)}
