"""The nodes of a plan, in the form that `outline` draws: a picture of what runs, after optimization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aioflow.compiler.ir import ClientGraph, Edge, Node, Plan
from aioflow.graph.boundary import ARG, RECV, RETVAL, SEND
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.ops.delegated import DELEGATED


@dataclass(eq=False, slots=True)
class PlannedNode:
    """A node of a plan, with the attributes of an `Operation` that a picture needs."""

    name: str
    type: str
    device: str
    inputs: list[PlannedTensor] = field(default_factory=list)
    control_inputs: list[PlannedNode] = field(default_factory=list)
    outputs: list[PlannedTensor] = field(default_factory=list)


@dataclass(eq=False, frozen=True, slots=True)
class PlannedTensor:
    """An output of a node of a plan."""

    op: PlannedNode
    value_index: int
    dtype: DType
    dims: Dims

    @property
    def name(self) -> str:
        """The name of the node with the index of the output."""
        return f"{self.op.name}:{self.value_index}"


class PlannedGraph:
    """The nodes of a plan.

    The nodes that another engine computes are in one scope for each part, named after the engine.

    Attributes:
        inputs: The fed tensors, with the names that they have in the graph.
        fetches: The fetched tensors, by their index in the request.
    """

    def __init__(self, plan: Plan, feeds: Sequence[Tensor]) -> None:
        self.inputs: list[PlannedTensor] = []
        self.fetches: dict[int, PlannedTensor] = {}
        self._nodes: list[PlannedNode] = []
        self._feeds = feeds
        self._args: dict[int, PlannedTensor] = {}
        self._sent: dict[tuple[object, ...], PlannedNode] = {}
        self._received: list[tuple[tuple[object, ...], PlannedNode]] = []
        self._parts: Counter[str] = Counter()
        self._names: Counter[str] = Counter()
        for device, graph in plan.by_device():
            self.fetches |= self._add(device, graph, self._fed(device, graph), "")
        for key, node in self._received:
            if (sender := self._sent.get(key)) is not None:
                # A Send has no output; the picture needs an edge that carries the value.
                value = node.outputs[0]
                sender.outputs.append(PlannedTensor(sender, 0, value.dtype, value.dims))
                node.inputs.append(sender.outputs[0])

    def get_operations(self) -> list[PlannedNode]:
        """Return all nodes."""
        return self._nodes

    def _fed(self, device: str, graph: ClientGraph) -> dict[int, PlannedTensor]:
        """Return the feeds of a graph by index. A feed that several devices read is one node."""
        found = {}
        for node in graph.nodes.values():
            if node.op == ARG:
                index = int(node.attrs["index"])
                if index not in self._args:
                    feed = self._feeds[index]
                    made = self._made(feed.op.name, feed.op.type, device, node)
                    self._args[index] = made.outputs[0]
                    self.inputs.append(made.outputs[0])
                found[index] = self._args[index]
        return found

    def _made(self, name: str, op: str, device: str, node: Node) -> PlannedNode:
        self._names[name] += 1
        if self._names[name] > 1:  # the same node on another device
            name = f"{name} ({self._names[name]})"
        made = PlannedNode(name, op, device)
        made.outputs = [PlannedTensor(made, i, spec.dtype, spec.dims) for i, spec in enumerate(node.outputs)]
        self._nodes.append(made)
        return made

    def _add(
        self, device: str, graph: ClientGraph, args: Mapping[int, PlannedTensor], scope: str
    ) -> dict[int, PlannedTensor]:
        """Add the nodes of a graph. Return its fetches by index."""
        made: dict[str, PlannedNode] = {}
        values: dict[Edge, PlannedTensor] = {}
        later: list[Node] = []  # the NextIterations of loops come after the Merges that read them
        fetched: dict[int, Edge] = {}
        for node in graph.nodes.values():
            if node.op == ARG:
                values[Edge(node.name, 0)] = args[int(node.attrs["index"])]
            elif node.op == RETVAL:
                fetched[int(node.attrs["index"])] = node.inputs[0]
            elif node.op == DELEGATED and node.body is not None:
                engine = str(node.attrs["delegate"])
                self._parts[engine] += 1
                within = dict(enumerate(values[edge] for edge in node.inputs))
                results = self._add(device, node.body, within, f"{scope}{engine} {self._parts[engine]}/")
                values |= {Edge(node.name, index): tensor for index, tensor in results.items()}
            else:
                found = self._made(scope + node.name, node.op, device, node)
                made[node.name] = found
                values |= {Edge(node.name, index): tensor for index, tensor in enumerate(found.outputs)}
                later.append(node)
                # By the tensor's name and both devices.
                if node.op in (SEND, RECV):
                    key = tuple(node.attrs[name] for name in ("tensor_name", "send_device", "recv_device"))
                    if node.op == SEND:
                        self._sent[key] = found
                    else:
                        self._received.append((key, found))
        for node in later:
            made[node.name].inputs += [values[edge] for edge in node.inputs if edge in values]
            made[node.name].control_inputs += [made[name] for name in node.control if name in made]
        return {index: values[edge] for index, edge in fetched.items()}
