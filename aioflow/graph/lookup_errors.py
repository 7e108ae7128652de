"""Errors about names and elements that a graph does not have, and about tensors used as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aioflow.arguments import did_you_mean, near_names
from aioflow.errors import DTypeError, InvalidArgumentError, OpError, UnknownNameError
from aioflow.graph.views import NodeView, TensorView


def of_another_graph(graph: object, op: NodeView, what: str) -> InvalidArgumentError:
    """Return the error for a node of another graph than `graph`, or for its tensor, described by `what`."""
    error = InvalidArgumentError(f"{what} is from another graph", expected=repr(graph), actual=repr(op.graph))
    error.at(op.name, op.type, op.source)
    return error


def not_an_element(value: Any, wanted: str) -> DTypeError:
    """Return the error for a value that denotes no node or tensor, or a tensor where only nodes are accepted."""
    return DTypeError(f"{value!r} is not an element of the graph", expected=wanted, actual=type(value).__name__)


def no_node(nodes: Mapping[str, NodeView], name: str) -> UnknownNameError:
    """Return the error for the name of a node that does not exist."""
    node = name.partition(":")[0]
    return _missing(f"node {name!r}", [node] if node in nodes else near_names(name, nodes), nodes, name)


def no_tensor(nodes: Mapping[str, NodeView], name: str) -> UnknownNameError:
    """Return the error for the name of a tensor whose node does not exist."""
    node, _, index = name.rpartition(":")
    return _missing(f"tensor {name!r}", [f"{near}:{index}" for near in near_names(node, nodes)], nodes, name)


def not_a_tensor_name(nodes: Mapping[str, NodeView], name: str) -> InvalidArgumentError:
    """Return the error for a name without an index where a tensor is needed."""
    # A name of a node most likely means its tensor, so suggest the outputs.
    if name in nodes:
        return needs_tensor(nodes[name])
    near = [f"{node}:0" for node in near_names(name, nodes)]
    return InvalidArgumentError(
        f"{name!r} is not the name of a tensor{did_you_mean(near)}", expected="'node:index'", actual=name
    )


def needs_tensor(op: NodeView) -> DTypeError:
    """Return the error for a node where a tensor is needed."""
    what = f"{op.name!r} is the name of a node{did_you_mean([t.name for t in op.outputs[:3]])}"
    if not op.outputs:
        what = f"node {op.name!r} has no outputs"
    error = DTypeError(what, expected="a tensor, 'node:index'", actual=op.name)
    error.at(op.name, op.type, op.source)
    return error


def no_output(op: NodeView, index: int) -> UnknownNameError:
    """Return the error for the name of an output that a node does not have."""
    count = len(op.outputs)
    error = UnknownNameError(
        f"node {op.name!r} has {count} output{'s' * (count != 1)}", expected=f"an index below {count}", actual=index
    )
    error.at(op.name, op.type, op.source)
    return error


def misused(tensor: TensorView, what: str, instead: str = "") -> OpError:
    """Return the error for a tensor used where Python or NumPy needs a value; `instead` states an alternative."""
    advice = f"{instead} `await session.run` it first".lstrip()
    error = DTypeError(
        f"a symbolic tensor was {what}; {advice}",
        expected="a value, which a tensor has only during a step",
        actual=repr(tensor),
    )
    return error.at(tensor.op.name, tensor.op.type, tensor.op.source)


def _missing(what: str, near: Sequence[str], nodes: Mapping[str, NodeView], name: str) -> UnknownNameError:
    return UnknownNameError(
        f"no {what} in the graph{did_you_mean(near)}", expected=f"one of {len(nodes)} nodes", actual=name
    )
