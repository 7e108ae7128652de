"""The verifier of the compiler's graph: what every pass must leave true. Tests run it between passes."""

from __future__ import annotations

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.errors import InternalError
from aioflow.graph.opdef import OPS

__all__ = ["verify"]

_BOUNDARY = {"_Arg": (0, 1), "_Retval": (1, 0)}  # inputs and outputs of the two ops that are not in the registry


def verify(graph: ClientGraph) -> ClientGraph:
    """Check order, edges, arity and dtypes, and return the graph.

    Raises:
        InternalError: a pass broke the graph; the error shows the node and its neighbours.
    """
    seen: set[str] = set()
    for name, node in graph.nodes.items():
        if name != node.name:
            raise _broken(graph, node, f"it is listed as {name!r}")
        for source in node.predecessors():
            if source not in seen:
                what = "comes later" if source in graph.nodes else "does not exist"
                raise _broken(graph, node, f"its input {source!r} {what}")
        for edge in node.inputs:
            if edge.port >= len(graph.nodes[edge.node].outputs):
                raise _broken(graph, node, f"{edge.node!r} has no output {edge.port}")
        _check_signature(graph, node)
        seen.add(name)
    for op, count in (("_Arg", graph.feeds), ("_Retval", graph.fetches)):
        found = sorted(n.attrs["index"] for n in graph.nodes.values() if n.op == op)
        if found != list(range(count)):
            raise InternalError(
                f"{op} nodes are not numbered 0..{count - 1}", expected=list(range(count)), actual=found
            )
    return graph


def _check_signature(graph: ClientGraph, node: Node) -> None:
    if node.op in _BOUNDARY:
        inputs, outputs = _BOUNDARY[node.op]
        if (len(node.inputs), len(node.outputs)) != (inputs, outputs):
            raise _broken(graph, node, "it has the wrong number of inputs or outputs")
        return
    position = 0
    for arg in OPS.get(node.op).inputs:
        count = (
            node.attrs[arg.number_attr] if arg.number_attr else len(node.attrs[arg.list_attr]) if arg.list_attr else 1
        )
        for i, edge in enumerate(node.inputs[position : position + count]):
            wanted = (
                node.attrs[arg.list_attr][i]
                if arg.list_attr
                else node.attrs[arg.type_attr]
                if arg.type_attr
                else arg.dtype
            )
            if graph.spec(edge).dtype is not wanted:
                raise _broken(graph, node, f"input {arg.name!r} is {graph.spec(edge).dtype}, not {wanted}")
        position += count
    if position != len(node.inputs):
        raise _broken(graph, node, f"it has {len(node.inputs)} inputs, not {position}")


def _broken(graph: ClientGraph, node: Node, what: str) -> InternalError:
    names = list(graph.nodes)
    at = names.index(node.name) if node.name in graph.nodes else 0
    around = "\n".join(
        f"    {n.name} = {n.op}({', '.join(f'{e.node}:{e.port}' for e in n.inputs)})"
        for n in list(graph.nodes.values())[max(0, at - 5) : at + 6]
    )
    error = InternalError(f"the graph is malformed at {node.name!r}: {what}\n{around}")
    error.at(node.name, node.op, node.source)
    return error
