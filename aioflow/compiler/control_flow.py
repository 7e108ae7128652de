"""Analysis of control flow in primitive form: the loop of each node, and the predicates under which it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.errors import InvalidArgumentError, OpError
from aioflow.graph.boundary import RETVAL
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect, Memory, Role

# ── loops ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False, slots=True)
class LoopFrame:
    """One loop.

    Attributes:
        name: The `frame_name` of its Enters.
        parent: The surrounding loop, or None.
        parallel_iterations: Number of iterations that may run at once.
        condition: The name of its LoopCond; "" if it has no LoopCond.
    """

    name: str
    parent: LoopFrame | None
    parallel_iterations: int
    condition: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the surrounding loops and of this one. No other loop of the graph has the same path."""
        return tuple(frame.name for frame in self._outward())[::-1]

    @property
    def outermost(self) -> LoopFrame:
        """The outermost of the surrounding loops, or this one."""
        *_, found = self._outward()
        return found

    def _outward(self) -> Iterator[LoopFrame]:
        frame: LoopFrame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent


class LoopVariableNodes(NamedTuple):
    """One variable of a loop, by the names of its nodes."""

    enter: str
    merge: str
    next: str


def frames_behind(graph: ClientGraph) -> dict[str, LoopFrame | None]:
    """Return for each node the loop in which its outputs are; None outside all loops."""
    known: dict[tuple[LoopFrame | None, str], LoopFrame] = {}
    behind: dict[str, LoopFrame | None] = {}
    for name, node in graph.nodes.items():
        inside = next((behind[s] for s in node.predecessors() if s in behind), None)
        role = node.role
        if role is Role.ENTER:
            # Loops inside different loops may have the same frame name.
            key = (inside, node.attrs["frame_name"])
            if key not in known:
                known[key] = LoopFrame(key[1], inside, node.attrs["parallel_iterations"])
            inside = known[key]
        elif role is Role.EXIT and inside is not None:
            inside = inside.parent
        elif role is Role.LOOP_CONDITION and inside is not None:
            inside.condition = name
        behind[name] = inside
    return behind


def loops_of(graph: ClientGraph) -> dict[str, LoopFrame | None]:
    """Return for each node the innermost loop that it belongs to. Both Enter and Exit belong to the loop inside."""
    behind = frames_behind(graph)
    return {n: behind[node.inputs[0].node] if node.role is Role.EXIT else behind[n] for n, node in graph.nodes.items()}


def loop_variable(graph: ClientGraph, merge: Node) -> LoopVariableNodes | None:
    """Return the loop variable whose values a Merge joins; None for a Merge of another form than `while_loop` makes."""
    sources = [graph.nodes[edge.node] for edge in merge.inputs]
    if [source.role for source in sources] != [Role.ENTER, Role.NEXT] or sources[0].attrs["is_constant"]:
        return None
    return LoopVariableNodes(sources[0].name, merge.name, sources[1].name)


def is_back_edge(node: Node, source: Node) -> bool:
    """Return whether the edge from `source` to `node` closes a loop: the only kind of edge that may point backwards."""
    return node.role is Role.MERGE and source.role is Role.NEXT


def check_frames(graph: ClientGraph) -> None:
    """Check that each value is read in the loop in which it is computed.

    The passes, the partition and the executors of loops rely on it.

    Raises:
        InvalidArgumentError: a node has inputs from different loops, an Exit is outside of loops, or a fetch is in one.
    """
    if not any(node.role in (Role.ENTER, Role.EXIT) for node in graph.nodes.values()):
        return
    behind = frames_behind(graph)
    for node in graph.nodes.values():
        sources = list(node.predecessors())
        frames = [behind[source] for source in sources]
        for source, frame in zip(sources, frames, strict=True):
            if frame is not frames[0]:
                what = f"node {node.name!r} has inputs from different frames: {source!r} is elsewhere"
                raise _misplaced(node, what, _shown(frames[0]), _shown(frame))
        if node.role is Role.EXIT and frames[0] is None:
            what = "invalid Exit op: cannot find a corresponding Enter op"
            raise _misplaced(node, what, "an Exit in a frame", "no frame")
        if node.op == RETVAL and frames[0] is not None:
            edge, fetched = node.inputs[0], graph.nodes[node.inputs[0].node]
            what = f"the tensor '{edge.node}:{edge.port}' cannot be fetched: it has a value in each iteration of a loop"
            raise _misplaced(fetched, what, "a tensor outside of loops", _shown(frames[0]))


