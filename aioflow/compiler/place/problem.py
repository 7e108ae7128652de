"""A placement problem as plain lists of numbers, the input of strategies and the simulator.

Nodes, groups, devices and tensors are indices; a tensor is one output of a node, or the signal of a control edge. The
`_Arg` nodes are on an additional device, the *host*, from which every device receives feeds. Constants exist wherever
they are read and are not tensors here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.calibration import link_kind
from aioflow.compiler.place.cost_model import CostModel
from aioflow.errors import InternalError
from aioflow.graph.costs import Operand
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role

CONTROL_PORT: Final = -1


class GroupLike(Protocol):
    """Nodes that must share a device, and the feasible devices, preferred ones first (`constraints.Group`)."""

    @property
    def members(self) -> tuple[str, ...]: ...
    @property
    def devices(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Problem:
    """A placement problem.

    Attributes:
        nodes: The nodes in topological order; a node's index in this list is its number in all other attributes.
        devices: Full names; the host has the number after the last.
        group: By node: the number of its group.
        feasible: By group: its devices in order of preference.
        seconds: By device, then node: seconds per step.
        free: By node: whether it takes no time on any device.
        reads: By node: the tensors that it needs, each once.
        readers: By node: the nodes that need one of its tensors, each once.
        waits: By node: the number of nodes whose tensors it needs.
        first_reader: For constants and feeds: the first node that reads them.
        source: By tensor: the node that makes it.
        port: By tensor: the output of that node (`CONTROL_PORT` for a control edge).
        size: By tensor: bytes per step.
        trips: By tensor: transfers per step to a device that receives it.
        latency: By sending device or host, then receiving device: seconds; see `DeviceLink`.
        per_byte: By sending device or host, then receiving device: seconds per byte; see `DeviceLink`.
        overhead: By sending device or host, then receiving device: seconds; see `DeviceLink`.
        host: The number of the host.
    """

    nodes: list[Node]
    devices: tuple[str, ...]
    group: list[int]
    feasible: list[tuple[int, ...]]
    seconds: list[list[float]]
    free: list[bool]
    reads: list[list[int]]
    readers: list[list[int]]
    waits: list[int]
    first_reader: dict[int, int]
    source: list[int]
    port: list[int]
    size: list[float]
    trips: list[float]
    latency: list[list[float]]
    per_byte: list[list[float]]
    overhead: list[list[float]]
    host: int


@dataclass(slots=True)
class _Tensors:
    """The tensors found so far, numbered."""

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    source: list[int] = field(default_factory=list)
    port: list[int] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)

    def number(self, source: int, port: int, size: float, trips: float) -> int:
        found = self.numbers.get((source, port))
        if found is None:
            found = self.numbers[source, port] = len(self.source)
            self.source.append(source)
            self.port.append(port)
            # Bytes per step, so of all iterations.
            self.size.append(size * trips)
            self.trips.append(trips)
        return found


def build_problem(graph: ClientGraph, groups: Sequence[GroupLike], devices: Sequence[str], costs: CostModel) -> Problem:
    """Return the problem, with everything numbered and every cost looked up once.

    Args:
        graph: The graph to place.
        groups: Nodes that must share a device, with their feasible devices.
        devices: The full names of the devices.
        costs: The costs of nodes and transfers.

    Raises:
        InternalError: a group has no device, or one that is not among `devices`.
    """
    nodes = list(graph.nodes.values())
    index = {node.name: i for i, node in enumerate(nodes)}
    group, feasible = _numbered_groups(nodes, groups, {name: i for i, name in enumerate(devices)})
    operands = [costs.operands(node) for node in nodes]
    trips = _trips(nodes, index, costs)
    tensors = _Tensors()
    first_reader: dict[int, int] = {}
    reads: list[list[int]] = []
    readers: list[list[int]] = [[] for _ in nodes]
    waits: list[int] = []
    for i, node in enumerate(nodes):
        needed = _needed(i, node, index, nodes, first_reader)
        reads.append([_tensor(tensors, key, operands, trips) for key in needed])
        sources = {source for source, _ in needed}
        waits.append(len(sources))
        for source in sources:
            readers[source].append(i)
    latency, per_byte, overhead = _links(devices, costs)
    return Problem(
        nodes,
        tuple(devices),
        group,
        feasible,
        _seconds(nodes, index, operands, trips, devices, costs),
        [traits_of(node.op).cost.is_free for node in nodes],
        reads,
        readers,
        waits,
        first_reader,
        tensors.source,
        tensors.port,
        tensors.size,
        tensors.trips,
        latency,
        per_byte,
        overhead,
        len(devices),
    )


def _numbered_groups(
    nodes: Sequence[Node], groups: Sequence[GroupLike], numbers: Mapping[str, int]
) -> tuple[list[int], list[tuple[int, ...]]]:
    feasible = []
    of_node: dict[str, int] = {}
    for i, group in enumerate(groups):
        if not group.devices or not numbers.keys() >= set(group.devices):
            raise InternalError(
                f"the group of node {group.members[0]} cannot be placed", expected=list(numbers), actual=group.devices
            )
        feasible.append(tuple([numbers[device] for device in group.devices]))
        of_node.update(dict.fromkeys(group.members, i))
    # Nodes without a group keep their device, or go to the first one.
    for node in nodes:
        if node.name not in of_node:
            of_node[node.name] = len(feasible)
            feasible.append((numbers.get(node.device, 0),))
    return [of_node[node.name] for node in nodes], feasible


def _needed(
    i: int, node: Node, index: Mapping[str, int], nodes: Sequence[Node], first_reader: dict[int, int]
) -> dict[tuple[int, int], None]:
    """Return the (source, port) pairs that a node waits for, without the back edge from a NextIteration to a Merge."""
    needed: dict[tuple[int, int], None] = {}
    for name, port in node.inputs:
        source = index[name]
        traits = traits_of(nodes[source].op)
        if traits.is_replicated:
            first_reader.setdefault(source, i)
        if traits.role is not Role.CONSTANT and source < i:
            needed[source, port] = None
    if traits_of(node.op).is_replicated:  # a constant may have control inputs, but exists from the start
        return needed
    known = {source for source, _ in needed}
    for name in node.control:
        source = index[name]
        if source not in known and not traits_of(nodes[source].op).is_replicated and source < i:
            known.add(source)
            needed[source, CONTROL_PORT] = None
    return needed


def _tensor(tensors: _Tensors, key: tuple[int, int], operands: Sequence[list[Operand]], trips: Sequence[float]) -> int:
    source, port = key
    size = 0 if port == CONTROL_PORT else operands[source][port].size
    return tensors.number(source, port, size, trips[source])


def _trips(nodes: Sequence[Node], index: Mapping[str, int], costs: CostModel) -> list[float]:
    """Return how often each node runs in a step: as measured, or by the depth of the loops around it.

    An Enter runs as often as the code outside of its loop, so its own depth exceeds its trips by one level. An Exit
    does not have that difference.
    """
    depths: list[int] = []
    trips: list[float] = []
    for i, node in enumerate(nodes):
        sources = [index[name] for name in node.predecessors()]
        outside = max([depths[s] for s in sources if s < i], default=0)
        depth = outside + 1 if node.role is Role.ENTER else max(outside - 1, 0) if node.role is Role.EXIT else outside
        depths.append(depth)
        seen = costs.measured.executions(node.name)
        trips.append(float(costs.trip_count ** min(depth, outside)) if seen is None else max(1.0, seen))
    return trips


def _seconds(
    nodes: Sequence[Node],
    index: Mapping[str, int],
    operands: Sequence[list[Operand]],
    trips: Sequence[float],
    devices: Sequence[str],
    costs: CostModel,
) -> list[list[float]]:
    """Return the seconds by device and node. Devices of one type share a list."""
    types = [DeviceSpec.from_string(device).device_type or "CPU" for device in devices]
    by_type: dict[str, list[float]] = {device_type: [] for device_type in types}
    for node, outputs, times in zip(nodes, operands, trips, strict=True):
        inputs = [operands[index[name]][port] for name, port in node.inputs]
        for device_type, seconds in by_type.items():
            seconds.append(costs.seconds(node, inputs, outputs, device_type, times))
    return [by_type[device_type] for device_type in types]


def _links(devices: Sequence[str], costs: CostModel) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Return latency, seconds per byte and overhead between all pairs of devices; the last row is for the host.

    The host is in the task of the first device. A feed costs a CPU of that task nothing, because it arrives with the
    step.
    """
    rows = [[costs.link(source, destination) for destination in devices] for source in devices]
    first = DeviceSpec.from_string(devices[0])
    host = DeviceSpec(first.job, first.replica, first.task, "CPU", 0)
    kinds = [link_kind(host, DeviceSpec.from_string(device)) for device in devices]
    local = costs.link("", "")
    rows.append([local if kind == "memory" else costs.calibration.link(kind) for kind in kinds])
    return (
        [[link.latency for link in row] for row in rows],
        [[0.0 if link.bandwidth is None else 1.0 / link.bandwidth for link in row] for row in rows],
        [[link.overhead for link in row] for row in rows],
    )
