"""A step with the values of its variables in it: no node of it names a resource any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.graph.arrays import Array
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect, Role
from aioflow.ops.apply import make
from aioflow.runtime.folding import fold
from aioflow.session.session import Session

__all__ = ["changing", "frozen", "handles", "optimized", "values_of"]

_PASSES = ("shapes", "constant_folding", "arithmetic", "transposes", "common_subexpressions", "dead_code")


def handles(graph: ClientGraph) -> list[str]:
    """The variables that the step reads, by the nodes of their handles."""
    return [name for name, node in graph.nodes.items() if node.op == "VarHandleOp"]


async def values_of(names: list[str], graph: Graph, session: Session | None) -> Mapping[str, Array]:
    """The values of variables in a session.

    Raises:
        FailedPreconditionError: there is no session, or a variable has no value in it.
    """
    if not names:
        return {}
    if session is None:
        raise FailedPreconditionError(
            "the graph has variables, whose values are in a session", expected="export(session, …)", actual=names[0]
        )
    wanted = set(names)
    reads = {name: tensor for name, tensor in _plain_reads(graph).items() if name in wanted}
    for name in names:
        if name not in reads:
            reads[name] = _new_read(graph.get_operation_by_name(name))
    found: dict[str, Array] = await session.run(reads)
    return found


def _plain_reads(graph: Graph) -> dict[str, Tensor]:
    """For variables by the nodes of their handles a read that waits for nothing, such as each is made with."""
    found: dict[str, Tensor] = {}
    for op in graph.get_operations():
        if op.type == "ReadVariableOp" and not op.waits_for and op.control_flow_context is None:
            found.setdefault(op.inputs[0].op.name, op.outputs[0])
    return found


def _new_read(handle: Operation) -> Tensor:
    with handle.graph.as_default(), handle.graph.control_dependencies(None):
        return make("ReadVariableOp", handle.outputs[0], dtype=handle.attrs["dtype"])


def changing(graph: ClientGraph) -> list[Node]:
    """The nodes that change a resource: whoever waits for them sees that, which no model can say."""
    return [
        node
        for node in graph.nodes.values()
        if traits_of(node.op).effect is Effect.CHANGES
        and any(graph.spec(edge).dtype is dtypes.resource for edge in node.inputs)
    ]


def frozen(graph: ClientGraph, values: Mapping[str, Array]) -> ClientGraph:
    """The step with constants for what it reads of variables, and without what it only waits for.

    Asserts and prints go with that.
    """
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if name in values:
            nodes[name] = _constant(node, values[name])
        elif node.inputs and (handle := _handle(node, nodes)) in values:
            nodes.update((made.name, made) for made in _reading(node, nodes[handle]))
        else:
            nodes[name] = node
    return replace(graph, nodes=nodes)


def _handle(node: Node, nodes: Mapping[str, Node]) -> str:
    """The name of the node whose resource a node gets first, from outside the loops and branches that it is in."""
    name = node.inputs[0].node
    while name in nodes and traits_of(nodes[name].op).role in (Role.ENTER, Role.SWITCH):
        name = nodes[name].inputs[0].node
    return "" if traits_of(node.op).steers else name


def _constant(node: Node, value: Any) -> Node:
    dtype = node.attrs["dtype"]
    array = value if value.dtype == dtype.np_dtype else value.astype(dtype.np_dtype)
    return replace(node, op="Const", attrs={"dtype": dtype, "value": array}, outputs=(OutputSpec(dtype, array.shape),))


def _reading(node: Node, variable: Node) -> Iterator[Node]:
    """What a node that reads a variable is, of its value."""
    value = node.inputs[0]  # which the variable is seen as here
    dtype = variable.attrs["dtype"]
    if node.op == "ReadVariableOp":
        yield replace(node, op="Identity", inputs=(value,), attrs={"T": dtype})
    elif node.op == "ResourceGather":
        axis = _zero(f"{node.name}/axis")
        yield axis
        attrs = {"batch_dims": node.attrs["batch_dims"], "Tparams": dtype, "Tindices": node.attrs["Tindices"]}
        inputs = (value, node.inputs[1], Edge(axis.name, 0))
        yield replace(node, op="GatherV2", inputs=inputs, attrs={**attrs, "Taxis": dtypes.int32})
    elif node.op == "ResourceGatherNd":
        attrs = {"Tparams": dtype, "Tindices": node.attrs["Tindices"], "bad_indices_policy": ""}
        yield replace(node, op="GatherNd", inputs=(value, node.inputs[1]), attrs=attrs)
    elif node.op == "VariableShape":
        yield replace(node, op="Shape", inputs=(value,), attrs={"T": dtype, "out_type": node.attrs["out_type"]})
    else:
        yield node  # which has no translation


def _zero(name: str) -> Node:
    array = dtypes.int32.np_dtype.type(0).reshape(())
    return Node(name, "Const", attrs={"dtype": dtypes.int32, "value": array}, outputs=(OutputSpec(dtypes.int32, ()),))


def optimized(graph: ClientGraph) -> ClientGraph:
    """The step after the optimizations that leave it one of ordinary ops."""
    for each in chosen_passes(True):
        if each.name in _PASSES:
            graph = each.run(graph, fold)
    return graph
