"""Import of TensorFlow's graphs from files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from aioflow import protos
from aioflow.errors import DataLossError, OpError, ResourceExhaustedError
from aioflow.formats.graphs.codec import refuse_foreign
from aioflow.formats.stores import store_of
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import GraphDef, NodeDef
from aioflow.graph.tensor_like import TensorLike
from aioflow.interop.model import DEFAULT_SIGNATURE, Model, Signature
from aioflow.interop.tensorflow.definitions import supported
from aioflow.ops import importer

# A file or the bytes of one, a definition, or a GraphDef message, also one of TensorFlow's own class.
GraphSource: TypeAlias = "str | os.PathLike[str] | bytes | GraphDef | protos.Message"

_MAX_BYTES = 1 << 31  # the limit of protocol buffers for a message


def import_graph_def(
    graph_def: GraphSource,
    name: str | None = None,
    input_map: Mapping[str, TensorLike | Operation] | None = None,
    return_elements: Sequence[str] | None = None,
) -> list[Tensor | Operation] | None:
    """Add the nodes of a TensorFlow graph to the default graph. Blocks on the disk or the network for a file.

    Unlike `aioflow.import_graph_def`, it accepts files and bytes, and reports all unsupported ops at once.

    Args:
        graph_def: A path or URL, or the contents of such a file, as bytes or as text (.pb, .pbtxt); or a definition.
        name: As for `aioflow.import_graph_def`.
        input_map: As for `aioflow.import_graph_def`.
        return_elements: As for `aioflow.import_graph_def`.

    Returns:
        The tensors and operations of `return_elements`; None without them.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is damaged or not a graph.
        UnsupportedError: ops are not supported; the error lists all of them.
        InvalidArgumentError, ResourceExhaustedError, …: as `aioflow.import_graph_def`.
    """
    made = _definition(graph_def)
    if return_elements is None:
        importer.import_graph_def(made, input_map, name=name)
        return None
    return importer.import_graph_def(made, input_map, return_elements, name=name)


def load_graph(
    source: GraphSource,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    clear_devices: bool = True,
) -> Model:
    """Load a frozen graph, whose variables are constants, as a model. Blocks on the disk or the network.

    Args:
        source: As for `import_graph_def`.
        inputs: Names of nodes or tensors; by default the placeholders.
        outputs: Names of nodes or tensors; by default the outputs that no node reads.
        clear_devices: Whether to remove the device placements of the original program.

    Returns:
        A model with one signature. Its inputs and outputs have the given names, by default those of their nodes. An
        output that is not the first of its node has the name of its tensor.

    Raises:
        NotFoundError: the file does not exist, or a name is not in the graph (UnknownNameError).
        DataLossError, UnsupportedError, …: as `import_graph_def`.
    """
    definition = _definition(source)
    if clear_devices:
        definition = _without_devices(definition)
    graph = Graph()
    with graph.as_default():
        importer.import_graph_def(definition, name="")
    ends = Signature(
        _named(graph, inputs) if inputs is not None else _placeholders(graph),
        _named(graph, outputs) if outputs is not None else _unread(graph),
    )
    return Model(graph, {DEFAULT_SIGNATURE: ends}, source=f"{_what(source)} of TensorFlow")


def _what(source: GraphSource) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "a graph"


def _definition(source: GraphSource) -> GraphDef:
    if isinstance(source, GraphDef) or protos.is_message(source, "GraphDef"):
        message: protos.Message = source
        # Through bytes, since a message of TensorFlow's own class belongs to another descriptor pool.
        return supported(protos.parse("GraphDef", message.SerializeToString()), "the graph")
    if isinstance(source, bytes):
        return _of_bytes(source, "the graph")
    store, name = store_of(source)
    file = store.path(name)
    size = store.size(name)
    if size is not None and size > _MAX_BYTES:
        raise ResourceExhaustedError(f"{file} is too large", expected=f"at most {_MAX_BYTES} bytes", actual=size)
    try:
        return _of_bytes(store.read(name), file)
    except OpError as error:
        if file not in error.message:
            error.message = f"{file}: {error.message}"
        raise


def _of_bytes(data: bytes, what: str) -> GraphDef:
    refuse_foreign(data)
    graph = protos.read("GraphDef", data)
    # Empty bytes and some other files parse as a message without fields.
    if not graph.ListFields():
        raise DataLossError("not a GraphDef", actual=data[:20])
    return supported(graph, what)


def _without_devices(definition: GraphDef) -> GraphDef:
    def cleared(nodes: Iterable[NodeDef]) -> tuple[NodeDef, ...]:
        return tuple(replace(node, device="") if node.device else node for node in nodes)

    functions = tuple(replace(function, nodes=cleared(function.nodes)) for function in definition.functions)
    return replace(definition, nodes=cleared(definition.nodes), functions=functions)


def _named(graph: Graph, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: graph.get_tensor_by_name(name if ":" in name else f"{name}:0") for name in names}


def _placeholders(graph: Graph) -> dict[str, Tensor]:
    return {op.name: op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"}


def _unread(graph: Graph) -> dict[str, Tensor]:
    """Return the outputs of nodes that have inputs and whose outputs no node reads."""
    operations = graph.get_operations()
    read = {tensor.op for op in operations for tensor in op.inputs}
    return {
        op.name if tensor.value_index == 0 else tensor.name: tensor
        for op in operations
        # Nodes without inputs are constants or variables that nothing uses.
        if op.inputs and op not in read and graph.is_fetchable(op)
        for tensor in op.outputs
    }
