"""A graph of TensorFlow as a definition of ours, or all that stands against that at once."""

from __future__ import annotations

from aioflow.graph.graphdef import VERSION, GraphDef
from aioflow.graph.older.references import modernized
from aioflow.graph.opdef import OPS
from aioflow.graph.published.graphs import definition_of
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from aioflow.protos import Message

__all__ = ["supported"]


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
    refused: list[UnsupportedOp] = []

    def refuse(op: str, node: str, why: str) -> None:
        refused.append(UnsupportedOp(op, node, why))

    nodes, functions = definition_of(graph, refuse, producer)
    library = {function.name for function in functions} | {each.signature.name for each in graph.library.function}
    for where, each in [("", nodes), *((f"{f.name}/", f.nodes) for f in functions)]:
        refused += [
            UnsupportedOp(n.op, where + n.name) for n in modernized(each) if n.op not in OPS and n.op not in library
        ]
    if refused:
        raise UnsupportedError(what, refused)
    return GraphDef(nodes, VERSION, functions)
