"""Steps with the values of their variables as constants, so that no node uses a resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.errors import FailedPreconditionError
from aioflow.graph import dtypes
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect, Role
from aioflow.memory.values import Array
from aioflow.ops.apply import make
from aioflow.runtime.folding import fold
from aioflow.session.session import Session

_PASSES = ("shapes", "constant_folding", "arithmetic", "transposes", "common_subexpressions", "dead_code")


def handles(graph: ClientGraph) -> list[str]:
    """Return the variables that the step reads, by the names of their handle nodes."""
    return [name for name, node in graph.nodes.items() if node.op == "VarHandleOp"]


async def values_of(names: list[str], graph: Graph, session: Session | None) -> Mapping[str, Array]:
    """Return the values of variables in a session. A variable without a plain read gets one, added to the graph.

    Raises:
        FailedPreconditionError: there is no session, a variable has no value in it, or a read cannot be added because
            the graph is finalized.
    """
    if not names:
        return {}
    if session is None:
        raise FailedPreconditionError(
            "the graph has variables, so the export needs a session with their values",
            expected="export(session, …)",
            actual=names[0],
        )
    wanted = set(names)
    reads = {name: tensor for name, tensor in _plain_reads(graph).items() if name in wanted}
    for name in names:
        if name not in reads:
            reads[name] = _new_read(graph.get_operation_by_name(name))
    # All in one step, so that they are values of one moment.
    found: dict[str, Array] = await session.run(reads)
    return found


def _plain_reads(graph: Graph) -> dict[str, Tensor]:
    """Return a read for each variable, by the name of its handle node.

    Only reads without control dependencies and outside of control flow count, such as the one that each variable is
    created with.
    """
    found: dict[str, Tensor] = {}
    for op in graph.get_operations():
        if op.type == "ReadVariableOp" and not op.waits_for and op.control_flow_context is None:
            found.setdefault(op.inputs[0].op.name, op.outputs[0])
    return found


def _new_read(handle: Operation) -> Tensor:
    with handle.graph.as_default(), handle.graph.control_dependencies(None):
        return make("ReadVariableOp", handle.outputs[0], dtype=handle.attrs["dtype"])


def changing(graph: ClientGraph) -> list[Node]:
    """Return the nodes that change a resource. A model cannot express that effect, which later nodes may depend on."""
    return [
        node
        for node in graph.nodes.values()
        if traits_of(node.op).effect is Effect.CHANGES
        and any(graph.spec(edge).dtype is dtypes.resource for edge in node.inputs)
    ]


def frozen(graph: ClientGraph, values: Mapping[str, Array]) -> ClientGraph:
    """Return the step with constants in place of variables.

    Control dependencies are dropped, and with them asserts and prints.
    """
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if name in values:
            nodes[name] = _constant(node, values[name])
        # Handles come before their readers: nodes are in topological order, and replaced handles are constants by now.
        elif node.inputs and (handle := _handle(node, nodes)) in values:
            nodes.update((made.name, made) for made in _reading(node, nodes[handle]))
        else:
            nodes[name] = node
    return replace(graph, nodes=nodes)


def _handle(node: Node, nodes: Mapping[str, Node]) -> str:
    """Return the name of the node that makes the resource of a node's first input, or "".

    Enter and Switch nodes in between, of the loops and branches around the node, are looked through.
    """
    name = node.inputs[0].node
    while name in nodes and nodes[name].role in (Role.ENTER, Role.SWITCH):
        name = nodes[name].inputs[0].node
    # The Enter and Switch nodes themselves stay, and pass the value on instead of the handle.
    return "" if traits_of(node.op).is_control_flow else name


def _constant(node: Node, value: Array) -> Node:
    dtype = node.attrs["dtype"]
    array = value if value.dtype == dtype.np_dtype else value.astype(dtype.np_dtype)
    return replace(node, op="Const", attrs={"dtype": dtype, "value": array}, outputs=(OutputSpec(dtype, array.shape),))


def _reading(node: Node, variable: Node) -> Iterator[Node]:
    """Yield the nodes that replace a read of a variable and compute the same from its value."""
    value = node.inputs[0]  # the variable's value, as seen inside loops and branches
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
        yield node  # has no translation


def _zero(name: str) -> Node:
    array = dtypes.int32.np_dtype.type(0).reshape(())
    return Node(name, "Const", attrs={"dtype": dtypes.int32, "value": array}, outputs=(OutputSpec(dtypes.int32, ()),))


def optimized(graph: ClientGraph) -> ClientGraph:
    """Return the step after those optimizations that only leave ordinary ops."""
    for each in chosen_passes(True):
        if each.name in _PASSES:
            graph = each.run(graph, fold)
    return graph
