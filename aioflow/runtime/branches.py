"""Raising of branches: a graph without loops and with only sync branches is rewritten without Switch and Merge.

The result is nodes with predicates, ordered so that nodes with equal predicates are adjacent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from aioflow.compiler.control_flow import Guard
from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.kernels.registry import KernelDef
from aioflow.runtime.bind import Argument, BoundNode, Passing
from aioflow.runtime.guards import ALIVE, Guards, NotRaisableError
from aioflow.runtime.tasks import constant_values, waits_of


def raise_branches(graph: ClientGraph, bound: Sequence[BoundNode]) -> tuple[ClientGraph, list[BoundNode]]:
    """Return the graph without control flow and its bound nodes; unchanged if its branches cannot be raised."""
    found = {node.op for node in graph.nodes.values() if traits_of(node.op).is_control_flow}
    # Any other control-flow op belongs to a loop that was not raised, or ends deadness (ControlTrigger).
    if not found or found - {"Switch", "Merge"}:
        return graph, list(bound)
    try:
        guards = Guards(graph, tuple(graph.nodes))
        nodes = [*guards.rewired(bound), *guards.made()]
        fetches = list(_fetches(graph, guards, nodes))
    except NotRaisableError:
        return graph, list(bound)
    # A strand cannot await, and a Send must also send DEAD, so neither may be under an `if`.
    if any((b.kernel.is_async or b.kernel.sends) and b.guard for b in nodes):
        return graph, list(bound)
    position = {name: i for i, name in enumerate(graph.nodes)}
    nodes = scheduled(sorted(nodes, key=lambda b: position.get(b.node.name, len(position))))
    plain = [n for n in graph.nodes.values() if n.op == ARG]
    whole = {n.name: n for n in (*plain, *(b.node for b in nodes), *fetches)}
    return replace(graph, nodes=whole), nodes


def _fetches(graph: ClientGraph, guards: Guards, nodes: list[BoundNode]) -> Iterator[Node]:
    """Yield the fetches of the new graph.

    A value fetched from one side only gets an identity node on that side, which is appended to `nodes`.
    """
    # A constant has a value on every path, whatever its predicates. So a fetch of one on a side needs the identity
    # node.
    guarded = {b.node.name: b.guard for b in nodes if b.node.role is not Role.CONSTANT}
    for node in graph.nodes.values():
        if node.op != RETVAL:
            continue
        guard, edge = guards.of(node.inputs[0]), guards.value(node.inputs[0])
        if guard is None:
            raise NotRaisableError(node.name)  # the propagator raises the error for a fetch that is always dead
        if guard and guarded.get(edge.node, ()) != guard:
            alive = _alive(node, edge, graph, guard)
            nodes.append(alive)
            edge = Edge(alive.node.name, 0)
        yield replace(node, inputs=(edge,))


def _alive(fetch: Node, edge: Edge, graph: ClientGraph, guard: Guard) -> BoundNode:
    waits = tuple(dict.fromkeys(predicate.node for predicate, _ in guard))
    node = Node(f"{fetch.name}/alive", ALIVE, (edge,), waits, {}, (graph.spec(edge),), source=fetch.source)
    return Passing(node, _IDENTITY, _identity, (Argument((edge,), False, None),), guard)


def _identity(value: object) -> object:
    return value


_IDENTITY = KernelDef(ALIVE, lambda binding: _identity, expression="{0}")


def scheduled(bound: Sequence[BoundNode]) -> list[BoundNode]:
    """Return the nodes in a topological order that keeps nodes with equal predicates adjacent where it can."""
    waits = waits_of(bound, constant_values(bound))
    position = {b.node.name: i for i, b in enumerate(bound)}
    pending = [0] * len(bound)
    readers: list[list[int]] = [[] for _ in bound]
    for i, b in enumerate(bound):
        sources = [position[s] for s in waits[b.node.name] if s in position]
        pending[i] = len(sources)
        for source in sources:
            readers[source].append(i)
    ready: dict[Guard, list[int]] = {}
    for i, count in enumerate(pending):
        if not count:
            ready.setdefault(bound[i].guard, []).append(i)
    order: list[BoundNode] = []
    block: Guard = ()
    while ready:
        block = block if block in ready else _nearest(block, ready)
        index = heapq.heappop(ready[block])
        if not ready[block]:
            del ready[block]
        order.append(bound[index])
        for reader in readers[index]:
            pending[reader] -= 1
            if not pending[reader]:
                heapq.heappush(ready.setdefault(bound[reader].guard, []), reader)
    return order


def _nearest(block: Guard, ready: dict[Guard, list[int]]) -> Guard:
    """Return the predicates of the next block: the one that closes the fewest `if`s, preferably with an `else`."""
    best, rank = block, (-1, False, 0)
    for guard, indices in ready.items():
        depth = common_depth(block, guard)
        other = depth < min(len(block), len(guard)) and block[depth][0] == guard[depth][0]
        candidate = (depth, other, -indices[0])
        if candidate > rank:
            best, rank = guard, candidate
    return best


def common_depth(one: Guard, other: Guard) -> int:
    """Return the number of outer predicates that two guards share."""
    depth = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        depth += 1
    return depth
