"""The compiler's own graph: immutable nodes in topological order, plain data that could cross a wire.

Feeds appear as `_Arg` nodes and fetches as `_Retval` nodes, each with its index, so that a subgraph is complete in
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from aioflow.errors import SourceLine
from aioflow.graph.boundary import ARG, GIVES_BACK, RETVAL, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, Role

__all__ = ["BODY", "ClientGraph", "Edge", "Node", "OutputSpec", "Part", "Plan", "worth_a_thread"]

BODY: Final = "_body"  # the attribute with what a node calls by itself, of the function that it names
_MANY: Final = 32  # nodes, which take some 0.2 ms each


class Edge(NamedTuple):
    """Output `port` of the node of that name."""

    node: str
    port: int


class OutputSpec(NamedTuple):
    """What is known of one output before the step runs."""

    dtype: DType
    dims: Dims


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its op, where its inputs come from, what it waits for, and who made it."""

    name: str
    op: str
    inputs: tuple[Edge, ...] = ()
    control: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[OutputSpec, ...] = ()
    device: str = ""
    source: SourceLine | None = None

    @property
    def body(self) -> ClientGraph | None:
        """The function that the kernel calls, as steps of its own; None for nearly every node. Its feeds are the
        node's inputs, its fetches the node's outputs.
        """
        found = self.attrs.get(BODY)
        return found if isinstance(found, ClientGraph) else None

    @property
    def changes(self) -> bool:
        """Whether it changes state that other steps see: itself, or by the function that it calls."""
        body = self.body if BODY in self.attrs else None
        if body is not None:
            return body.changes
        traits = traits_of(self.op)
        return traits.effect is Effect.CHANGES and traits.role is Role.KERNEL

    def predecessors(self) -> Iterator[str]:
        """Names of the nodes that must finish first; a name may occur twice."""
        for edge in self.inputs:
            yield edge.node
        yield from self.control


@dataclass(frozen=True, slots=True)
class ClientGraph:
    """The part of a graph that one kind of step needs.

    Attributes:
        nodes: By name, in topological order.
        feeds, fetches: How many `_Arg` and `_Retval` nodes there are in the whole step.
        targets: Nodes that must run besides those that the fetches need. A pass that drops or merges nodes keeps what
            the `_Retval` nodes and these need, and only that.
    """

    nodes: Mapping[str, Node]
    feeds: int
    fetches: int
    targets: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many nodes it has, those of bodies among them."""
        bodies = [node.body for node in self.nodes.values() if BODY in node.attrs]  # of thousands nearly none has one
        return len(self.nodes) + sum(body.size for body in bodies if body is not None)

    @property
    def changes(self) -> bool:
        """Whether anything in it changes what other steps see."""
        return any(node.changes for node in self.nodes.values())

    def spec(self, edge: Edge) -> OutputSpec:
        """Dtype and static shape of an output."""
        return self.nodes[edge.node].outputs[edge.port]

    def read_outputs(self) -> dict[str, list[OutputSpec]]:
        """Return for each node the outputs that a node reads, each once."""
        found: dict[str, list[OutputSpec]] = {name: [] for name in self.nodes}
        for edge in dict.fromkeys(edge for node in self.nodes.values() for edge in node.inputs):
            found[edge.node].append(self.spec(edge))
        return found

    def consumers(self) -> dict[str, list[Node]]:
        """For each node the nodes that read it or wait for it, in order, each once."""
        found: dict[str, list[Node]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for source in dict.fromkeys(node.predecessors()):
                found[source].append(node)
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """What one task runs: a subgraph for each of its devices."""

    task: str
    subgraphs: Mapping[str, ClientGraph]

    @property
    def feeds(self) -> tuple[int, ...]:
        """The indices of the step's feeds that it takes, in order."""
        return self._indices(ARG)

    @property
    def fetches(self) -> tuple[int, ...]:
        """The indices of the step's fetches that it gives, in order."""
        return self._indices(RETVAL)

    @property
    def feed_specs(self) -> tuple[OutputSpec, ...]:
        """What is known of each of `feeds`."""
        found = {int(node.attrs["index"]): node.outputs[0] for node in self.nodes() if node.op == ARG}
        return tuple(found[index] for index in self.feeds)

    @property
    def changes(self) -> bool:
        """Whether anything in it changes what other steps see."""
        return any(graph.changes for graph in self.subgraphs.values())

    @property
    def gives_back(self) -> bool:
        """Whether it takes elements away that are put back if the fetches of the step are not delivered."""
        return any(GIVES_BACK in node.attrs for node in self.nodes())

    @property
    def destinations(self) -> frozenset[str]:
        """The tasks that it sends to."""
        sent = (task_of(node.attrs["recv_device"]) for node in self.nodes() if node.op == SEND)
        return frozenset(sent) - {self.task}

    @property
    def size(self) -> int:
        """How many nodes it has, those of bodies among them."""
        return sum(graph.size for graph in self.subgraphs.values())

    def nodes(self) -> Iterator[Node]:
        """The nodes on all of its devices."""
        for graph in self.subgraphs.values():
            yield from graph.nodes.values()

    @property
    def all_feeds(self) -> int:
        """How many feeds the whole step has."""
        return max((graph.feeds for graph in self.subgraphs.values()), default=0)

    def _indices(self, op: str) -> tuple[int, ...]:
        return tuple(sorted({int(node.attrs["index"]) for node in self.nodes() if node.op == op}))


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole step, cut up: one part per task.

    Attributes:
        predicted_seconds: How long the simulator expects a step to take; None where there was nothing to choose.
    """

    parts: Mapping[str, Part]
    feeds: int
    fetches: int
    predicted_seconds: float | None = None

    def by_device(self) -> Iterator[tuple[str, ClientGraph]]:
        """Each device of all tasks with its subgraph."""
        for part in self.parts.values():
            yield from part.subgraphs.items()

    def nodes(self) -> Iterator[Node]:
        """The nodes on all devices of all tasks."""
        for part in self.parts.values():
            yield from part.nodes()

    def placed_nodes(self) -> Iterator[tuple[str, Node]]:
        """The nodes on all devices of all tasks, each with its device."""
        for device, graph in self.by_device():
            for node in graph.nodes.values():
                yield device, node

    def changed(self, change: Callable[[str, ClientGraph], ClientGraph]) -> Plan:
        """The plan with what `change` makes of each device and its subgraph in the place of that."""
        parts = {
            task: replace(part, subgraphs={d: change(d, graph) for d, graph in part.subgraphs.items()})
            for task, part in self.parts.items()
        }
        return replace(self, parts=parts)


def worth_a_thread(nodes: int) -> bool:
    """Whether compiling, binding or encoding so many nodes would hold up an event loop, so that a thread does it."""
    return nodes > _MANY
