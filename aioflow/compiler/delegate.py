"""Delegation of parts of a step to another engine: the choice of regions, and the nodes that replace them.

A region is a set of nodes of one device with no other node on a path between them, so that it can be computed at once.
Two numbers of each node determine its region: the set of waiting nodes before it, and its *level*. A level ends at each
node that the engine does not compute, so no path leaves a level and returns. Neither number decreases along an edge.
So the nodes on a path between two nodes of equal numbers also have these numbers, and no cycle results. In branches,
a region contains only nodes that run in the same steps. A path from one branch to another contains a node that the
engine does not compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from aioflow.compiler.control_flow import Guard, LoopFrame, Predicates, frames_behind
from aioflow.compiler.ir import BODY, ClientGraph, Edge, Node, OutputSpec
from aioflow.compiler.optimize.facts import is_pure_op
from aioflow.compiler.pack import waits_for_others
from aioflow.compiler.sizes import by_values
from aioflow.compiler.timeline import NodeSeconds
from aioflow.graph.boundary import ARG, BOUNDARY, RECV, RETVAL, SEND
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Effect, Role
from aioflow.kernels.registry import HOST
from aioflow.memory.collector import let_go
from aioflow.memory.values import Array
from aioflow.ops.delegated import DELEGATED, ONNX_NODE

_NOT_COMPUTED: Final = (Role.FEED, Role.FETCH, Role.CONSTANT)


class Delegate(Protocol):
    """Another engine.

    Attributes:
        name: The name by which `SessionConfig.delegate` chooses it, with its options.
        call_seconds: Fixed cost of a call.
    """

    name: str
    call_seconds: float

    def refused(self, graph: ClientGraph) -> Mapping[str, str]:
        """Return the nodes that the engine does not compute, each with a short reason."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that are delegated together.

    Attributes:
        members: Their names, in topological order.
        seconds: Their expected duration without the engine.
    """

    members: tuple[str, ...]
    seconds: float


class Staying(NamedTuple):
    """A node that kernels compute."""

    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Delegation:
    """The nodes of a step that an engine computes, and those that stay.

    Attributes:
        engine: The name of the engine, or None without one.
        parts: The names of the nodes of each part.
        stays: The other nodes that compute something.
    """

    engine: str | None
    parts: tuple[tuple[str, ...], ...]
    stays: Mapping[str, Staying]


class _Place(NamedTuple):
    """The position of a node, which determines its region.

    Attributes:
        waits: Bit mask of the waiting nodes that come before the node, including the node itself.
        level: The level; see the module's docstring.
    """

    waits: int
    level: int


def delegated(device: str, graph: ClientGraph, delegate: Delegate, seconds: NodeSeconds) -> ClientGraph:
    """Return the graph of a device in which one node replaces each region.

    Args:
        device: The device.
        graph: Its graph.
        delegate: The engine.
        seconds: Returns the expected duration of a node without the engine.
    """
    found, _ = regions(device, graph, delegate, seconds)
    if not found:
        return graph
    before = list(graph.nodes.values())
    made = _Cutting(graph, found, delegate.name).graph()
    let_go(before)
    return made


def regions(
    device: str, graph: ClientGraph, delegate: Delegate, seconds: NodeSeconds
) -> tuple[list[Region], Mapping[str, str]]:
    """Return the regions of a device's graph, and the reasons for which its other computing nodes stay."""
    read = {edge.node for node in graph.nodes.values() for edge in node.inputs}
    computing = (name for name, node in graph.nodes.items() if node.op not in BOUNDARY)
    staying = {name: "its outputs are not used" for name in computing if name not in read}
    staying |= dict.fromkeys(by_values(graph), "its output size depends on values") | stays(graph)
    waiting = {name for name, node in graph.nodes.items() if waits_for_others(node, _kind(device))}
    taken: dict[tuple[str, ...], bool] = {}  # regions, with whether the engine computes all of their nodes
    readers: dict[Edge, list[str]] = defaultdict(list)
    for name, node in graph.nodes.items():
        for edge in node.inputs:
            readers[edge].append(name)
    # Each refusal splits regions, so repeat until the engine accepts all that are left.
    while True:
        # A region that was refused in part, or is too short, comes back in smaller pieces or not at all.
        found = _together(graph, staying, waiting, seconds)
        for region in found:
            if region.seconds <= delegate.call_seconds:
                staying |= dict.fromkeys(region.members, "an engine call would take longer")
            elif region.members not in taken:
                refused = _refused(graph, region, delegate, readers)
                staying |= refused
                taken[region.members] = not refused
        if all(taken.get(region.members) for region in found):
            return found, staying


