"""A topological order with a lower peak of live memory.

A strand runs its nodes in the graph's order, so the order decides when a value can be dropped.

Two heuristics are tried, and the better order is used if it beats the given one. The first is list scheduling: of the
nodes that are ready, run the one that frees most relative to what it allocates. The second goes from each result to its
inputs, the most demanding operand first (R. Sethi and J. D. Ullman, "The Generation of Optimal Code for Arithmetic
Expressions", J. ACM 17, 1970, with bytes in place of registers).

The estimate: a value lives from its node to its last reader; an elementwise node overwrites an operand that dies there;
constants, feeds and variables exist anyway. An unknown dimension is most often the batch, so an order must be no worse
for every size in `_BATCHES`. Values of unknown rank count as nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.facts import may_overwrite
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.graph import dtypes
from aioflow.graph.boundary import RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Memory

_BATCHES: Final = (32, 1, 1024)  # orders are optimized for the first


def order_memory(graph: ClientGraph, evaluate: Evaluate) -> ClientGraph:
    """Return the graph in an order with a lower estimated peak, or unchanged.

    Graphs with branches or loops stay unchanged: there the order does not determine what runs at the same time.
    """
    if any(traits_of(node.op).is_control_flow for node in graph.nodes.values()):
        return graph
    before = _before(graph)
    memory = _Memory(graph, _BATCHES)
    candidates = [_greedy(graph, before, memory), _depth_first(graph, before, memory)]
    found = min(candidates, key=memory.peak)
    gains = [memory.peak(graph.nodes, which) - memory.peak(found, which) for which in range(len(_BATCHES))]
    if min(gains) < 0 or max(gains) == 0:
        return graph
    return replace(graph, nodes={name: graph.nodes[name] for name in found})


def peak_bytes(graph: ClientGraph, batch: int) -> int:
    """Return the estimated peak of live memory in the graph's order, with `batch` for each unknown dimension."""
    return _Memory(graph, (batch,)).peak(graph.nodes)


# ── the estimate ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False, slots=True)
class _Buffer:
    """Memory that a node allocates, and the nodes that read it, directly or through nodes that pass it on.

    Attributes:
        sizes: Size in bytes, for each batch.
        readers: Names of the nodes that read it.
        kept: True if it is fetched, and so alive to the end.
    """

    sizes: tuple[int, ...]
    readers: set[str] = field(default_factory=set)
    kept: bool = False


class _Memory:
    """The buffers of a graph: the nodes that allocate them and the nodes that read them."""

    def __init__(self, graph: ClientGraph, batches: Sequence[int]) -> None:
        self.allocates: dict[str, list[_Buffer]] = {}
        self.reads: dict[str, list[_Buffer]] = {}
        self._overwriting = {name for name, node in graph.nodes.items() if may_overwrite(node.op)}
        buffer_of: dict[Edge, _Buffer] = {}
        for name, node in graph.nodes.items():
            # By identity: a node that reads a buffer twice is one reader.
            read = {id(b): b for edge in node.inputs if (b := buffer_of.get(edge)) is not None}
            self.reads[name] = list(read.values())
            self.allocates[name] = []
            for buffer in read.values():
                buffer.readers.add(name)
                buffer.kept |= node.op == RETVAL
            for port, edge in enumerate(_edges(node)):
                traits = traits_of(node.op)
                origin = traits.origin(port)
                if origin is not None and node.inputs[origin] in buffer_of:
                    # A value that is passed on lives in the buffer of its origin.
                    buffer_of[edge] = buffer_of[node.inputs[origin]]
                elif origin is None and not traits.is_resident:
                    buffer_of[edge] = _Buffer(_sizes(node, port, batches))
                    self.allocates[name].append(buffer_of[edge])

    def peak(self, order: Iterable[str], which: int = 0) -> int:
        """Return the most bytes that are alive at once, for batch number `which`."""
        state = _State(self, which)
        return max((state.run(name) for name in order), default=0)

    def leaves(self, node: Node) -> list[_Buffer]:
        """Return the buffers that a node keeps alive after it has run."""
        if traits_of(node.op).origin(0) is not None:
            return self.reads[node.name]
        return [buffer for buffer in self.allocates[node.name] if buffer.readers]

    def overwrites(self, name: str) -> bool:
        """Return whether the node's result may reuse the memory of an operand that dies there."""
        return name in self._overwriting


