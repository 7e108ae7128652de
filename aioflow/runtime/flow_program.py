"""The static part of tagged dataflow: nodes with their frames, readers and initial counts, prepared once per subgraph.

Work that is done here costs nothing in a step. Constants have their values. A node that only passes on its single
input (a loop's Merge, a LoopCond) is bypassed: its readers read its input instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aioflow.compiler.control_flow import LoopFrame, check_frames, is_back_edge, loop_variable, loops_of
from aioflow.compiler.ir import ClientGraph, Node
from aioflow.graph.traits import Role
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode

EMPTY: Final[Any] = object()  # marks a value that has not arrived


class After:
    """The followers of a node, which proceed when it has finished.

    Attributes:
        signals: Nodes that wait for it by a control edge.
        constants: Values of constants that wait for nothing else, each with its destination.
    """

    __slots__ = ("constants", "signals")

    def __init__(self) -> None:
        self.signals: list[FlowNode] = []
        self.constants: list[tuple[Port, Value]] = []

    def __bool__(self) -> bool:
        return bool(self.signals or self.constants)

    def add(self, other: After) -> None:
        """Add the followers of `other`."""
        self.signals += other.signals
        self.constants += other.constants


class Port:
    """The destination of an output, with the readers sorted by what else they wait for.

    Attributes:
        singles: Readers that wait for nothing else.
        pairs: (local, slot, node) of readers that wait for one more value.
        counted: (slot, node) of all other readers.
        after: The followers of the bypassed nodes.
        more: Whether `counted` or `after` has an entry.
    """

    __slots__ = ("after", "counted", "more", "pairs", "singles")

    def __init__(self) -> None:
        self.singles: list[FlowNode] = []
        self.pairs: list[tuple[int, int, FlowNode]] = []
        self.counted: list[tuple[int, FlowNode]] = []
        self.after = After()
        self.more = False

    def __bool__(self) -> bool:
        return bool(self.singles or self.pairs or self.more)

    def hand_on(self, node: FlowNode) -> None:
        """Bypass `node`, a reader of this output: add its readers and followers to this port."""
        for _, port in node.ports:
            self.singles += port.singles
            self.pairs += port.pairs
            self.counted += port.counted
            self.after.add(port.after)
        self.after.add(node.after)
        self.more = bool(self.counted or self.after)


@dataclass(slots=True, eq=False)
class FlowNode:
    """A node in the form that the propagator uses.

    Attributes:
        origin: The node of the graph.
        kind: Its role.
        bound: The node with its kernel, or None if the runtime interprets it.
        rule: The role as a plain index.
        local: Its position among the nodes of its frame that wait for more than one thing.
        arity: Number of input values that are kept for it.
        ports: The outputs that are read, by number.
        after: Its followers.
        is_followed: Whether it has followers.
        index: Index of a feed or fetch.
        value: Value of a constant.
        child: The frame that an Enter opens.
        is_constant: Whether it is a loop-invariant Enter.
        is_loop_merge: Whether it joins one Enter and one NextIteration, so that each iteration has one value.
        prefilled: For a loop-invariant Enter, the pairs that have its value from the start of every iteration, except
            iterations that are in progress when the value arrives.
        again: For a loop-invariant Enter, its other readers.
        first_inputs: Number of data inputs that reach a Merge in iteration 0.
        later_inputs: Number of data inputs that reach a Merge in later iterations.
        compute: Function from the inputs and the step to the outputs, set by the code that runs kernels.
        acts: Whether `compute` has effects.
        is_elastic: Whether its cost depends on data, so that earlier durations do not predict it.
    """

    origin: Node
    kind: Role
    bound: BoundNode | None
    rule: int
    local: int = -1
    arity: int = 0
    ports: tuple[tuple[int, Port], ...] = ()
    after: After = field(default_factory=After)
    is_followed: bool = False
    index: int = 0
    value: Value = None
    child: Frame | None = None
    is_constant: bool = False
    is_loop_merge: bool = False
    prefilled: tuple[int, ...] = ()
    again: Port | None = None
    first_inputs: int = 0
    later_inputs: int = 0
    compute: Callable[[Sequence[Value], Any], Sequence[Value]] | None = None
    acts: bool = False
    is_elastic: bool = False

    @property
    def is_single(self) -> bool:
        """True if it waits for one value and nothing else."""
        return len(self.origin.inputs) == 1 and not self.origin.control and self.kind is not Role.MERGE

    @property
    def is_pair(self) -> bool:
        """True if it waits for two values and nothing else."""
        return len(self.origin.inputs) == 2 and not self.origin.control and self.kind is not Role.MERGE


@dataclass(slots=True, eq=False)
class Frame:
    """A loop, or the graph around all loops.

    Attributes:
        number: Its number in the subgraph; 0 for the graph around all loops.
        name: The frame name of its Enter nodes.
        parent: The surrounding frame.
        parallel_iterations: The number of iterations that may run at once.
        enters: Number of Enter nodes that lead into it.
        pending: Initial count of each of its nodes with a `local`.
    """

    number: int
    name: str
    parent: Frame | None
    parallel_iterations: int = 1
    enters: int = 0
    pending: list[int] = field(default_factory=list)


class FlowProgram:
    """A subgraph, ready to be executed by `frames.Propagator`.

    Raises:
        InvalidArgumentError: as for `check_frames`.
    """

    index_type: Callable[[int], np.int32] = np.int32  # type of a Merge's second output

    def __init__(self, graph: ClientGraph, bound: Sequence[BoundNode]) -> None:
        check_frames(graph)
        kernels = {b.node.name: b for b in bound}
        self.nodes: dict[str, FlowNode] = {}
        for name, origin in graph.nodes.items():
            kind = origin.role
            self.nodes[name] = FlowNode(origin, kind, kernels.get(name), int(kind))
        self.root = Frame(0, "", None)
        self._frames: dict[LoopFrame | None, Frame] = {None: self.root}
        loop_of = loops_of(graph)
        for name, node in self.nodes.items():
            self._prepare(graph, node, self._frame(loop_of[name]))
        _Wiring(self.nodes).connect()
        self.sources = [n for n in self.nodes.values() if not any(n.origin.predecessors())]
        fetches = [n for n in self.nodes.values() if n.kind is Role.FETCH]
        self.fetches = sorted(fetches, key=lambda n: n.index)

    def _frame(self, loop: LoopFrame | None) -> Frame:
        frame = self._frames.get(loop)
        if frame is None and loop is not None:
            frame = Frame(len(self._frames), loop.name, self._frame(loop.parent), loop.parallel_iterations)
            self._frames[loop] = frame
        return frame or self.root

    def _prepare(self, graph: ClientGraph, node: FlowNode, frame: Frame) -> None:
        origin = node.origin
        node.arity = len(origin.inputs)
        node.index = origin.attrs["index"] if node.kind in (Role.FEED, Role.FETCH) else 0
        pending = len(origin.inputs) + len(origin.control)
        if node.kind is Role.ENTER:
            # `loops_of` assigns an Enter to the loop that it opens, but its inputs arrive in the surrounding frame.
            node.child, frame = frame, frame.parent or self.root
            node.child.enters += 1
            node.is_constant = origin.attrs["is_constant"]
        elif node.kind is Role.MERGE:
            back = sum(is_back_edge(origin, graph.nodes[edge.node]) for edge in origin.inputs)
            node.is_loop_merge = loop_variable(graph, origin) is not None and not origin.control
            node.first_inputs = len(origin.inputs) - back
            # Without a back edge it is the Merge of a branch, which gets all its inputs in every iteration.
            node.later_inputs = back or len(origin.inputs)
            # The count of a Merge; see `Propagator._check_merge`.
            pending = 1 + 2 * len(origin.control)
        elif node.kind is Role.CONSTANT and node.bound is not None:
            node.value = node.bound.call()
        # A node that waits for a single value is queued by its arrival and needs no count.
        if not node.is_single:
            node.local = len(frame.pending)
            frame.pending.append(pending)


class _Wiring:
    """The destinations of each node's outputs, determined from the edges of the graph."""

    def __init__(self, nodes: Mapping[str, FlowNode]) -> None:
        self._nodes = nodes
        self._readers: dict[str, dict[int, list[tuple[int, FlowNode]]]] = {name: {} for name in nodes}
        self._waiters: dict[str, list[FlowNode]] = {name: [] for name in nodes}
        for node in nodes.values():
            for slot, edge in enumerate(node.origin.inputs):
                self._readers[edge.node].setdefault(edge.port, []).append((slot, node))
            for name in node.origin.control:
                self._waiters[name].append(node)

    def connect(self) -> None:
        """Set `ports` and `after` of every node, and `prefilled` and `again` of loop-invariant Enters."""
        backwards = list(self._nodes.items())[::-1]  # readers come before their sources, except along a back edge
        # A bypassed Merge must have its ports before the NextIteration that leads to it. The sort is stable.
        backwards.sort(key=lambda item: item[1].kind is Role.NEXT)
        for name, node in backwards:
            self._follow(node.after, self._waiters[name])
            # Stored, because calling `After.__bool__` would cost time for every node of a step.
            node.is_followed = bool(node.after)
            read = sorted(self._readers[name].items())
            node.ports = tuple((number, self._port(readers)) for number, readers in read)
            if node.is_constant:
                self._split(node)

    def _port(self, readers: Iterable[tuple[int, FlowNode]]) -> Port:
        port = Port()
        for slot, node in readers:
            if self._is_left_out(node):
                port.hand_on(node)
            elif node.is_single:
                port.singles.append(node)
            elif node.is_pair:
                port.pairs.append((node.local, slot, node))
            else:
                port.counted.append((slot, node))
                port.more = True
        return port

    def _is_left_out(self, node: FlowNode) -> bool:
        if node.is_loop_merge:
            # The second output, an index, is not the value that the Merge passes on.
            return 1 not in self._readers[node.origin.name]
        return node.kind is Role.LOOP_CONDITION and node.is_single

    @staticmethod
    def _follow(after: After, waiters: Iterable[FlowNode]) -> None:
        for node in waiters:
            # Such a constant waits for this node alone, so its value is delivered without running the constant as a
            # node.
            if node.kind is Role.CONSTANT and len(node.origin.control) == 1:
                port = Port()
                port.hand_on(node)
                after.constants.append((port, node.value))
            else:
                after.signals.append(node)

    def _split(self, enter: FlowNode) -> None:
        again = Port()
        again.hand_on(enter)
        # A pair of two invariants would be complete from the start, so only pairs with one are prefilled.
        early = {local for local, _, node in again.pairs if self._invariants(node) == [enter]}
        again.pairs = [pair for pair in again.pairs if pair[0] not in early]
        enter.prefilled = tuple(sorted(early))
        enter.again = again

    def _invariants(self, node: FlowNode) -> list[FlowNode]:
        """Return the inputs of `node` that are loop-invariant Enters."""
        sources = (self._nodes[edge.node] for edge in node.origin.inputs)
        return [source for source in sources if source.is_constant]