def _refused(
    graph: ClientGraph, region: Region, delegate: Delegate, readers: Mapping[Edge, Collection[str]]
) -> Mapping[str, str]:
    """Return the members of a region that the engine does not compute, each with the reason."""
    alone = _alone(graph, region.members, readers)
    refused = delegate.refused(alone)
    inside = set(region.members)
    found: dict[str, str] = {}
    for name in region.members:
        # The engine may also refuse an argument or a constant of the region; then the nodes that read it stay.
        given = (source for source in alone.nodes[name].predecessors() if source not in inside)
        why = next((refused[each] for each in (name, *given) if each in refused), None)
        if why is not None:
            found[name] = why
    return found


def _together(
    graph: ClientGraph, staying: Mapping[str, str], waiting: Collection[str], seconds: NodeSeconds
) -> list[Region]:
    """Return the regions that result if the engine computes all nodes except `staying`."""
    members: dict[tuple[_Place, Guard | None], list[str]] = defaultdict(list)
    places, predicates = _places(graph, staying, waiting), Predicates(graph)
    for name, node in graph.nodes.items():
        # Constants belong to no region: each region gets a copy of those that it reads.
        if name not in staying and node.role not in _NOT_COMPUTED:
            members[places[name], predicates.at(name)].append(name)
    return [Region(tuple(names), sum(seconds(graph.nodes[name]) for name in names)) for names in members.values()]


