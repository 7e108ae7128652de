"""The engine for the compiler: the nodes that it computes, and the cost of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime

from aioflow.compiler.ir import ClientGraph
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, num_elements
from aioflow.interop.onnx.exporting.regions import refused_in
from aioflow_onnxruntime import NAME
from aioflow_onnxruntime.sessions import EXCHANGED, OPSET, kinds_of, model_session, provider_of


class Engine:
    """onnxruntime with one of its execution providers (`compiler.delegate.Delegate`).

    Args:
        provider: Name of the execution provider; "" for the CPU's.

    Raises:
        NotFoundError: the installed onnxruntime does not have the provider.
    """

    # A region that takes no longer than this, by the compiler's estimate, is not delegated.
    call_seconds = 5e-6

    def __init__(self, provider: str) -> None:
        provider_of(provider)
        self.name = f"{NAME}:{provider}" if provider else NAME

    def refused(self, graph: ClientGraph) -> Mapping[str, str]:
        """Return the nodes that onnxruntime does not compute, each with a reason (`Delegate.refused`).

        These are nodes with dtypes that are not exchanged with onnxruntime, or else those with empty values, or else
        those without a translation: only the first kind that occurs is reported.
        """
        given = graph.read_outputs()
        found = {
            node.name: f"onnxruntime takes no {spec.dtype.name}"
            for node in graph.nodes.values()
            for spec in (*given[node.name], *(graph.spec(edge) for edge in node.inputs))
            if spec.dtype not in EXCHANGED
        }
        empty = (name for name, read in given.items() if any(num_elements(spec.dims) == 0 for spec in read))
        return found or dict.fromkeys(empty, "nothing to compute") or refused_in(graph, OPSET)

    def outputs_of(self, model: bytes) -> Sequence[tuple[DType, Dims]]:
        """Return the dtype of each output of a model, and its shape as far as it is known (`OnnxEngine.outputs_of`)."""
        return kinds_of(model_session(model, threads=1))


def version() -> str:
    """Return the line for `doctor`: the release and the execution providers."""
    return f"{onnxruntime.__version__} ({', '.join(onnxruntime.get_available_providers())})"
