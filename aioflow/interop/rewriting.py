"""Rewriting of graph definitions for inference: parts of them, variables as constants, no nodes of training."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, NotFoundError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.definitions import NodeDef, TensorData
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation
from aioflow.graph.graphdef import GraphDef
from aioflow.graph.shapes import TensorShape

_VARIABLE: Final = "VarHandleOp"
# Ops that return a variable's handle, which becomes its value.
_PASSING: Final = ("Identity", "Switch", "Merge", "Enter", "Exit", "NextIteration")
_COLOCATED: Final = "loc:@"
_OF_REFERENCES: Final = (
    "Assign", "AssignAdd", "AssignSub", "Queue", "ScatterAdd", "ScatterSub", "ScatterUpdate", "TruncatedNormal",
    "Variable", "VariableV2",
)  # fmt: skip


class _Runner(Protocol):
    def run(self, fetches: Any) -> Awaitable[Any]: ...


def _node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


def extract_sub_graph(graph_def: GraphDef, dest_nodes: Iterable[str]) -> GraphDef:
    """Return the part of a graph that the nodes `dest_nodes` need, these included.

    Raises:
        DTypeError: `graph_def` is not a definition, or `dest_nodes` is a single name.
        NotFoundError: the graph has no node of that name.
    """
    check_kind(graph_def, GraphDef, "the graph", "an aioflow.GraphDef")
    if isinstance(dest_nodes, str):
        raise DTypeError("the nodes of a graph", expected="a list of names", actual=dest_nodes)
    needs = {node.name: [*map(_node_of, node.inputs), *_colocated(node)] for node in graph_def.nodes}
    waiting, kept = list(dest_nodes), set()
    while waiting:
        name = waiting.pop()
        if name in kept:
            continue
        if name not in needs:
            raise NotFoundError(f"node {name!r} is not in the graph", expected="the name of a node", actual=name)
        kept.add(name)
        waiting += needs[name]
    return replace(graph_def, nodes=tuple(node for node in graph_def.nodes if node.name in kept))


def _colocated(node: NodeDef) -> list[str]:
    groups: Any = node.attrs.get("_class", ())
    texts = [group.decode() if isinstance(group, bytes) else str(group) for group in groups]
    return [text.removeprefix(_COLOCATED) for text in texts if text.startswith(_COLOCATED)]


def remove_training_nodes(input_graph: GraphDef, protected_nodes: Collection[str] | None = None) -> GraphDef:
    """Return the graph without its nodes Identity, StopGradient and CheckNumerics; their readers read their inputs.

    Nodes with control edges, nodes that others are colocated with, and `protected_nodes` stay.
    """
    check_kind(input_graph, GraphDef, "the graph", "an aioflow.GraphDef")
    edges = [(node.name, reference) for node in input_graph.nodes for reference in node.inputs]
    kept = {*(protected_nodes or ()), *(name for node in input_graph.nodes for name in _colocated(node))}
    kept.update(end for name, reference in edges if reference.startswith("^") for end in (name, reference[1:]))
    spliced = {
        node.name: node.inputs[0]
        for node in input_graph.nodes
        if node.op in ("Identity", "StopGradient", "CheckNumerics") and node.name not in kept
    }

    def source(reference: str) -> str:
        while _node_of(reference) in spliced:
            reference = spliced[_node_of(reference)]
        return reference

    nodes = [node for node in input_graph.nodes if node.name not in spliced]
    return replace(input_graph, nodes=tuple(replace(n, inputs=tuple(map(source, n.inputs))) for n in nodes))


async def convert_variables_to_constants(
    sess: _Runner,
    input_graph_def: GraphDef,
    output_node_names: Iterable[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> GraphDef:
    """Return the part of a graph that computes some nodes, with the present values of its variables as constants.

    Args:
        sess: The session that has the variables.
        input_graph_def: The definition of its graph.
        output_node_names: Names of the nodes to compute.
        variable_names_whitelist: Names of the variables to convert; by default all.
        variable_names_blacklist: Names of variables that stay.

    Raises:
        NotFoundError: the graph has no node of that name.
        FailedPreconditionError: a variable is not initialized.
        UnimplementedError: a node uses a variable in another way than to read it.
    """
    part = extract_sub_graph(input_graph_def, output_node_names)
    names = [
        node.name
        for node in part.nodes
        if node.op == _VARIABLE
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    found = await sess.run([f"{name}:0" for name in names])
    values = dict(zip(names, map(np.asarray, found), strict=True))
    held = _held(part, {node.name: _dtype(node, "dtype") for node in part.nodes if node.name in values})
    nodes: list[NodeDef] = []
    for node in part.nodes:
        if node.name in values:
            nodes.append(_constant(node.name, values[node.name]))
        elif node.name in held:
            nodes.append(replace(node, attrs={**node.attrs, "T": held[node.name]}))
        elif any(_node_of(reference) in held for reference in node.inputs if not reference.startswith("^")):
            nodes += _reading(node)
        else:
            nodes.append(node)
    return replace(part, nodes=tuple(nodes))


def _dtype(node: NodeDef, attr: str) -> DType:
    found: Any = node.attrs[attr]
    return dtypes.as_dtype(found)


def _held(part: GraphDef, held: dict[str, DType]) -> Mapping[str, DType]:
    """Return the dtype of the variable of which a node returns the handle, for all such nodes."""
    passing = [node for node in part.nodes if node.op in _PASSING and node.name not in held]
    count = -1
    while count != len(held):  # loops pass a handle on to nodes that come first
        count = len(held)
        for node in passing:
            source = _node_of(node.inputs[0])
            if source in held:
                held.setdefault(node.name, held[source])
    return held


def _constant(name: str, value: np.ndarray[Any, Any]) -> NodeDef:
    data = TensorData.of(value)
    return NodeDef(name, "Const", attrs={"dtype": data.dtype, "value": data})


def _reading(node: NodeDef) -> list[NodeDef]:
    """Return the nodes that compute from the value what `node` reads from the variable."""
    attrs = {name: value for name, value in node.attrs.items() if name.startswith("_")}
    if node.op == "ReadVariableOp":
        return [replace(node, op="Identity", attrs={**attrs, "T": node.attrs["dtype"]})]
    attrs |= {"Tparams": node.attrs.get("dtype"), "Tindices": node.attrs.get("Tindices")}
    if node.op == "ResourceGatherNd":
        return [replace(node, op="GatherNd", attrs=attrs)]
    if node.op == "ResourceGather":
        axis = f"{node.name}/axis"
        data, control = node.inputs[:2], node.inputs[2:]
        attrs |= {"Taxis": dtypes.int32, "batch_dims": node.attrs.get("batch_dims", 0)}
        gathered = replace(node, op="GatherV2", inputs=(*data, axis, *control), attrs=attrs)
        return [gathered, _constant(axis, np.array(0, np.int32))]
    raise UnimplementedError(
        "a node does more with a variable than to read it", expected="a read or a gather", actual=node.op
    ).at(node.name, node.op, None)


def must_run_on_cpu(node: NodeDef | Operation, pin_variables_on_cpu: bool = False) -> bool:
    """Return whether TensorFlow places the node on a CPU in any case: constants of strings and int32, and some more.

    Args:
        node: A node or its definition.
        pin_variables_on_cpu: Whether the reference variables of TensorFlow's first years count, too.
    """
    name, attrs = (node.type, node.attrs) if isinstance(node, Operation) else (node.op, node.attrs)
    if pin_variables_on_cpu and name in _OF_REFERENCES:
        return True
    attr = {"Const": "dtype", "DynamicStitch": "T", "ParallelDynamicStitch": "T", "Cast": "SrcT"}.get(name)
    found: Any = None if attr is None else attrs.get(attr)
    return found is dtypes.int32 or (found is dtypes.string and name == "Const")


def tensor_shape_from_node_def_name(graph: Graph, input_name: str) -> TensorShape:
    """Return the static shape of a tensor, by the name of its node or "node:index"."""
    return graph.get_tensor_by_name(input_name if ":" in input_name else f"{input_name}:0").get_shape()
