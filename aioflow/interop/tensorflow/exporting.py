"""Rewriting of graphs to use only ops that TensorFlow has."""

from __future__ import annotations

from aioflow.formats.graphs.lowering import lowered
from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.opdef import OPS
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp


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