class _State:
    """The live memory after some of the nodes have run."""

    def __init__(self, memory: _Memory, which: int = 0) -> None:
        self._memory = memory
        self._which = which
        self._left = {id(b): len(b.readers) for made in memory.allocates.values() for b in made}
        self.alive = 0

    def left(self, buffer: _Buffer) -> int:
        """Return the number of a buffer's readers that have not run."""
        return self._left[id(buffer)]

    def change(self, name: str) -> tuple[int, int]:
        """Return the bytes that a node would add while it runs, and the net change after it has run."""
        which, left = self._which, self._left
        made = unread = freed = 0
        reuses = False
        for buffer in self._memory.allocates[name]:
            made += buffer.sizes[which]
            if not buffer.readers:
                unread += buffer.sizes[which]
        for buffer in self._memory.reads[name]:
            if left[id(buffer)] == 1 and not buffer.kept:
                freed += buffer.sizes[which]
                reuses |= buffer.sizes[which] == made
        # An elementwise result that replaces an operand of the same size needs no additional memory.
        while_running = 0 if reuses and self._memory.overwrites(name) else made
        return while_running, made - freed - unread

    def run(self, name: str) -> int:
        """Run a node, and return the bytes that are alive while it runs."""
        while_running, after = self.change(name)
        during = self.alive + while_running
        self.alive += after
        for buffer in self._memory.reads[name]:
            self._left[id(buffer)] -= 1
        return during


def _edges(node: Node) -> Iterator[Edge]:
    return (Edge(node.name, port) for port in range(len(node.outputs)))


def _sizes(node: Node, port: int, batches: Sequence[int]) -> tuple[int, ...]:
    dtype, dims = node.outputs[port]
    if dims is None:
        return (0,) * len(batches)
    known = math.prod(size for size in dims if size is not None) * dtype.size
    unknown = dims.count(None)
    return tuple(known * batch**unknown for batch in batches)


# ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _before(graph: ClientGraph) -> dict[str, list[str]]:
    """Return the nodes that must come before each node.

    These are its inputs, its control inputs and, for a node with effects, the previous node with effects on the same
    resource. Nodes whose effects are not on a resource keep their order among themselves.
    """
    last: dict[Edge | None, str] = {}
    handle: dict[Edge, Edge] = {}
    found: dict[str, list[str]] = {}
    for name, node in graph.nodes.items():
        waits = dict.fromkeys(node.predecessors())
        traits = traits_of(node.op)
        if traits.memory is Memory.PASSED:
            handle.update((edge, handle.get(read, read)) for edge, read in zip(_edges(node), node.inputs, strict=False))
        # The handle of a variable does not touch the value, so it needs no order.
        if traits.effect.is_stateful and not traits.is_variable:
            resources = [e for e in node.inputs if graph.spec(e).dtype is dtypes.resource]
            keys: Iterable[Edge | None] = {handle.get(e, e): None for e in resources}  # each once
            for key in keys or [None]:
                if key in last:
                    waits[last[key]] = None
                last[key] = name
        found[name] = list(waits)
    return found


def _greedy(graph: ClientGraph, before: Mapping[str, Sequence[str]], memory: _Memory) -> list[str]:
    """Return the order of list scheduling: run the ready node that leaves least alive, the earlier one on a tie."""
    position = {name: i for i, name in enumerate(graph.nodes)}
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for name, sources in before.items():
        for source in sources:
            after[source].append(name)
    missing = {name: len(sources) for name, sources in before.items()}
    state = _State(memory)
    ready = [(0, position[name], name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order: list[str] = []
    done: set[str] = set()
    while ready:
        cost, _, name = heapq.heappop(ready)
        if name in done:
            continue
        now = state.change(name)[1]
        # The entry is outdated: its cost was computed before other nodes ran. Queue it again with the current cost.
        if now > cost:
            heapq.heappush(ready, (now, position[name], name))
            continue
        state.run(name)
        done.add(name)
        order.append(name)
        unlocked = [reader for reader in after[name] if _one_less(missing, reader)]
        # A node becomes cheaper when it is the last reader of a buffer; push it again, since the heap cannot update
        # entries.
        last_readers = (r for b in memory.reads[name] if state.left(b) == 1 for r in b.readers if r not in done)
        for other in (*unlocked, *(r for r in last_readers if missing[r] == 0)):
            heapq.heappush(ready, (state.change(other)[1], position[other], other))
    return order


def _one_less(missing: dict[str, int], name: str) -> bool:
    missing[name] -= 1
    return missing[name] == 0


def _depth_first(graph: ClientGraph, before: Mapping[str, Sequence[str]], memory: _Memory) -> list[str]:
    """Return the order from results to inputs, first the operand that needs most beyond what it keeps alive."""
    demand: dict[str, int] = {}
    left = {name: sum(b.sizes[0] for b in memory.leaves(graph.nodes[name])) for name in graph.nodes}

    def first(name: str) -> int:
        return left[name] - demand[name]

    chosen: dict[str, list[str]] = {}
    for name, sources in before.items():
        chosen[name] = sorted(sources, key=first)
        held = most = 0
        for source in chosen[name]:
            most = max(most, held + demand[source])
            held += left[source]
        demand[name] = max(most, held + sum(b.sizes[0] for b in memory.allocates[name]))
    order: dict[str, None] = {}
    read = {source for sources in before.values() for source in sources}
    for root in sorted((name for name in graph.nodes if name not in read), key=first):
        # A stack instead of recursion: graphs may be deeper than Python's recursion limit.
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order[name] = None
            elif name not in order:
                stack.append((name, True))
                stack.extend((source, False) for source in reversed(chosen[name]) if source not in order)
    return list(order)
