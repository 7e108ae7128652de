"""Partition of a bound subgraph into tasks: strands that never await, and single async nodes between them.

A strand is the set of sync nodes with the same async ancestry, that is, with the same async nodes upstream. Ancestry
only grows along edges, so the quotient graph has no cycle, and a strand waits for exactly what all its nodes need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.graph.boundary import RETVAL
from aioflow.graph.traits import Role
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode


@dataclass(frozen=True, slots=True)
class Task:
    """A task: nodes that run together.

    Attributes:
        nodes: The nodes in topological order; exactly one if `is_async`.
        is_async: Whether the task is an async node.
        inputs: Values that come from feeds or from other tasks.
        outputs: Values that other tasks or the fetches read.
        needs: Indices of the tasks that must finish first.
    """

    nodes: tuple[BoundNode, ...]
    is_async: bool
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    needs: tuple[int, ...]


def constant_values(bound: Sequence[BoundNode]) -> dict[Edge, Value]:
    """Return the values of constant nodes, which belong to no task: the code of each reader contains them."""
    return {Edge(b.node.name, 0): b.call() for b in bound if b.node.role is Role.CONSTANT}


def split(graph: ClientGraph, bound: Sequence[BoundNode], constants: Mapping[Edge, Value]) -> list[Task]:
    """Return the tasks of a subgraph in topological order."""
    working = [b for b in bound if Edge(b.node.name, 0) not in constants]
    waits = waits_of(bound, constants)
    groups: dict[tuple[int, str], list[BoundNode]] = {}
    for node, key in zip(working, _task_keys(working, waits), strict=True):
        groups.setdefault(key, []).append(node)
    members = _ordered(list(groups.values()), waits)
    task_of = {b.node.name: i for i, nodes in enumerate(members) for b in nodes}
    fetched = {n.inputs[0] for n in graph.nodes.values() if n.op == RETVAL}
    read_by: dict[Edge, set[int]] = {}
    for b in working:
        for edge in b.reads:
            read_by.setdefault(edge, set()).add(task_of[b.node.name])
    return [_task(i, nodes, task_of, waits, read_by, fetched, constants) for i, nodes in enumerate(members)]


def waits_of(bound: Sequence[BoundNode], constants: Mapping[Edge, Value]) -> dict[str, tuple[str, ...]]:
    """Return the nodes that each node reads or waits for.

    A constant belongs to no task, so its readers wait for its control inputs. (In a block of control dependencies, a
    node that reads a constant of the block has no control edge itself.)
    """
    built_in = {edge.node for edge in constants}
    waits: dict[str, tuple[str, ...]] = {}
    for b in bound:
        found: dict[str, None] = {}
        for source in b.node.predecessors():
            found.update(dict.fromkeys(waits[source] if source in built_in else (source,)))
        waits[b.node.name] = tuple(found)
    return waits


def _task_keys(bound: Sequence[BoundNode], waits: Mapping[str, tuple[str, ...]]) -> list[tuple[int, str]]:
    """Return the key of each node's task: the ancestry as a bit mask, and the node's name if it is async."""
    masks: dict[str, int] = {}
    keys: list[tuple[int, str]] = []
    bit = 1
    for b in bound:
        mask = 0
        for source in waits[b.node.name]:
            mask |= masks.get(source, 0)
        if b.kernel.is_async:
            keys.append((mask, b.node.name))
            # Each async node has a bit of its own, which is in the ancestry of its followers but not in its own.
            masks[b.node.name] = mask | bit
            bit <<= 1
        else:
            keys.append((mask, ""))
            masks[b.node.name] = mask
    return keys


def _ordered(groups: list[list[BoundNode]], waits: Mapping[str, tuple[str, ...]]) -> list[list[BoundNode]]:
    """Return the groups in topological order."""
    # The order of first appearance would not do, since a strand may gain nodes that need later groups.
    home = {b.node.name: i for i, nodes in enumerate(groups) for b in nodes}
    order: list[int] = []
    done: set[int] = set()
    stack = [(i, False) for i in reversed(range(len(groups)))]
    while stack:
        index, ready = stack.pop()
        if ready:
            order.append(index)
        elif index not in done:
            done.add(index)
            stack.append((index, True))
            sources = {home[s] for b in groups[index] for s in waits[b.node.name] if s in home}
            stack.extend((s, False) for s in sorted(sources - {index}) if s not in done)
    return [groups[i] for i in order]


def _task(
    index: int,
    nodes: list[BoundNode],
    task_of: Mapping[str, int],
    waits: Mapping[str, tuple[str, ...]],
    read_by: Mapping[Edge, set[int]],
    fetched: set[Edge],
    constants: Mapping[Edge, Value],
) -> Task:
    own = {b.node.name for b in nodes}
    inputs = [e for b in nodes for e in b.reads if e.node not in own and e not in constants]
    produced = [Edge(b.node.name, port) for b in nodes for port in range(len(b.node.outputs))]
    outputs = [e for e in produced if e in fetched or read_by.get(e, set()) - {index}]
    needs = {task_of[s] for b in nodes for s in waits[b.node.name] if s in task_of} - {index}
    return Task(
        tuple(nodes), nodes[0].kernel.is_async, tuple(dict.fromkeys(inputs)), tuple(outputs), tuple(sorted(needs))
    )
