"""Parts of steps as ONNX models, for an engine that replaces aioflow's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onnx import ModelProto

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.compiler.sizes import assuming_sizes
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.interop.onnx.exporting.assembly import assembled
from aioflow.interop.onnx.exporting.equivalent import is_equivalent
from aioflow.interop.onnx.exporting.fusing import fused
from aioflow.interop.onnx.exporting.scope import GraphBuilder
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.walk import walk
from aioflow.interop.unsupported import UnsupportedError
from aioflow.memory.values import Array

_INPUT: Final = "input_"
_OTHER: Final = "its translation and its kernel differ for some values"


def refused_in(graph: ClientGraph, opset: int) -> Mapping[str, str]:
    """Return the nodes of a part that no translation can replace, by name, each with the reason.

    Such a node has no translation, or its translation may differ in results from its kernel.
    """
    # Unknown sizes are assumed to be large here; the engine checks the real ones (`inexact_in`) when it runs the part.
    if found := inexact_in(assuming_sizes(graph)) or _open_channels(graph):
        return dict.fromkeys(found, _OTHER)
    try:
        _walked(graph, opset)
    except UnsupportedError as error:
        return {each.node: each.why for each in error.unsupported}
    return {}


def inexact_in(graph: ClientGraph) -> list[str]:
    """Return the nodes of a part whose translation differs in results from their kernel, for values of these sizes."""
    computing = (node for node in graph.nodes.values() if node.op not in (ARG, RETVAL, "Const"))
    return [node.name for node in computing if not is_equivalent(graph, node)]


def _open_channels(graph: ClientGraph) -> list[str]:
    """Return the convolutions whose number of channel groups does not follow from static shapes."""
    convolutions = (node for node in graph.nodes.values() if node.op in ("Conv2D", "Conv3D"))
    return [node.name for node in convolutions if not is_equivalent(graph, node)]


def model_of(graph: ClientGraph, opset: int) -> tuple[ModelProto, Mapping[str, Array]]:
    """Return a part as a model, and its large constants by name.

    The model's inputs and outputs are in the order of the part's feeds and fetches. It declares the large constants as
    external data and does not contain their values.

    Raises:
        UnsupportedError: with the nodes that have no translation.
    """
    scope, values = _walked(graph, opset)
    outside: dict[str, Array] = {}
    model = assembled(scope, {f"output_{index}": value for index, value in enumerate(values)}, outside)
    return model, outside


def index_of_input(name: str) -> int:
    """Return the index of the part's input for an input of its model."""
    return int(name.removeprefix(_INPUT))


def _walked(graph: ClientGraph, opset: int) -> tuple[GraphBuilder, list[ModelValue]]:
    graph = fused(graph, opset)
    feeds = {Edge(n.name, 0): f"{_INPUT}{n.attrs['index']}" for n in graph.nodes.values() if n.op == ARG}
    results = {int(n.attrs["index"]): n.inputs[0] for n in graph.nodes.values() if n.op == RETVAL}
    wanted = [results[index] for index in range(graph.fetches)]
    return walk(graph, wanted, feeds, opset, reserved=[f"output_{index}" for index in range(graph.fetches)])
