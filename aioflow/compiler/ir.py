"""The compiler's own graph: immutable nodes in topological order, plain data that could cross a wire.

Feeds appear as `_Arg` nodes and fetches as `_Retval` nodes, each with its index, so that a subgraph is complete in
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aioflow.errors import SourceLine
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims

__all__ = ["ClientGraph", "Edge", "Node", "OutputSpec", "Part", "Plan"]


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

    def predecessors(self) -> Iterator[str]:
        """Names of the nodes that must finish first; a name may come twice."""
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

    def spec(self, edge: Edge) -> OutputSpec:
        """Dtype and static shape of an output."""
        return self.nodes[edge.node].outputs[edge.port]

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
        return self._indices("_Arg")

    @property
    def fetches(self) -> tuple[int, ...]:
        """The indices of the step's fetches that it gives, in order."""
        return self._indices("_Retval")

    @property
    def feed_specs(self) -> tuple[OutputSpec, ...]:
        """What is known of each of `feeds`."""
        nodes = [node for graph in self.subgraphs.values() for node in graph.nodes.values() if node.op == "_Arg"]
        found = {int(node.attrs["index"]): node.outputs[0] for node in nodes}
        return tuple(found[index] for index in self.feeds)

    @property
    def all_feeds(self) -> int:
        """How many feeds the whole step has."""
        return max((graph.feeds for graph in self.subgraphs.values()), default=0)

    def _indices(self, op: str) -> tuple[int, ...]:
        nodes = (node for graph in self.subgraphs.values() for node in graph.nodes.values())
        return tuple(sorted({int(node.attrs["index"]) for node in nodes if node.op == op}))


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole step, cut up: one part a task.

    Attributes:
        predicted_seconds: How long the simulator expects a step to take; None where there was nothing to choose.
    """

    parts: Mapping[str, Part]
    feeds: int
    fetches: int
    predicted_seconds: float | None = None
