"""Stage 2: prune the graph to the nodes that fetches and targets need (TensorFlow whitepaper, 4.2).

Feeds and fetches become nodes. A fed tensor is replaced by an `_Arg` node, so it needs nothing upstream; the other
outputs of its node, and control edges from it, still need the node. A placeholder does nothing but be fed, so control
edges from a fed placeholder are removed too.

This stage reads the user's graph, so it also resolves function calls: an edge from an output of a call becomes an edge
from the tensor that the output stands for, and a node that waits for a call waits for the nodes of its expansion. A
function that is called by a kernel instead is pruned by itself and attached to the kernel's node (`Node.body`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aioflow.compiler.control_flow import check_frames
from aioflow.compiler.ir import BODY, ClientGraph, Edge, Node, OutputSpec
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.calls import waited_for
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Role


@dataclass(frozen=True, slots=True)
class StepRequest:
    """The request for a step: tensors that are fed, tensors that are fetched, and nodes that must run."""

    feeds: tuple[Tensor, ...]
    fetches: tuple[Tensor, ...]
    targets: tuple[Operation, ...] = ()


def prune(request: StepRequest) -> ClientGraph:
    """Return the nodes that the step needs, in topological order.

    Raises:
        InvalidArgumentError: a value is read outside of the loop that contains it, or inside of a loop that does not.
    """
    fed = {tensor: Edge(f"_arg_{i}", 0) for i, tensor in enumerate(request.feeds)}
    skipped = {t.op for t in request.feeds if t.op.op_def.traits.must_be_fed}
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
    """Return `roots` and everything that they need, in topological order.

    The exception is a loop: its Merge comes before its NextIteration.
    """
    order: list[Operation] = []
    visited: set[Operation] = set()
    # NextIterations are deferred: they are reached again only after everything else that the roots need.
    waiting = list(reversed(roots))
    while waiting:
        stack: list[tuple[Operation, bool]] = [(waiting.pop(), False)]
        while stack:
            op, ready = stack.pop()
            # In postorder: everything that the operation needs is listed already.
            if ready:
                order.append(op)
                continue
            if op in visited:
                continue
            visited.add(op)
            stack.append((op, True))
            needed = [t.op for t in (_source(t, fed) for t in op.inputs) if t not in fed]
            if op.op_def.traits.role is Role.MERGE:
                waiting.extend(source for source in needed if source.op_def.traits.role is Role.NEXT)
                needed = [source for source in needed if source.op_def.traits.role is not Role.NEXT]
            needed += _waits(op.waits_for, skipped)
            stack.extend((source, False) for source in reversed(needed) if source not in visited)
    return order


def _source(tensor: Tensor, fed: Mapping[Tensor, Edge]) -> Tensor:
    """Return the tensor to read in place of `tensor`: for a call that is not fed, the one that it expands to."""
    while tensor.op.expansion is not None and tensor not in fed:
        tensor = tensor.op.expansion[tensor.value_index]
    return tensor


def _waits(operations: Iterable[Operation], skipped: set[Operation]) -> Iterator[Operation]:
    """Return the nodes that must run before a node that waits for `operations`."""
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


def _attrs(op: Operation) -> Attrs:
    """Return the attributes, with the function's body if the node refers to a function and is not an expanded call."""
    named = [key for key, attr in op.op_def.attrs.items() if attr.kind == "func"]
    if not named or op.expansion is not None:
        return op.attrs
    function: Any = op.graph.functions[op.attrs[named[0]].name]
    inside = prune(StepRequest(tuple(function.inputs), tuple(function.outputs), tuple(function.effects)))
    return {**op.attrs, BODY: _within(op.name, inside)}


def _within(name: str, graph: ClientGraph) -> ClientGraph:
    """Return the graph of a body, named as if its nodes were a copy in place of the node `name`, on its device."""

    def moved(node: Node) -> Node:
        # A device request inside of a body does not count: the body runs on the device of its node.
        attrs = node.attrs if node.body is None else {**node.attrs, BODY: _within(name, node.body)}
        inputs = tuple(Edge(f"{name}/{edge.node}", edge.port) for edge in node.inputs)
        control = tuple(f"{name}/{source}" for source in node.control)
        return replace(node, name=f"{name}/{node.name}", inputs=inputs, control=control, attrs=attrs, device="")

    nodes = {f"{name}/{node.name}": moved(node) for node in graph.nodes.values()}
    return replace(graph, nodes=nodes, targets=tuple(f"{name}/{target}" for target in graph.targets))
