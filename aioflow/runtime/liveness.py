"""Buffer ownership inside a strand: where values die, which dying buffers results reuse, and which values are copied.

Every value has roots: the buffers that its memory may belong to. A kernel declared `fresh` makes a new root; any other
output may share memory with any input. Values from outside the strand (feeds, constants, variables) are foreign, and
values that a kernel keeps (as a variable's assignment does) have escaped. Neither may be written to, or fetched
without a copy.

Nodes may have predicates. They run in the order of the text, so the last read in the text is the last on every path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.graph.boundary import ARG, RECV
from aioflow.graph.shapes import num_elements
from aioflow.memory.collector import let_go
from aioflow.runtime.bind import BoundNode, Choice, RaisedLoop
from aioflow.runtime.tasks import Task

_SMALL: Final = 16 * 1024  # bytes: reusing a smaller buffer costs more than allocating one
_FOREIGN: Final = -1
_NONE: Final[frozenset[Edge]] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeLife:
    """The buffer operations at one node.

    Attributes:
        reuse: The dying input whose buffer the output takes over, or None.
        guarded: Whether `reuse` holds only if the shapes agree at run time.
        dies: Values to drop after the node, except those known to be small.
        copies: Inputs that the kernel would keep and that belong to the caller, so the kernel gets copies.
    """

    reuse: Edge | None
    guarded: bool
    dies: tuple[Edge, ...]
    copies: frozenset[Edge]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The lifetimes of a strand: one `NodeLife` per node, and the outputs without another holder."""

    nodes: tuple[NodeLife, ...]
    owned: frozenset[Edge]


def fed_values(graph: ClientGraph, bound: Sequence[BoundNode]) -> frozenset[Edge]:
    """Return the feeds of a step and the values that may share memory with them, across all its tasks.

    The caller may change these later. A received value may be a feed of the sender.
    """
    fed = {Edge(node.name, 0) for node in graph.nodes.values() if node.op in (ARG, RECV)}
    for b in bound:
        if not b.kernel.fresh and not fed.isdisjoint(b.node.inputs):
            fed.update(Edge(b.node.name, port) for port in range(len(b.node.outputs)))
    return frozenset(fed)


def analyse(
    task: Task, graph: ClientGraph, fed: frozenset[Edge], read_before: Mapping[Edge, int] | None = None
) -> Lifetimes:
    """Compute the lifetimes of a strand, given the `fed_values` of the step.

    Args:
        task: The strand.
        graph: The subgraph of the strand.
        fed: The `fed_values` of the step.
        read_before: Values that are also read between two nodes, each with the position of the second.
    """
    return _Analysis(task, graph, fed, read_before or {}).run()


def is_small(edge: Edge, graph: ClientGraph) -> bool:
    """Return whether a value need not be dropped early."""
    spec = graph.spec(edge)
    count = num_elements(spec.dims)
    # The memory behind Python objects is unknown, so a value of them is never small.
    return count is not None and count * spec.dtype.size < _SMALL and not spec.dtype.np_dtype.hasobject