def _misplaced(node: Node, what: str, expected: str, actual: str) -> OpError:
    return InvalidArgumentError(what, expected=expected, actual=actual).at(node.name, node.op, node.source)


def _shown(frame: LoopFrame | None) -> str:
    return "no frame" if frame is None else f"frame {frame.name!r}"


# ── branches ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# The predicates under which a node runs, outermost first, each with the side that it must take.
Guard: TypeAlias = tuple[tuple[Edge, bool], ...]

# Longer guards are not computed: the work would be quadratic in the depth. Generated code has an `if` for each
# predicate; Python's limit is 100 nested blocks, and a loop or a form of the strand needs some of them.
_DEEPEST: Final = 80
_LATER: Final[Guard] = ((Edge("", -1), True),)  # the guard of an input that comes along a back edge


class Alternative(NamedTuple):
    """The choice that a Merge makes.

    Attributes:
        predicate: The predicate that decides; None if only one input can be alive.
        positions: The input that is alive if the predicate is false, then that for true; or the only one.
    """

    predicate: Edge | None
    positions: tuple[int, ...]


class Predicates:
    """The predicates under which the nodes of a graph, or of one loop, run.

    A Switch adds a predicate. A node has the predicates of all its inputs and control inputs. A Merge drops the
    predicate in which its two inputs differ. A node behind a Merge of another form has, instead of predicates, an edge
    that no graph has and that stands for "this Merge is alive" (`is_known`). Equal guards are equal tuples.

    Within the whole graph, the Switches of a loop add no predicate: values of a loop are as alive as those that enter.

    Args:
        graph: The graph.
        members: For the nodes of one loop, their names in topological order. The default is all nodes.
        entering: For one loop, the members that are alive in every iteration: its Enters and the Merges of its
            variables. The Switches of the loop then add its predicate.

    Attributes:
        alternatives: The choices of the Merges that end a branch, by name. Merges that are never alive have none.
        irregular: Names of the Merges that end no branch, and of nodes under more predicates than are computed.
    """

    def __init__(
        self, graph: ClientGraph, members: Iterable[str] | None = None, entering: Collection[str] | None = None
    ) -> None:
        self._graph = graph
        self._in_loop = entering is not None
        self._guards: dict[str, Guard | None] = dict.fromkeys(entering or (), ())
        self._sides: dict[Edge, Guard | None] = {}
        self._ordered: dict[frozenset[tuple[Edge, bool]], Guard] = {}
        self.alternatives: dict[str, Alternative] = {}
        self.irregular: set[str] = set()
        for name in graph.nodes if members is None else members:
            if name not in self._guards:
                self._visit(graph.nodes[name])

    def of(self, edge: Edge) -> Guard | None:
        """Return the predicates of an output; None if it is never alive."""
        return self._sides[edge] if edge in self._sides else self._guards.get(edge.node, ())

    def at(self, name: str) -> Guard | None:
        """Return the predicates under which a node runs; None if it never does."""
        return self._guards[name]

    def is_known(self, name: str) -> bool:
        """Return whether predicates alone decide whether the node runs."""
        return all(edge.port >= 0 for edge, _ in self._guards[name] or ())

    def predicate(self, switch: Node) -> Edge:
        """Return the output that computes the predicate of a Switch, before the nodes that only pass it on."""
        # Switches on copies of one predicate must have equal guards. Some copies are inside branches.
        edge: Edge | None = switch.inputs[1]
        while edge is not None:
            found, edge = edge, self._before(edge)
        return found

    def under(self, guard: Guard | None, predicate: Edge, side: bool) -> Guard | None:
        """Return the guard with one more predicate; None if it has the other side of that predicate."""
        if guard is None or (predicate, not side) in guard:
            return None
        return guard if (predicate, side) in guard else self._canonical((*guard, (predicate, side)))

    def _before(self, edge: Edge) -> Edge | None:
        node = self._graph.nodes[edge.node]
        if node.name not in self._guards:  # outside of the loop
            return None
        if node.role is Role.SWITCH or (node.role is Role.LOOP_CONDITION and self._in_loop):
            return node.inputs[0]
        traits = traits_of(node.op)
        return node.inputs[edge.port] if traits.memory is Memory.PASSED and traits.effect is Effect.NONE else None

    def _visit(self, node: Node) -> None:
        """Determine the guard of a node from the nodes before it, ignoring back edges."""
        guards, role = self._guards, node.role
        if role is Role.MERGE:
            guards[node.name] = self._merge(node)
        elif role is Role.TRIGGER:  # it runs even if its inputs are dead
            guards[node.name] = ()
        else:
            around = [self.of(edge) for edge in node.inputs]
            if node.control:
                around += [guards.get(name, ()) for name in node.control]
            guards[node.name] = self._join(node, around)
            if role is Role.SWITCH:
                self._divide(node)

    def _divide(self, switch: Node) -> None:
        predicate = self.predicate(switch)
        if self._graph.nodes[predicate.node].role is Role.LOOP_CONDITION and not self._in_loop:
            return
        guard = self._guards[switch.name]
        for port in range(2):
            side = self.under(guard, predicate, bool(port))
            deep = side is not None and len(side) > _DEEPEST
            self._sides[Edge(switch.name, port)] = self._unknown(switch, port) if deep else side

    def _merge(self, node: Node) -> Guard | None:
        guards = [self.of(edge) if edge.node in self._guards else _LATER for edge in node.inputs]
        alive = [(i, guard) for i, guard in enumerate(guards) if guard is not None and guard is not _LATER]
        if not alive:
            return None
        (i, guard), is_loops = alive[0], _LATER in guards
        if len(alive) == 1:
            if not is_loops:
                self.alternatives[node.name] = Alternative(None, (i,))
            return guard
        if len(alive) == 2 and not is_loops:
            j, other = alive[1]
            split = _split(guard, other)
            if split is not None:
                predicate, side = split
                self.alternatives[node.name] = Alternative(predicate, (j, i) if side else (i, j))
                return self._canonical(tuple(atom for atom in guard if atom[0] != predicate))
        unknown = self._unknown(node)
        return guard if all(other is guard for _, other in alive) else unknown

    def _join(self, node: Node, guards: Sequence[Guard | None]) -> Guard | None:
        """Return the union of the guards of a node's inputs, or None if they contradict each other."""
        longest: Guard = ()
        for guard in guards:
            if guard is None:
                return None
            if len(guard) > len(longest):
                longest = guard
        # Equal guards are one object, so nearly all nodes end here.
        if all(guard is longest or not guard for guard in guards):
            return longest
        atoms = dict.fromkeys(longest)
        for guard in guards:
            atoms.update(dict.fromkeys(guard or ()))
        if any((predicate, not side) in atoms for predicate, side in atoms):
            return None
        return self._unknown(node) if len(atoms) > _DEEPEST else self._canonical(tuple(atoms))

    def _canonical(self, guard: Guard) -> Guard:
        """Return the same predicates in the order in which they were found first, so that blocks of code nest."""
        return self._ordered.setdefault(frozenset(guard), guard)

    def _unknown(self, node: Node, port: int = 0) -> Guard:
        self.irregular.add(node.name)
        return self._canonical(((Edge(node.name, -1 - port), True),))


