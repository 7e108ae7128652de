"""The static side of tagged dataflow: nodes with their frames, edges and initial counts, worked out once for a
subgraph.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.errors import InvalidArgumentError
from aioflow.runtime.bind import BoundNode

__all__ = ["FlowNode", "Frame", "Kind", "Program"]


class Kind(enum.IntEnum):
    """What a node is to the propagator, which keeps its rules in a table in this order."""

    KERNEL = 0
    SWITCH = 1
    MERGE = 2
    ENTER = 3
    EXIT = 4
    NEXT = 5
    LOOP_CONDITION = 6
    TRIGGER = 7
    FETCH = 8
    FEED = 9


_KINDS: Final[Mapping[str, Kind]] = {
    "_Arg": Kind.FEED,
    "_Retval": Kind.FETCH,
    "Switch": Kind.SWITCH,
    "Merge": Kind.MERGE,
    "Enter": Kind.ENTER,
    "Exit": Kind.EXIT,
    "NextIteration": Kind.NEXT,
    "LoopCond": Kind.LOOP_CONDITION,
    "ControlTrigger": Kind.TRIGGER,
}


@dataclass(slots=True, eq=False)
class FlowNode:
    """A node as the propagator sees it.

    Attributes:
        local: Its position among the nodes of its frame.
        arity: How many input values are kept for it.
        data_edges: (output port, input slot, consumer); control_edges: consumers that wait for it.
        index: Of a feed or fetch. child: The frame that an Enter opens.
        first_inputs, later_inputs: Data inputs that a Merge gets in iteration 0 and in later ones.
    """

    origin: Node
    kind: Kind
    bound: BoundNode | None
    local: int = 0
    arity: int = 0
    index: int = 0
    data_edges: list[tuple[int, int, FlowNode]] = field(default_factory=list)
    control_edges: list[FlowNode] = field(default_factory=list)
    child: Frame | None = None
    is_constant: bool = False
    is_merge: bool = False
    computes: bool = False
    first_inputs: int = 0
    later_inputs: int = 0


@dataclass(slots=True, eq=False)
class Frame:
    """A loop, or the graph around all loops.

    Attributes:
        enters: How many Enter nodes lead into it.
        first_pending, later_pending: What each of its nodes waits for, in iteration 0 and in later ones.
    """

    number: int
    name: str
    parent: Frame | None
    parallel_iterations: int = 1
    enters: int = 0
    first_pending: list[int] = field(default_factory=list)
    later_pending: list[int] = field(default_factory=list)


class Program:
    """A subgraph, ready to be stepped through by `frames.Propagator`.

    Raises:
        InvalidArgumentError: a node has inputs from different frames, or an Exit is in none.
    """

    index_type: Callable[[int], Any] = np.int32  # of a Merge's second output

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode]) -> None:
        kernels = {b.node.name: b for b in bound}
        self.nodes = {
            n.name: FlowNode(n, _KINDS.get(n.op, Kind.KERNEL), kernels.get(n.name)) for n in graph.nodes.values()
        }
        self.root = Frame(0, "", None)
        self._frames: dict[tuple[int, str], Frame] = {}
        frame_of = self._assign_frames()
        for name, node in self.nodes.items():
            self._connect(node, frame_of[name])
        for node in self.nodes.values():
            self._check(node, frame_of)
        self.sources = [n for n in self.nodes.values() if not any(n.origin.predecessors())]
        fetches = [n for n in self.nodes.values() if n.kind is Kind.FETCH]
        self.fetches = sorted(fetches, key=lambda n: n.index)

    def _assign_frames(self) -> dict[str, Frame]:
        """The frame of each node: that of what it reads, one further in behind an Enter, further out behind an Exit."""
        inside: dict[str, Frame] = {}
        for name, node in self.nodes.items():
            sources = [s for s in node.origin.predecessors() if s in inside]
            inside[name] = self._behind(sources[0], inside) if sources else self.root
        return inside

    def _behind(self, source: str, inside: Mapping[str, Frame]) -> Frame:
        """The frame in which the outputs of a node are."""
        node, frame = self.nodes[source], inside[source]
        if node.kind is Kind.ENTER:
            return self._child(node, frame)
        if node.kind is Kind.EXIT:
            if frame.parent is None:
                raise InvalidArgumentError(
                    "invalid Exit op: cannot find a corresponding Enter op",
                    expected="an Exit in a frame",
                    actual="no frame",
                ).at(node.origin.name, node.origin.op, node.origin.source)
            return frame.parent
        return frame

    def _child(self, enter: FlowNode, parent: Frame) -> Frame:
        name = enter.origin.attrs["frame_name"]
        frame = self._frames.get((parent.number, name))
        if frame is None:
            frame = Frame(len(self._frames) + 1, name, parent, enter.origin.attrs["parallel_iterations"])
            self._frames[parent.number, name] = frame
        return frame

    def _connect(self, node: FlowNode, frame: Frame) -> None:
        origin = node.origin
        node.local = len(frame.first_pending)
        node.is_merge = node.kind is Kind.MERGE
        node.computes = node.kind is Kind.KERNEL
        node.arity = 2 if node.kind is Kind.MERGE else len(origin.inputs)
        node.index = origin.attrs["index"] if node.kind in (Kind.FEED, Kind.FETCH) else 0
        for slot, edge in enumerate(origin.inputs):
            self.nodes[edge.node].data_edges.append((edge.port, slot, node))
        for name in origin.control:
            self.nodes[name].control_edges.append(node)
        if node.kind is Kind.ENTER:
            node.child = self._child(node, frame)
            node.child.enters += 1
            node.is_constant = origin.attrs["is_constant"]
        if node.kind is Kind.MERGE:
            back = sum(self.nodes[e.node].kind is Kind.NEXT for e in origin.inputs)
            node.first_inputs = len(origin.inputs) - back
            node.later_inputs = back or len(origin.inputs)
            pending = 1 + 2 * len(origin.control)
        else:
            pending = len(origin.inputs) + len(origin.control)
        frame.first_pending.append(pending)
        frame.later_pending.append(pending)

    def _check(self, node: FlowNode, frame_of: Mapping[str, Frame]) -> None:
        mine = frame_of[node.origin.name]
        for source in node.origin.predecessors():
            frame = self._behind(source, frame_of)
            if frame is not mine:
                raise InvalidArgumentError(
                    f"node {node.origin.name!r} has inputs from different frames: {source!r} is elsewhere",
                    expected=f"frame {mine.name!r}",
                    actual=f"frame {frame.name!r}",
                ).at(node.origin.name, node.origin.op, node.origin.source)
