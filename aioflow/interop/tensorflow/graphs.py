"""Import of TensorFlow's graphs from messages and files, and their export."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from aioflow import protos
from aioflow.errors import DataLossError, OpError, ResourceExhaustedError
from aioflow.formats.graphs.codec import refuse_foreign
from aioflow.formats.graphs.lowering import lowered
from aioflow.formats.graphs.older.references import modernized
from aioflow.formats.graphs.published.graphs import definition_of
from aioflow.formats.stores import store_of
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.graphdef import VERSION, FunctionDef, GraphDef, NodeDef
from aioflow.graph.opdef import OPS
from aioflow.graph.tensor_like import TensorLike
from aioflow.interop.model import DEFAULT_SIGNATURE, Model, Signature
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.ops import importer
from aioflow.protos import Message

# ── definitions from TensorFlow's GraphDef messages, with all unsupported ops found at once ───────────────────────────


def supported(graph: Message, what: str, producer: Message = None) -> GraphDef:
    """Return the definition that a GraphDef message holds.

    Args:
        graph: The GraphDef message.
        what: Name of the model, for the error.
        producer: An OpList message: the op definitions of the program that wrote the graph.

    Raises:
        UnsupportedError: ops are not supported; the error lists all of them.
        InvalidArgumentError: the graph is malformed.
        ResourceExhaustedError: its constants are much larger than their serialized form.
    """
    definition, refused = definition_and_refused(graph, producer)
    if refused:
        raise UnsupportedError(what, refused)
    return definition


def definition_and_refused(graph: Message, producer: Message = None) -> tuple[GraphDef, list[UnsupportedOp]]:
    """Return the definition that a GraphDef message holds, and the nodes that are not supported.

    Arguments and errors are those of `supported`, except that unsupported nodes raise no error.
    """
    refused: list[UnsupportedOp] = []

    def refuse(op: str, node: str, why: str) -> None:
        refused.append(UnsupportedOp(op, node, why))

    nodes, functions = definition_of(graph, refuse, producer)
    # A node may call a function by its name as an op. Functions that were refused count as well: they are listed
    # themselves.
    library = {function.name for function in functions} | {each.signature.name for each in graph.library.function}
    for where, each in [("", nodes), *((f"{f.name}/", f.nodes) for f in functions)]:
        refused += [
            UnsupportedOp(n.op, where + n.name) for n in modernized(each) if n.op not in OPS and n.op not in library
        ]
    return GraphDef(nodes, VERSION, tuple(map(_alone, functions))), refused


def _alone(function: FunctionDef) -> FunctionDef:
    """Return the function without colocation constraints on nodes outside it.

    Such nodes belong to the program that traced the function, and may be eager.
    """
    inside = {f"loc:@{node.name}" for node in function.nodes} | {f"loc:@{arg.name}" for arg in function.inputs}
    return replace(function, nodes=tuple(_beside(node, inside) for node in function.nodes))


def _beside(node: NodeDef, inside: Collection[str]) -> NodeDef:
    groups = node.attrs.get("_class")
    if not isinstance(groups, tuple):
        return node
    kept = tuple(g for g in groups if g in inside or not (isinstance(g, str) and g.startswith("loc:@")))
    return node if kept == groups else replace(node, attrs={**node.attrs, "_class": kept})


# ── import from files ─────────────────────────────────────────────────────────────────────────────────────────────────


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
    return Model(graph, {DEFAULT_SIGNATURE: ends}, source=f"{_source_name(source)} of TensorFlow")


def _source_name(source: GraphSource) -> str:
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


# ── graphs that use only ops that TensorFlow has ──────────────────────────────────────────────────────────────────────


def export_graph_def(graph: Graph | GraphDef) -> GraphDef:
    """Return a definition of the graph that TensorFlow imports and runs with equal results.

    Load it with `tf.GraphDef.FromString(export_graph_def(graph).SerializeToString())`.

    Ops of aioflow are expressed in TensorFlow's ops where that is possible. The snapshots of a `train.Saver`, which a
    later step writes, are left out; ops that save and restore in one step remain.

    Args:
        graph: The graph, or its definition.

    Raises:
        UnsupportedError: TensorFlow lacks ops of the graph; the error lists all of them.
        InvalidArgumentError: an attribute cannot be serialized, for example a Python function.
    """
    return exported(graph.as_graph_def() if isinstance(graph, Graph) else graph)


def exported(definition: GraphDef) -> GraphDef:
    """Return the definition in terms of TensorFlow's ops. Raise UnsupportedError if TensorFlow lacks an op."""
    definition = lowered(definition)
    nodes, functions = definition.nodes, definition.functions
    library = {function.name for function in functions}
    refused = [
        UnsupportedOp(node.op, where + node.name, _why(node.op))
        for where, each in [("", nodes), *((f"{f.name}/", f.nodes) for f in functions)]
        for node in each
        if node.op not in library and _why(node.op)
    ]
    if refused:
        raise UnsupportedError("the graph", refused, "exported to TensorFlow")
    return definition


def _why(op: str) -> str:
    """Return the reason why TensorFlow cannot run the op, "" if it can."""
    if op not in OPS or not OPS.get(op).published:
        return "TensorFlow has no such op"
    return "it refers to an object of this process" if OPS.get(op).traits.stays_home else ""