def may_be_dead(graph: ClientGraph) -> frozenset[Edge]:
    """Return the outputs that may be dead in a step.

    Inside loops, only branches around the loop count.
    """
    predicates = Predicates(graph)
    outputs = (Edge(node.name, port) for node in graph.nodes.values() for port in range(max(1, len(node.outputs))))
    return frozenset(edge for edge in outputs if predicates.of(edge) != ())


def _split(one: Guard, other: Guard) -> tuple[Edge, bool] | None:
    """Return the predicate in which two guards differ, with the side of the first; None unless it is the only one."""
    first, second = set(one), set(other)
    if len(first - second) != 1 or len(second - first) != 1:
        return None
    ((predicate, side),) = first - second
    return (predicate, side) if (predicate, not side) in second else None


# ── topological order for graphs whose only back edges close loops ────────────────────────────────────────────────────


def in_order(nodes: Mapping[str, Node], followers: Mapping[str, Sequence[str]] | None = None) -> dict[str, Node]:
    """Return the nodes in topological order, as close as possible to the given order; back edges are ignored.

    Args:
        nodes: The nodes by name.
        followers: Maps a node to the nodes that come directly after it.
    """
    behind = followers or {}
    order: dict[str, Node] = {}
    visited: set[str] = set()
    for root in nodes:
        # A stack instead of recursion: graphs may be deeper than Python's recursion limit.
        stack = [(root, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                order[name] = nodes[name]
                # Pushed last, so that they come directly behind the node.
                stack.extend((s, False) for s in reversed(behind.get(name, ())) if s not in visited)
            elif name not in visited:
                visited.add(name)
                stack.append((name, True))
                node = nodes[name]
                sources = [s for s in node.predecessors() if not is_back_edge(node, nodes[s])]
                stack.extend((s, False) for s in reversed(sources) if s not in visited)
    return order
