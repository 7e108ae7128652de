"""The errors about names and elements that a graph does not have: they say what is near, and whose the element is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aioflow.errors import DTypeError, InvalidArgumentError, UnknownNameError
from aioflow.graph.suggestions import did_you_mean, near_names

if TYPE_CHECKING:
    from aioflow.graph.graph import Graph
    from aioflow.graph.operation import Operation

__all__ = [
    "needs_tensor",
    "no_node",
    "no_output",
    "no_tensor",
    "not_a_tensor_name",
    "not_an_element",
    "of_another_graph",
]


def of_another_graph(graph: Graph, op: Operation, what: str) -> InvalidArgumentError:
    """Of a node of another graph than `graph`, or of a tensor of such a node; `what`: which."""
    error = InvalidArgumentError(f"{what} is from another graph", expected=repr(graph), actual=repr(op.graph))
    error.at(op.name, op.type, op.source)
    return error


def not_an_element(value: Any, wanted: str) -> DTypeError:
    """Of what is neither a node nor a tensor, nor stands for one, or is the other of the two."""
    return DTypeError(f"{value!r} is not an element of the graph", expected=wanted, actual=type(value).__name__)


def no_node(nodes: Mapping[str, Operation], name: str) -> UnknownNameError:
    """Of the name of a node that is not there."""
    node = name.partition(":")[0]
    return _missing(f"node {name!r}", [node] if node in nodes else near_names(name, nodes), nodes, name)


def no_tensor(nodes: Mapping[str, Operation], name: str) -> UnknownNameError:
    """Of the name of a tensor whose node is not there."""
    node, _, index = name.rpartition(":")
    return _missing(f"tensor {name!r}", [f"{near}:{index}" for near in near_names(node, nodes)], nodes, name)


def not_a_tensor_name(nodes: Mapping[str, Operation], name: str) -> InvalidArgumentError:
    """Of a name without an index, which people give who mean the tensor of that node."""
    if name in nodes:
        return needs_tensor(nodes[name])
    near = [f"{node}:0" for node in near_names(name, nodes)]
    return InvalidArgumentError(
        f"{name!r} is not the name of a tensor{did_you_mean(near)}", expected="'node:index'", actual=name
    )


def needs_tensor(op: Operation) -> DTypeError:
    """Of a node where a tensor is needed."""
    what = f"{op.name!r} is the name of a node{did_you_mean([t.name for t in op.outputs[:3]])}"
    if not op.outputs:
        what = f"node {op.name!r} has no outputs"
    error = DTypeError(what, expected="a tensor, 'node:index'", actual=op.name)
    error.at(op.name, op.type, op.source)
    return error


def no_output(op: Operation, index: int) -> UnknownNameError:
    """Of the name of an output that a node does not have."""
    count = len(op.outputs)
    error = UnknownNameError(
        f"node {op.name!r} has {count} output{'s' * (count != 1)}", expected=f"an index below {count}", actual=index
    )
    error.at(op.name, op.type, op.source)
    return error


def _missing(what: str, near: Sequence[str], nodes: Mapping[str, Operation], name: str) -> UnknownNameError:
    return UnknownNameError(
        f"no {what} in the graph{did_you_mean(near)}", expected=f"one of {len(nodes)} nodes", actual=name
    )
