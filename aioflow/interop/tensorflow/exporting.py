"""Graphs of ours as TensorFlow runs them: without the ops that it lacks."""

from __future__ import annotations

from aioflow.graph.graph import Graph
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.lowering import lowered
from aioflow.graph.opdef import OPS
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp

__all__ = ["export_graph_def", "exported"]


def export_graph_def(graph: Graph | GraphDef) -> GraphDef:
    """The definition of a graph that TensorFlow imports and runs with equal results:
    `tf.GraphDef.FromString(export_graph_def(graph).SerializeToString())`.

    Ops of ours that can be put in terms of TensorFlow's are. The snapshots of a `train.Saver`, which are written by
    a later step, are left out; what saves and restores at once stays.

    Raises:
        UnsupportedError: TensorFlow lacks ops of the graph; it says all of them.
        InvalidArgumentError: an attribute has no plain form, such as a Python function.
    """
    return exported(graph.as_graph_def() if isinstance(graph, Graph) else graph)


def exported(definition: GraphDef) -> GraphDef:
    """The definition in terms of TensorFlow's ops. Raises UnsupportedError."""
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
    """Why TensorFlow cannot run the op; "" where it can."""
    if op not in OPS or not OPS.get(op).published:
        return "TensorFlow has no such op"
    return "it stands for what is in this process" if OPS.get(op).traits.stays_home else ""
