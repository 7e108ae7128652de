"""The verifier of the compiler's graph: invariants that every pass must preserve. Tests run it between passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aioflow.compiler.control_flow import is_back_edge
from aioflow.compiler.ir import ClientGraph, Node, OutputSpec
from aioflow.errors import InternalError
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import is_compatible
from aioflow.graph.signature.arguments import ArgDef
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role
from aioflow.memory.values import Array


def verify(graph: ClientGraph, whole: bool = True) -> ClientGraph:
    """Check order, edges, attributes, dtypes, bodies, and the numbers of feeds and fetches; return the graph.

    Args:
        graph: The graph to check.
        whole: Whether the graph has all feeds and fetches of the step, rather than those of one device.

    Raises:
        InternalError: a pass broke the graph; the error shows the node and its neighbors.
    """
    seen: set[str] = set()
    for name, node in graph.nodes.items():
        if name != node.name:
            raise _broken(graph, node, f"it is listed as {name!r}")
        for source in node.predecessors():
            if source not in seen and not (source in graph.nodes and is_back_edge(node, graph.nodes[source])):
                what = "comes later" if source in graph.nodes else "does not exist"
                raise _broken(graph, node, f"its input {source!r} {what}")
        for edge in node.inputs:
            if not 0 <= edge.port < len(graph.nodes[edge.node].outputs):
                raise _broken(graph, node, f"{edge.node!r} has no output {edge.port}")
        _check_signature(graph, node)
        if node.body is not None:
            _check_body(graph, node, verify(node.body))
        seen.add(name)
    for op, count in ((ARG, graph.feeds), (RETVAL, graph.fetches)):
        # By `repr`, since an index in a broken graph may be of any type.
        found = sorted((n.attrs.get("index") for n in graph.nodes.values() if n.op == op), key=repr)
        wanted = sorted(range(count), key=repr)
        if found != wanted and (whole or len(set(found)) < len(found) or not set(found).issubset(wanted)):
            raise InternalError(
                f"{op} nodes are not numbered 0..{count - 1}", expected=list(range(count)), actual=found
            )
    return graph


def _check_signature(graph: ClientGraph, node: Node) -> None:
    if node.op not in OPS:
        raise _broken(graph, node, f"there is no op {node.op!r}")
    definition = OPS.get(node.op)
    # Kernels are bound to the attributes as they are, without defaults.
    missing = [name for name in definition.attrs if name not in node.attrs]
    if missing:
        raise _broken(graph, node, f"it has no attribute {', '.join(map(repr, missing))}")
    unknown = [name for name in node.attrs if name not in definition.attrs and not name.startswith("_")]
    if unknown:
        raise _broken(graph, node, f"{node.op} defines no attribute {', '.join(map(repr, unknown))}")
    wanted = [list(_dtypes(args, node.attrs)) for args in (definition.inputs, definition.outputs)]
    actual = [[graph.spec(edge).dtype for edge in node.inputs], [spec.dtype for spec in node.outputs]]
    for kind, expected, found in zip(("input", "output"), wanted, actual, strict=True):
        if len(expected) != len(found):
            raise _broken(graph, node, f"it has {len(found)} {kind}s, not {len(expected)}")
        for (name, dtype), have in zip(expected, found, strict=True):
            if have is not dtype:
                raise _broken(graph, node, f"{kind} {name!r} is {have}, not {dtype}")
    if node.role is Role.CONSTANT and not _holds(node.outputs[0], node.attrs["value"]):
        raise _broken(graph, node, "its value does not have the dtype or shape of its output")


def _check_body(graph: ClientGraph, node: Node, body: ClientGraph) -> None:
    inside = {op: [n for n in body.nodes.values() if n.op == op] for op in (ARG, RETVAL)}
    for op, specs in ((ARG, [graph.spec(edge) for edge in node.inputs]), (RETVAL, node.outputs)):
        found = {n.attrs["index"]: n.attrs["T"] for n in inside[op]}
        if [found[index] for index in sorted(found)] != [spec.dtype for spec in specs]:
            raise _broken(graph, node, f"the {op} nodes of its body are {found}, not {[s.dtype for s in specs]}")


def _holds(spec: OutputSpec, value: Array) -> bool:
    """Return whether a constant has the dtype and shape of its output."""
    return bool(value.dtype == spec.dtype.np_dtype) and is_compatible(spec.dims, value.shape)


def _dtypes(args: Sequence[ArgDef], attrs: Attrs) -> Iterator[tuple[str, DType | None]]:
    """Yield the name and dtype of each tensor of a signature."""
    for arg in args:
        if arg.list_attr is not None:
            yield from ((arg.name, dtype) for dtype in attrs[arg.list_attr])
            continue
        dtype = attrs[arg.type_attr] if arg.type_attr is not None else arg.dtype
        for _ in range(1 if arg.number_attr is None else attrs[arg.number_attr]):
            yield arg.name, dtype


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