def stays(graph: ClientGraph) -> dict[str, str]:
    """Return the nodes that are in no region whatever the engine computes and whatever their sizes, with the reasons.

    Empty for the graph of a region, so a worker can validate a region that a client has sent.
    """
    conditional = _conditional(graph)
    reasons = {
        name: conditional[name]
        if name in conditional and not traits_of(node.op).is_control_flow
        else _reason(graph, node)
        for name, node in graph.nodes.items()
        if node.op not in BOUNDARY
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _conditional(graph: ClientGraph) -> dict[str, str]:
    """Return the nodes that may run more than once in a step, and those in unusual branches, each with the reason."""
    frames, predicates = frames_behind(graph), Predicates(graph)
    received: set[str] = set()  # nodes that depend on possibly dead values of other devices
    for name, node in graph.nodes.items():
        is_received = node.op == RECV and node.attrs["maybe_dead"]
        if is_received or not received.isdisjoint(node.predecessors()):
            received.add(name)
    unknown = dict.fromkeys(
        (n for n in graph.nodes if n in received or not predicates.is_known(n)), "in a branch that cond did not build"
    )
    return unknown | {name: "in a loop" for name in graph.nodes if frames[name] is not None}


def _reason(graph: ClientGraph, node: Node) -> str:
    """Return the reason why a node must stay because of its op or dtypes, or "" if the engine decides."""
    if node.op in (SEND, RECV):
        return "a transfer between devices"
    if traits_of(node.op).is_control_flow:
        return "control flow"
    if node.op == ONNX_NODE:
        return "it already runs in an engine"
    traits = traits_of(node.op)
    if traits.effect is Effect.READS and traits.is_resident:
        return "a variable; its value is passed to the engine"
    if traits.effect is Effect.FAILS:
        return "a check, which must fail in place"
    if not is_pure_op(node.op):
        return "side effects or state"
    if node.body is not None or not node.outputs or (node.role is Role.CONSTANT and node.control):
        return "not a plain computation"
    specs = (*node.outputs, *(graph.spec(edge) for edge in node.inputs))
    if any(not spec.dtype.is_numpy_compatible or spec.dtype.np_dtype.hasobject for spec in specs):
        return "non-numeric values"
    return ""


def _kind(device: str) -> str:
    return DeviceSpec.from_string(device).device_type or HOST


def _places(graph: ClientGraph, staying: Mapping[str, str], waiting: Collection[str]) -> dict[str, _Place]:
    """Return the place of each node. All nodes of a loop have the same one, after the last of the loop's inputs.

    Args:
        graph: The graph.
        staying: The nodes that the engine does not compute.
        waiting: The nodes that wait for others.
    """
    bits = {name: 1 << number for number, name in enumerate(name for name in graph.nodes if name in waiting)}
    loops = {name: frame and frame.outermost for name, frame in frames_behind(graph).items()}
    of_loops: dict[LoopFrame, _Place] = defaultdict(lambda: _Place(0, 0))
    found: dict[str, _Place] = {}
    before: dict[str, _Place] | None = None
    while found != before:  # until the back edges of loops have no further effect
        before = dict(found)
        for name, node in graph.nodes.items():
            is_ours, loop = name in staying or node.op in BOUNDARY, loops[name]
            waits, level = (bits.get(name, 0), 0) if loop is None else of_loops[loop]
            for source in node.predecessors():
                other = found.get(source, _Place(0, 0))
                # An edge from a node of the engine to one that stays ends a level.
                leaves = is_ours and source not in staying and graph.nodes[source].role not in _NOT_COMPUTED
                waits, level = waits | other.waits, max(level, other.level + leaves)
            found[name] = _Place(waits, level)
            if loop is not None:
                of_loops[loop] = _Place(waits | bits.get(name, 0), level)
    return found


def _alone(graph: ClientGraph, members: Sequence[str], readers: Mapping[Edge, Collection[str]]) -> ClientGraph:
    """Return a region as a separate step, whose fetches are the values that other nodes read."""
    inside = set(members)
    made = (Edge(name, port) for name in members for port in range(len(graph.nodes[name].outputs)))
    read = [edge for edge in made if not inside.issuperset(readers.get(edge, ()))]
    # A step needs a fetch even if other nodes only wait for the region.
    return _body(graph, members, read or [Edge(members[-1], 0)])


def _edges(graph: ClientGraph, names: Iterable[str]) -> Iterator[Edge]:
    return (edge for name in names for edge in graph.nodes[name].inputs)


def _inputs(graph: ClientGraph, members: Sequence[str]) -> list[Edge]:
    """Return the values that a region reads from outside, except constants, which are copied into it."""
    inside = set(members)
    read = dict.fromkeys(_edges(graph, members))
    return [edge for edge in read if edge.node not in inside and graph.nodes[edge.node].role is not Role.CONSTANT]


def _body(graph: ClientGraph, members: Sequence[str], outputs: Sequence[Edge]) -> ClientGraph:
    """Return a region, with the constants that it reads, as a separate step with these fetches."""
    fed: dict[Edge, Edge] = {}
    nodes: dict[str, Node] = {}
    for index, edge in enumerate(_inputs(graph, members)):
        spec = graph.spec(edge)
        name = f"_arg_{index}"
        nodes[name] = Node(name, ARG, attrs={"T": spec.dtype, "index": index}, outputs=(spec,))
        fed[edge] = Edge(name, 0)
    constants = {edge.node for edge in _edges(graph, members) if graph.nodes[edge.node].role is Role.CONSTANT}
    for name in (*(name for name in graph.nodes if name in constants), *members):
        node = graph.nodes[name]
        nodes[name] = replace(node, inputs=tuple(fed.get(edge, edge) for edge in node.inputs), control=())
    for index, edge in enumerate(outputs):
        name = f"_retval_{index}"
        nodes[name] = Node(name, RETVAL, (edge,), attrs={"T": graph.spec(edge).dtype, "index": index})
    return ClientGraph(nodes, len(fed), len(outputs))


class _Cutting:
    """Replacement of the regions of a graph."""

    def __init__(self, graph: ClientGraph, found: Sequence[Region], delegate: str) -> None:
        self._graph = graph
        self._delegate = delegate
        self._variables, self._unchanged = _variables(graph)
        self._read: dict[str, dict[Edge, None]] = defaultdict(dict)  # by node, the outputs read outside of its region
        self._region: dict[str, Region] = {name: region for region in found for name in region.members}
        for node in graph.nodes.values():
            for edge in node.inputs:
                source = self._region.get(edge.node)
                if source is not None and self._region.get(node.name) is not source:
                    self._read[edge.node][edge] = None
        self._moved: dict[Edge, Edge] = {}
        self._stands: dict[str, str] = {}  # for each member, the node that replaces its region
        self._made: dict[int, Node] = {}
        for region in found:
            self._replace(region)

    def _replace(self, region: Region) -> None:
        graph = self._graph
        inputs = _inputs(graph, region.members)
        outputs = [edge for name in region.members for edge in sorted(self._read[name])]
        if not outputs:  # no value is read; other nodes only wait for the region
            outputs = [Edge(region.members[-1], 0)]
        last, inside = graph.nodes[outputs[-1].node], set(region.members)
        constants = {
            edge.node for edge in _edges(graph, region.members) if graph.nodes[edge.node].role is Role.CONSTANT
        }
        # `_body` drops control inputs, so the new node waits instead, also for those of the copied constants.
        waiting = (*region.members, *(name for name in graph.nodes if name in constants))
        waits = dict.fromkeys(c for name in waiting for c in graph.nodes[name].control if c not in inside)
        attrs: dict[str, object] = {
            "Tin": tuple(graph.spec(edge).dtype for edge in inputs),
            "Tout": tuple(graph.spec(edge).dtype for edge in outputs),
            "delegate": self._delegate,
            "seconds": region.seconds,
            "variables": tuple(self._variables.get(edge.node, "") for edge in inputs),
            "still": tuple(index for index, edge in enumerate(inputs) if edge.node in self._unchanged),
            BODY: _body(graph, region.members, outputs),
        }
        specs: tuple[OutputSpec, ...] = tuple(graph.spec(edge) for edge in outputs)
        node = Node(last.name, DELEGATED, tuple(inputs), tuple(waits), attrs, specs, last.device, last.source)
        self._made[id(region)] = node
        self._moved.update((edge, Edge(node.name, port)) for port, edge in enumerate(outputs))
        self._stands.update(dict.fromkeys(region.members, node.name))

    def graph(self) -> ClientGraph:
        """Return the graph after the replacement."""
        nodes: dict[str, Node] = {}
        for name, node in self._graph.nodes.items():
            region = self._region.get(name)
            # Every member yields the node of its region. The dictionary keeps it at the place of the first.
            made = self._renamed(node if region is None else self._made[id(region)])
            nodes[made.name] = made
        targets = tuple(dict.fromkeys(self._stands.get(name, name) for name in self._graph.targets))
        read = {source for node in nodes.values() for source in node.predecessors()}.union(targets)
        # Constants that only regions read were copied into them.
        kept = {name: node for name, node in nodes.items() if node.role is not Role.CONSTANT or name in read}
        # A region's node stands at the place of the first member, possibly before inputs of later members.
        return replace(self._graph, nodes=_ordered(kept), targets=targets)

    def _renamed(self, node: Node) -> Node:
        inputs = tuple(self._moved.get(edge, edge) for edge in node.inputs)
        control = tuple(dict.fromkeys(self._stands.get(name, name) for name in node.control))
        return (
            node if (inputs, control) == (node.inputs, node.control) else replace(node, inputs=inputs, control=control)
        )


def _variables(graph: ClientGraph) -> tuple[Mapping[str, str], set[str]]:
    """Return the nodes that read variables, each with the variable's name, and those whose variables stay unchanged.

    A variable is unchanged if no node of this graph changes it.
    """
    changed = {e.node for n in graph.nodes.values() if traits_of(n.op).effect is Effect.CHANGES for e in n.inputs}
    names: dict[str, str] = {}
    for name, node in graph.nodes.items():
        traits = traits_of(node.op)
        if traits.effect is Effect.READS and traits.is_resident:
            handle = graph.nodes[node.inputs[0].node]
            names[name] = f"{handle.attrs.get('container', '')}/{handle.attrs.get('shared_name') or handle.name}"
    return names, {name for name in names if graph.nodes[name].inputs[0].node not in changed}


def with_constants(graph: ClientGraph, values: Mapping[int, Array]) -> ClientGraph:
    """Return a region with constants for some of its inputs.

    Args:
        graph: The region.
        values: The values by the index of the input.
    """
    nodes = dict(graph.nodes)
    for name, node in graph.nodes.items():
        if node.op == ARG and (value := values.get(node.attrs["index"])) is not None:
            spec = OutputSpec(node.outputs[0].dtype, value.shape)
            nodes[name] = replace(node, op="Const", attrs={"dtype": spec.dtype, "value": value}, outputs=(spec,))
    return replace(graph, nodes=nodes)


def _ordered(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Return the nodes in topological order, ignoring back edges of loops, otherwise in their given order."""
    found: dict[str, Node] = {}
    for first in nodes:
        waiting = [first]
        while waiting:
            node = nodes[waiting[-1]]
            # A node stays on the stack until all its inputs have been placed.
            missing = [n for n in node.predecessors() if n not in found and nodes[n].role is not Role.NEXT]
            waiting += reversed(missing)
            if not missing:
                found.setdefault(node.name, node)
                waiting.pop()
    return found
