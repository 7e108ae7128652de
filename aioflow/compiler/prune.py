"""Stage 2: keep what the fetches and targets need, with feeds and fetches as nodes of their own (TensorFlow
whitepaper, 4.2).

A fed tensor is replaced by an `_Arg` node, so nothing upstream of it is needed on its account; the other outputs of
its node, and control edges from it, still need the node. A placeholder has nothing to do besides being fed, so control
edges from a fed placeholder go too.

This is where the graph is read, and so where calls of functions are seen through: an edge from an output of a call is
one from the tensor that the output stands for, and who waits for a call waits for what it expands to. A function that
is not called here, but by a kernel when it likes, is pruned by itself and goes along with its node (`Node.body`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aioflow.compiler.ir import BODY, ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.loops import check_frames
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.calls import waited_for
from aioflow.graph.graph import Operation, Tensor

__all__ = ["StepRequest", "prune"]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a step is asked for: tensors that are fed, tensors that are fetched, nodes that must run."""

    feeds: tuple[Tensor, ...]
    fetches: tuple[Tensor, ...]
    targets: tuple[Operation, ...] = ()


def prune(request: StepRequest) -> ClientGraph:
    """The nodes that the step needs, in topological order.

    Raises:
        InvalidArgumentError: a value is read outside of the loop in which it is, or inside of one in which it is not.
    """
    fed = {tensor: Edge(f"_arg_{i}", 0) for i, tensor in enumerate(request.feeds)}
    skipped = {t.op for t in request.feeds if t.op.type == "Placeholder"}
    fetched = [_source(t, fed) for t in request.fetches]
    roots = [t.op for t in fetched if t not in fed] + list(_waits(request.targets, skipped))
    nodes: dict[str, Node] = {}
    for i, tensor in enumerate(request.feeds):
        attrs = {"T": tensor.dtype, "index": i}
        spec = OutputSpec(tensor.dtype, tensor.dims)
        nodes[f"_arg_{i}"] = Node(
            f"_arg_{i}", ARG, attrs=attrs, outputs=(spec,), device=tensor.op.device, source=tensor.op.source
        )
    for op in needed_operations(roots, fed, skipped):
        nodes[op.name] = _node(op, fed, skipped)
    for i, tensor in enumerate(fetched):
        attrs = {"T": tensor.dtype, "index": i}
        edge = fed.get(tensor) or Edge(tensor.op.name, tensor.value_index)
        nodes[f"_retval_{i}"] = Node(f"_retval_{i}", RETVAL, (edge,), attrs=attrs, source=tensor.op.source)
    targets = dict.fromkeys(op.name for op in _waits(request.targets, skipped))
    graph = ClientGraph(nodes, len(request.feeds), len(request.fetches), tuple(targets))
    check_frames(graph)
    return graph


def needed_operations(
    roots: Sequence[Operation], fed: Mapping[Tensor, Edge], skipped: set[Operation]
) -> list[Operation]:
    """`roots` and all that they need, each after what it needs; only a loop's Merge comes before its NextIteration."""
    order: list[Operation] = []
    visited: set[Operation] = set()
    waiting = list(reversed(roots))
    while waiting:
        stack: list[tuple[Operation, bool]] = [(waiting.pop(), False)]
        while stack:
            op, ready = stack.pop()
            if ready:
                order.append(op)
                continue
            if op in visited:
                continue
            visited.add(op)
            stack.append((op, True))
            needed = [t.op for t in (_source(t, fed) for t in op.inputs) if t not in fed]
            if op.type == "Merge":
                waiting.extend(source for source in needed if source.type == "NextIteration")
                needed = [source for source in needed if source.type != "NextIteration"]
            needed += _waits(op.waits_for, skipped)
            stack.extend((source, False) for source in reversed(needed) if source not in visited)
    return order


def _source(tensor: Tensor, fed: Mapping[Tensor, Edge]) -> Tensor:
    """What is read where `tensor` is: of a call that is not fed, what it expands to."""
    while tensor.op.expansion is not None and tensor not in fed:
        tensor = tensor.op.expansion[tensor.value_index]
    return tensor


def _waits(operations: Iterable[Operation], skipped: set[Operation]) -> Iterator[Operation]:
    """The nodes that must have run before what waits for `operations`."""
    return (inner for op in operations if op not in skipped for inner in waited_for(op) if inner not in skipped)


def _node(op: Operation, fed: Mapping[Tensor, Edge], skipped: set[Operation]) -> Node:
    return Node(
        op.name,
        op.type,
        tuple(fed.get(t) or Edge(t.op.name, t.value_index) for t in (_source(t, fed) for t in op.inputs)),
        tuple(dict.fromkeys(c.name for c in _waits(op.waits_for, skipped))),
        _attrs(op),
        tuple(OutputSpec(t.dtype, t.dims) for t in op.outputs),
        op.device,
        op.source,
    )


def _attrs(op: Operation) -> Mapping[str, Any]:
    """The attributes; where one is a function, and the node is no call that is expanded, with its body."""
    named = [key for key, attr in op.op_def.attrs.items() if attr.kind == "func"]
    if not named or op.expansion is not None:
        return op.attrs
    function: Any = op.graph.functions[op.attrs[named[0]].name]
    inside = prune(StepRequest(tuple(function.inputs), tuple(function.outputs), tuple(function.effects)))
    return {**op.attrs, BODY: _within(op.name, inside)}


def _within(name: str, graph: ClientGraph) -> ClientGraph:
    """The graph of a body, whose nodes are called as if they were a copy in the place of the node of that name, and are
    where that is.
    """

    def moved(node: Node) -> Node:
        attrs = node.attrs if node.body is None else {**node.attrs, BODY: _within(name, node.body)}
        inputs = tuple(Edge(f"{name}/{edge.node}", edge.port) for edge in node.inputs)
        control = tuple(f"{name}/{source}" for source in node.control)
        return replace(node, name=f"{name}/{node.name}", inputs=inputs, control=control, attrs=attrs, device="")

    nodes = {f"{name}/{node.name}": moved(node) for node in graph.nodes.values()}
    return replace(graph, nodes=nodes, targets=tuple(f"{name}/{target}" for target in graph.targets))
