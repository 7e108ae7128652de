"""A graph of TensorFlow as a definition of ours, or all that stands against that at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from aioflow.graph.graphdef import VERSION, FunctionDef, GraphDef, NodeDef
from aioflow.graph.older.references import modernized
from aioflow.graph.opdef import OPS
from aioflow.graph.published.graphs import definition_of
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.protos import Message

__all__ = ["definition_and_refused", "supported"]


def supported(graph: Message, what: str, producer: Message = None) -> GraphDef:
    """The definition that a GraphDef message holds.

    Args:
        what: The model, for the error.
        producer: An OpList message: the ops as the producer had them.

    Raises:
        UnsupportedError: there are ops that are not here; it says all of them.
        InvalidArgumentError: the graph is malformed.
        ResourceExhaustedError: its constants are much larger than what is written.
    """
    definition, refused = definition_and_refused(graph, producer)
    if refused:
        raise UnsupportedError(what, refused)
    return definition


def definition_and_refused(graph: Message, producer: Message = None) -> tuple[GraphDef, list[UnsupportedOp]]:
    """The definition that a GraphDef message holds, as far as there is one, and all that stands against it. Arguments
    and errors are those of `supported`, but that nothing is unsupported.
    """
    refused: list[UnsupportedOp] = []

    def refuse(op: str, node: str, why: str) -> None:
        refused.append(UnsupportedOp(op, node, why))

    nodes, functions = definition_of(graph, refuse, producer)
    library = {function.name for function in functions} | {each.signature.name for each in graph.library.function}
    for where, each in [("", nodes), *((f"{f.name}/", f.nodes) for f in functions)]:
        refused += [
            UnsupportedOp(n.op, where + n.name) for n in modernized(each) if n.op not in OPS and n.op not in library
        ]
    return GraphDef(nodes, VERSION, tuple(map(_alone, functions))), refused


def _alone(function: FunctionDef) -> FunctionDef:
    """A function without wishes to be beside what is not in it: nodes of the program that traced it, eager ones too."""
    inside = {f"loc:@{node.name}" for node in function.nodes} | {f"loc:@{arg.name}" for arg in function.inputs}
    return replace(function, nodes=tuple(_beside(node, inside) for node in function.nodes))


def _beside(node: NodeDef, inside: Collection[str]) -> NodeDef:
    groups = node.attrs.get("_class")
    if not isinstance(groups, tuple):
        return node
    kept = tuple(g for g in groups if g in inside or not (isinstance(g, str) and g.startswith("loc:@")))
    return node if kept == groups else replace(node, attrs={**node.attrs, "_class": kept})
