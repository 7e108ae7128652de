"""Translation of TensorFlow's GraphDef messages to graph definitions, with all unsupported ops found at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from aioflow.formats.graphs.older.references import modernized
from aioflow.formats.graphs.published.graphs import definition_of
from aioflow.graph.graphdef import VERSION, FunctionDef, GraphDef, NodeDef
from aioflow.graph.opdef import OPS
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.protos import Message


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
