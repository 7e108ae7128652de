"""The compiler's intermediate representation: immutable nodes in topological order, plain data that can be serialized.

Feeds are `_Arg` nodes and fetches are `_Retval` nodes, each with its index, so that a subgraph is self-contained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aioflow.errors import SourceLine
from aioflow.graph.boundary import ARG, GIVES_BACK, RETVAL, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import Effect, Role

BODY: Final = "_body"  # the attribute that holds the function that a node calls
_MANY: Final = 32  # nodes; each takes about 0.2 ms


class Edge(NamedTuple):
    """Output `port` of the node of that name."""

    node: str
    port: int


class OutputSpec(NamedTuple):
    """The static properties of one output."""

    dtype: DType
    dims: Dims


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its op, its inputs, its control inputs, and the source line that made it."""

    name: str
    op: str
    inputs: tuple[Edge, ...] = ()
    control: tuple[str, ...] = ()
    attrs: Attrs = field(default_factory=dict)
    outputs: tuple[OutputSpec, ...] = ()
    device: str = ""
    source: SourceLine | None = None

    @property
    def body(self) -> ClientGraph | None:
        """The function that the kernel calls, each call as a separate step; None for nearly every node.

        Its feeds are the node's inputs, its fetches the node's outputs.
        """
        found = self.attrs.get(BODY)
        return found if isinstance(found, ClientGraph) else None

    @property
    def role(self) -> Role:
        """The role of the op in the runtime."""
        return traits_of(self.op).role

    @property
    def changes(self) -> bool:
        """True if the node changes state that other steps see, either itself or by the function that it calls."""
        body = self.body if BODY in self.attrs else None
        if body is not None:
            return body.changes
        traits = traits_of(self.op)
        return traits.effect is Effect.CHANGES and traits.role is Role.KERNEL

    def predecessors(self) -> Iterator[str]:
        """Yield the names of the nodes that must finish first; a name may occur twice."""
        for edge in self.inputs:
            yield edge.node
        yield from self.control


@dataclass(frozen=True, slots=True)
class ClientGraph:
    """The part of a graph that one kind of step needs.

    Attributes:
        nodes: The nodes by name, in topological order.
        feeds: Number of `_Arg` nodes in the whole step.
        fetches: Number of `_Retval` nodes in the whole step.
        targets: Nodes that must run besides those that the fetches need. A pass that drops or merges nodes keeps
            exactly the nodes that the `_Retval` nodes and the targets need.
    """

    nodes: Mapping[str, Node]
    feeds: int
    fetches: int
    targets: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of nodes, including those of bodies."""
        bodies = [node.body for node in self.nodes.values() if BODY in node.attrs]  # nearly no node has a body
        return len(self.nodes) + sum(body.size for body in bodies if body is not None)

    @property
    def changes(self) -> bool:
        """True if any node changes state that other steps see."""
        return any(node.changes for node in self.nodes.values())

    def spec(self, edge: Edge) -> OutputSpec:
        """Return dtype and static shape of an output."""
        return self.nodes[edge.node].outputs[edge.port]

    def read_outputs(self) -> dict[str, list[OutputSpec]]:
        """Return for each node its outputs that are read, each once."""
        found: dict[str, list[OutputSpec]] = {name: [] for name in self.nodes}
        for edge in dict.fromkeys(edge for node in self.nodes.values() for edge in node.inputs):
            found[edge.node].append(self.spec(edge))
        return found

    def consumers(self) -> dict[str, list[Node]]:
        """Return for each node the nodes that read it or wait for it, in order, each once."""
        found: dict[str, list[Node]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            # Each once, in a reproducible order.
            for source in dict.fromkeys(node.predecessors()):
                found[source].append(node)
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """The part of one cluster task: a subgraph for each of its devices."""

    task: str
    subgraphs: Mapping[str, ClientGraph]

    @property
    def feeds(self) -> tuple[int, ...]:
        """The indices of the step's feeds that the part receives, in order."""
        return self._indices(ARG)

    @property
    def fetches(self) -> tuple[int, ...]:
        """The indices of the step's fetches that the part returns, in order."""
        return self._indices(RETVAL)

    @property
    def feed_specs(self) -> tuple[OutputSpec, ...]:
        """The static properties of each of `feeds`."""
        found = {int(node.attrs["index"]): node.outputs[0] for node in self.nodes() if node.op == ARG}
        return tuple(found[index] for index in self.feeds)

    @property
    def changes(self) -> bool:
        """True if any node changes state that other steps see."""
        return any(graph.changes for graph in self.subgraphs.values())

    @property
    def gives_back(self) -> bool:
        """True if the part takes elements that are put back if the fetches of the step are not delivered."""
        return any(GIVES_BACK in node.attrs for node in self.nodes())

    @property
    def destinations(self) -> frozenset[str]:
        """The cluster tasks to which the part sends values."""
        sent = (task_of(node.attrs["recv_device"]) for node in self.nodes() if node.op == SEND)
        return frozenset(sent) - {self.task}

    @property
    def size(self) -> int:
        """The number of nodes, including those of bodies."""
        return sum(graph.size for graph in self.subgraphs.values())

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes on all devices of the part."""
        for graph in self.subgraphs.values():
            yield from graph.nodes.values()

    @property
    def all_feeds(self) -> int:
        """The number of feeds of the whole step."""
        # Each subgraph has the number for the whole step.
        return max((graph.feeds for graph in self.subgraphs.values()), default=0)

    def _indices(self, op: str) -> tuple[int, ...]:
        # A set, since a feed exists on every device that reads it.
        return tuple(sorted({int(node.attrs["index"]) for node in self.nodes() if node.op == op}))


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole step, partitioned into one part per cluster task.

    Attributes:
        parts: The parts by cluster task.
        feeds: Number of feeds of the step.
        fetches: Number of fetches of the step.
        predicted_seconds: Duration of a step as predicted by the simulator; None if there was only one placement.
    """

    parts: Mapping[str, Part]
    feeds: int
    fetches: int
    predicted_seconds: float | None = None

    def by_device(self) -> Iterator[tuple[str, ClientGraph]]:
        """Yield each device of all cluster tasks with its subgraph."""
        for part in self.parts.values():
            yield from part.subgraphs.items()

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes on all devices of all cluster tasks."""
        for part in self.parts.values():
            yield from part.nodes()

    def placed_nodes(self) -> Iterator[tuple[str, Node]]:
        """Yield the nodes on all devices of all cluster tasks, each with its device."""
        for device, graph in self.by_device():
            for node in graph.nodes.values():
                yield device, node

    def changed(self, change: Callable[[str, ClientGraph], ClientGraph]) -> Plan:
        """Return the plan with each subgraph replaced by the result of `change` for its device and subgraph."""
        parts = {
            task: replace(part, subgraphs={d: change(d, graph) for d, graph in part.subgraphs.items()})
            for task, part in self.parts.items()
        }
        return replace(self, parts=parts)


def worth_a_thread(nodes: int) -> bool:
    """Return whether compiling, binding or encoding so many nodes would block an event loop and needs a thread."""
    return nodes > _MANY
