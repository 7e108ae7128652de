"""The engine as the compiler asks it: what it computes, and what a call costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnxruntime

from aioflow.compiler.ir import ClientGraph
from aioflow.errors import NotFoundError
from aioflow.graph import dtypes
from aioflow.graph.shapes import num_elements
from aioflow.interop.onnx.exporting.regions import refused_in
from aioflow_onnxruntime import NAME

__all__ = ["OPSET", "Engine", "provider_of", "version"]

OPSET: Final = 20
_DTYPES: Final = frozenset(  # of arrays that onnxruntime takes from NumPy, and gives back
    {
        *(dtypes.float16, dtypes.float32, dtypes.float64, dtypes.bool_),
        *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64),
        *(dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64),
    }
)


class Engine:
    """onnxruntime with one of its execution providers (`compiler.delegate.Delegate`).

    Raises:
        NotFoundError: the installed onnxruntime does not have the provider.
    """

    call_seconds = 5e-6

    def __init__(self, provider: str) -> None:
        provider_of(provider)
        self.name = f"{NAME}:{provider}" if provider else NAME

    def refused(self, graph: ClientGraph) -> Mapping[str, str]:
        """Return the nodes that onnxruntime does not compute, as `Delegate` says: those with dtypes that it does not
        exchange, with empty values, or without a translation.
        """
        found = {
            node.name: f"onnxruntime takes no {spec.dtype.name}"
            for node in graph.nodes.values()
            for spec in (*node.outputs, *(graph.spec(edge) for edge in node.inputs))
            if spec.dtype not in _DTYPES
        }
        empty = (n.name for n in graph.nodes.values() if any(num_elements(spec.dims) == 0 for spec in n.outputs))
        return found or dict.fromkeys(empty, "nothing to compute") or refused_in(graph, OPSET)


def provider_of(text: str) -> str:
    """Return an execution provider by the name that `SessionConfig.delegate` has for it.

    Raises:
        NotFoundError: the installed onnxruntime does not have it.
    """
    known = onnxruntime.get_available_providers()
    chosen = text or "CPU"
    for name in (chosen, f"{chosen}ExecutionProvider"):
        if name in known:
            return name
    raise NotFoundError("onnxruntime has no such execution provider", expected=f"one of {known}", actual=text)


def version() -> str:
    """Return what `doctor` says: the release, and the execution providers."""
    return f"{onnxruntime.__version__} ({', '.join(onnxruntime.get_available_providers())})"