class _Analysis:
    def __init__(self, task: Task, graph: ClientGraph, fed: frozenset[Edge], read_before: Mapping[Edge, int]) -> None:
        self.task = task
        self.graph = graph
        self.fed = fed
        self.roots: dict[Edge, frozenset[int]] = {e: frozenset((_FOREIGN,)) for e in task.inputs}
        self.whole: set[Edge] = set()  # values that fill each of their roots
        self.escaped: set[int] = {_FOREIGN}
        self.last_use = _last_uses(task)
        for edge, position in read_before.items():
            self.last_use[edge] = max(self.last_use.get(edge, -1.0), position - 0.5)
        self.root_end: dict[int, float] = {}  # the last node that reads a value sharing the root's memory
        self._births = 0
        self._holders: Counter[int] = Counter()  # for each root, the number of outputs that may be in it

    def run(self) -> Lifetimes:
        for bound in self.task.nodes:
            self._trace(bound)
        for edge, roots in self.roots.items():
            for root in roots:
                self.root_end[root] = max(self.root_end.get(root, -1.0), self.last_use.get(edge, -1.0))
        lives = tuple(self._life(i, b) for i, b in enumerate(self.task.nodes))
        self._holders = Counter(root for e in self.task.outputs for root in self.roots[e])
        owned = frozenset(e for e in self.task.outputs if self._is_owned(e))
        let_go(self.roots, self.last_use, self.root_end)
        return Lifetimes(lives, owned)

    def _trace(self, bound: BoundNode) -> None:
        # An axis or a shape reaches the kernel as Python numbers, which share memory with nothing.
        inputs = [e for a in bound.arguments if a.passes for e in a.sources]
        # An edge without roots is a constant.
        shared = frozenset(r for e in inputs for r in self.roots.get(e, (_FOREIGN,)))
        # A value without visible inputs may be a variable's.
        if not inputs:
            shared = frozenset((_FOREIGN,))
        # The receiver keeps a sent value.
        for edge in bound.node.inputs if bound.kernel.sends else bound.keeps:
            self.escaped |= self.roots.get(edge, frozenset())
        if isinstance(bound, RaisedLoop):
            shared |= {_FOREIGN}  # a node inside may keep an output of the loop, and two outputs may be the same value
        for port in range(len(bound.node.outputs)):
            edge = Edge(bound.node.name, port)
            if bound.kernel.fresh:
                self.roots[edge] = frozenset((self._births,))
                self.whole.add(edge)
                self._births += 1
            else:
                self.roots[edge] = shared
                if port == 0 and isinstance(bound, Choice) and self.whole.issuperset(inputs):
                    self.whole.add(edge)

    def _is_owned(self, edge: Edge) -> bool:
        roots = self.roots[edge]
        return not (roots & self.escaped) and all(self._holders[root] == 1 for root in roots)

    def _life(self, position: int, bound: BoundNode) -> NodeLife:
        dying = tuple(dict.fromkeys(e for e in bound.reads if e in self.roots and self.last_use[e] == position))
        # The second output of a choice is computed only if it is read.
        made = (Edge(bound.node.name, p) for p in range(1 if isinstance(bound, Choice) else len(bound.node.outputs)))
        unused = tuple(e for e in made if e not in self.last_use)
        reuse, guarded = self._reuse(position, bound, dying)
        drops = tuple(e for e in (*dying, *unused) if not is_small(e, self.graph))
        copies = frozenset(e for e in bound.keeps if e in self.fed) if bound.keeps else _NONE
        return NodeLife(reuse, guarded, drops, copies)

    def _reuse(self, position: int, bound: BoundNode, dying: tuple[Edge, ...]) -> tuple[Edge | None, bool]:
        if not bound.kernel.takes_out or len(bound.node.outputs) != 1:
            return None, False
        out = bound.node.outputs[0]
        if out.dims == () or is_small(Edge(bound.node.name, 0), self.graph):
            return None, False
        for edge in dying:
            if not self._may_overwrite(position, bound, edge):
                continue
            spec = self.graph.spec(edge)
            if spec.dtype is not out.dtype:
                continue
            if spec.dims == out.dims and num_elements(out.dims) is not None:
                return edge, False
            if spec.dims is None or out.dims is None or len(spec.dims) == len(out.dims):
                return edge, True
        return None, False

    def _may_overwrite(self, position: int, bound: BoundNode, edge: Edge) -> bool:
        roots = self.roots[edge]
        if edge not in self.whole or roots & self.escaped:
            return False
        # The kernel may read another input after it has written an element, so none may share the memory.
        others = [e for e in bound.node.inputs if e != edge and not roots.isdisjoint(self.roots.get(e, ()))]
        return all(self.root_end[root] <= position for root in roots) and not others


def _last_uses(task: Task) -> dict[Edge, float]:
    found: dict[Edge, float] = {edge: i for i, bound in enumerate(task.nodes) for edge in bound.reads}
    found.update(dict.fromkeys(task.outputs, len(task.nodes)))
    return found
