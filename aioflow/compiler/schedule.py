"""Stage 6: a large value is made and sent as late as is harmless, so that less is in memory at a time.

The published system starts a Recv late, by a control edge, since there it is the Recv that fetches the value
(whitepaper, 5.2). Here a Send pushes, and what were received late would wait in the rendezvous all the same. So the
edge goes to the other end: when a node of the receiving device that finishes at the right time is done, a *request*, an
empty tensor from there to the sender, lets it make the value, if it is for nothing else, and send it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from heapq import heappop, heappush
from operator import and_
from typing import Final

import numpy as np

from aioflow.compiler.deadness import may_be_dead
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Plan
from aioflow.compiler.optimize.facts import is_pure_op
from aioflow.compiler.timeline import (
    Key,
    NodeSeconds,
    Timeline,
    TransferSeconds,
    forecast,
    known_bytes,
    share_memory,
)
from aioflow.graph.boundary import BOUNDARY, RECV, SEND
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import float32
from aioflow.graph.opdef import traits_of
from aioflow.kernels.registry import KERNELS

__all__ = ["ScheduleOptions", "schedule_receives"]

_EMPTY: Final = OutputSpec(float32, (0,))
_MOST_NODES: Final = 64  # that are held back for one value
_ATTEMPTS: Final = 2  # the second asks twice as early
_ROUNDING: Final = 1e-9  # by which share two simulated times may differ that are the same


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What is worth a request, which costs the step two strands more.

    Attributes:
        minimum_bytes: Smaller values are left alone.
        minimum_seconds: How much later than without the request a value has to be made.
        minimum_gain: By how many bytes the peaks of all devices together must be lower.
        prefetch: How much earlier than it must be there a value is to arrive, as a share of the step (TensorFlow: 6 of
            100 epochs).
    """

    minimum_bytes: int = 1 << 20
    minimum_seconds: float = 2e-4
    minimum_gain: int = 1 << 20
    prefetch: float = 0.06


def schedule_receives(
    plan: Plan,
    seconds: NodeSeconds,
    transfer_seconds: TransferSeconds,
    options: ScheduleOptions | None = None,
) -> Plan:
    """The plan in which large values are sent when they are asked for; the same plan where that gains nothing.

    No request can close a cycle or make the predicted step longer. All are taken from one order: the predicted
    timeline, in which some nodes (those that make a value for one Send, and do nothing else) are put off to free times
    of their device so late that the value is there just before its first reader starts. Nobody else moves, so this is a
    schedule of the same length. A request goes from a node to one whose start in it is later than the finish of the
    first by the time that the request takes, which is more than zero, and along any other edge time does not go back;
    so no path returns to where it began. Loops are one node in this, whatever device their parts are on.

    Whether the devices, which choose for themselves what to do next, hold to it is looked at in the end: a plan that
    takes longer in the simulation, or whose peaks are not lower, is dropped.

    Left alone are values within loops and those that may be dead, which have a tag or none to send; neither may a
    request come from a node that may be dead. Nor from one behind a node that may wait for what others do, such as a
    dequeue, unless all who read the value are behind that, too: who it waits for might need the value.

    Args:
        seconds, transfer_seconds: As for `forecast`.
    """
    chosen = options or ScheduleOptions()
    if not any(_is_large(node, chosen) for node in plan.nodes()):
        return plan
    before = Timeline(plan, seconds, transfer_seconds)
    if len(before.order) < len(before.members):  # parts of a loop wait for what waits for the loop
        return plan
    expected = before.forecast()
    held = sum(expected.peak_bytes.values())
    choice = _Choice(plan, before, transfer_seconds, chosen)
    for attempt in range(_ATTEMPTS):
        requests = choice.requests(chosen.prefetch * 2**attempt)
        if not requests:
            return plan
        changed = _with_requests(plan, requests)
        found = forecast(changed, seconds, transfer_seconds)
        gain = held - sum(found.peak_bytes.values())
        if found.seconds <= expected.seconds * (1 + _ROUNDING):
            return changed if gain >= chosen.minimum_gain else plan
    return plan


def _is_large(node: Node, options: ScheduleOptions) -> bool:
    if node.op != RECV or node.attrs["maybe_dead"]:
        return False
    size = known_bytes(node.outputs[0])
    return size is not None and size >= max(1, options.minimum_bytes)


@dataclass(frozen=True, slots=True)
class _Request:
    """When `source` has finished, `gated` may start, nodes of another device."""

    source: Key
    device: str
    gated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that might be asked for.

    Attributes:
        send, recv: The ends of its edge.
        making: The nodes that are there for it alone, in topological order; none where the sender has it anyway.
        due: When its Send must be done for it to arrive in time.
        waits: What all its readers wait for in any case, as bits.
    """

    send: Key
    recv: Key
    making: tuple[Key, ...]
    due: float
    waits: int


class _Choice:
    """Which values are asked for, and by which nodes, for one plan and its timeline."""

    def __init__(
        self, plan: Plan, timeline: Timeline, transfer_seconds: TransferSeconds, options: ScheduleOptions
    ) -> None:
        self._timeline = timeline
        self._transfer_seconds = transfer_seconds
        self._options = options
        self._graphs = dict(plan.by_device())
        self._starts = timeline.starts
        self._position = {unit: i for i, unit in enumerate(timeline.order)}
        self._roots = timeline.roots
        self._readers = {device: graph.consumers() for device, graph in self._graphs.items()}
        self._dead = {device: _may_be_dead(graph) for device, graph in self._graphs.items()}
        self._waits = _waits(timeline)
        self._end = max(map(self._finish, range(len(self._starts))), default=0.0)
        self._values = sorted(self._large_values(), key=lambda v: (-v.due, v.send))
        self._sources = self._possible_sources()

    def requests(self, prefetch: float) -> list[_Request]:
        """The requests by which values arrive a share `prefetch` of the step early; of the latest values first."""
        if not self._values:
            return []
        early = prefetch * self._end
        busy: dict[str, _Busy] = {}
        for unit, device in enumerate(self._timeline.device):
            if self._timeline.seconds[unit] > 0.0:
                busy.setdefault(device, _Busy()).add(self._starts[unit], self._finish(unit))
        requests = (self._request(v, v.due - early, busy.setdefault(v.send[0], _Busy())) for v in self._values)
        return [request for request in requests if request is not None]

    def _finish(self, unit: int) -> float:
        return self._starts[unit] + self._timeline.seconds[unit]

    # -- what may be asked for ---------------------------------------------------------------------------------------

    def _large_values(self) -> Iterable[_Value]:
        timeline = self._timeline
        for edge, recv in timeline.recvs.items():
            unit = timeline.unit_of[recv]
            send = timeline.sends.get(edge)
            if send is None or unit in timeline.loops or not _is_large(timeline.nodes[recv], self._options):
                continue
            readers = timeline.after[unit]
            making = self._making(send)
            if readers and (making or not share_memory(send[0], recv[0])):
                due = min(self._starts[reader] for reader in readers) - timeline.before[unit][timeline.unit_of[send]]
                yield _Value(send, recv, making, due, reduce(and_, (self._waits[reader] for reader in readers)))

    def _making(self, send: Key) -> tuple[Key, ...]:
        """The nodes that are there for one Send alone, as far back as that holds nothing larger in their place."""
        device, name = send
        graph = self._graphs[device]
        alone = {name}
        # Readers first: whether a node is among them is asked when that of all its readers is known.
        queue = [(-self._rank(device, edge.node), edge.node) for edge in graph.nodes[name].inputs]
        while queue and len(alone) <= _MOST_NODES:
            _, candidate = heappop(queue)
            if candidate not in alone and self._is_alone(device, candidate, alone):
                alone.add(candidate)
                for source in graph.nodes[candidate].predecessors():
                    heappush(queue, (-self._rank(device, source), source))
        alone.remove(name)
        return tuple((device, n) for n in sorted(alone, key=lambda n: self._rank(device, n)))

    def _rank(self, device: str, name: str) -> int:
        return self._position[self._timeline.unit_of[device, name]]

    def _is_alone(self, device: str, name: str, alone: set[str]) -> bool:
        graph = self._graphs[device]
        node = graph.nodes[name]
        if (
            not is_pure_op(node.op)
            or traits_of(node.op).is_resident
            or name in graph.targets
            or name in self._dead[device]
        ):
            return False
        if self._timeline.unit_of[device, name] in self._timeline.loops:
            return False
        if not all(reader.name in alone for reader in self._readers[device][name]):
            return False
        makes = [known_bytes(spec) for spec in node.outputs]
        reads = [known_bytes(graph.spec(e)) for e in dict.fromkeys(node.inputs) if self._roots[device, e] is not None]
        known = [size for size in (*makes, *reads) if size is not None]
        return len(known) == len(makes) + len(reads) and sum(known[len(makes) :]) <= sum(known[: len(makes)])

    # -- when, and by whom -------------------------------------------------------------------------------------------

    def _possible_sources(self) -> dict[str, list[tuple[float, int, Key]]]:
        """By device the nodes that a request may come from, in the order in which they finish: none that is put off."""
        timeline = self._timeline
        moving = {timeline.unit_of[key] for value in self._values for key in value.making}
        found: dict[str, list[tuple[float, int, Key]]] = {}
        for position, unit in enumerate(timeline.order):
            key = timeline.members[unit][0]
            device, name = key
            silent = unit in timeline.loops or unit in moving or not timeline.seconds[unit] > 0.0
            if not silent and name not in self._dead[device]:
                insort(found.setdefault(device, []), (self._finish(unit), position, key))
        return found

    def _request(self, value: _Value, due: float, busy: _Busy) -> _Request | None:
        """What asks for the value, if it can be put off; the nodes that make it are moved in `busy`."""
        timeline = self._timeline
        units = [timeline.unit_of[key] for key in value.making]
        slots = [(self._starts[u], self._finish(u)) for u in units if timeline.seconds[u] > 0.0]
        first = self._starts[units[0] if units else timeline.unit_of[value.send]]
        earliest, length = first, 0.0  # what a node reads is there when it started, so none starts earlier than it did
        for unit in units:
            earliest = max(earliest, self._starts[unit] - length)
            length += timeline.seconds[unit]
        busy.remove(slots)
        begin = busy.latest(length, earliest, due)
        source = None if begin is None else self._source(value, begin, first)
        if begin is None or source is None:
            for slot in slots:
                busy.add(*slot)
            return None
        if length:
            busy.add(begin, begin + length)
        return _Request(source, value.send[0], self._entries(value))

    def _source(self, value: _Value, begin: float, first: float) -> Key | None:
        """The node that finishes last of those whose request arrives by `begin`, if that is late enough."""
        delay = max(self._transfer_seconds(_EMPTY, value.recv[0], value.send[0]), 1e-9)
        sources = self._sources.get(value.recv[0], [])
        for finish, _, key in reversed(sources[: bisect_right(sources, begin - delay, key=lambda s: s[0])]):
            if finish + delay - first < self._options.minimum_seconds:
                return None
            if not self._waits[self._timeline.unit_of[key]] & ~value.waits:
                return key
        return None

    def _entries(self, value: _Value) -> tuple[str, ...]:
        """The nodes that the others that make the value wait for; with none, the Send."""
        device = value.send[0]
        names = {name for _, name in value.making}
        nodes = self._graphs[device].nodes
        entries = tuple(n for _, n in value.making if names.isdisjoint(nodes[n].predecessors()))
        return entries or (value.send[1],)


class _Busy:
    """The times at which a device is at work: disjoint, in order."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> None:
        """Take a time that is free."""
        place = bisect_left(self._begins, begin)
        self._begins.insert(place, begin)
        self._ends.insert(place, end)

    def remove(self, slots: Iterable[tuple[float, float]]) -> None:
        """Give times back."""
        for begin, _ in slots:
            place = bisect_left(self._begins, begin)
            del self._begins[place], self._ends[place]

    def latest(self, length: float, earliest: float, end: float) -> float | None:
        """The latest time from which so many seconds are free, not before `earliest` and over by `end`."""
        place = bisect_left(self._begins, end)
        while end - length >= earliest:
            if not place or self._ends[place - 1] <= end - length:
                return end - length
            place -= 1
            end = self._begins[place]
        return None


def _waits(timeline: Timeline) -> list[int]:
    """By unit the nodes before it, one bit each, that may wait for what others do, and not only for their inputs."""
    found = [0] * len(timeline.members)
    bit = 1
    for unit in timeline.order:
        for source in timeline.before[unit]:
            found[unit] |= found[source]
        if any(_may_wait(device, timeline.nodes[device, name]) for device, name in timeline.members[unit]):
            found[unit] |= bit
            bit <<= 1
    return found


def _may_wait(device: str, node: Node) -> bool:
    if node.op in (SEND, RECV, *BOUNDARY) or traits_of(node.op).steers:
        return False
    kernel = KERNELS.find(node.op, DeviceSpec.from_string(device).device_type or "CPU", node.attrs)
    return kernel is not None and kernel.is_async


def _may_be_dead(graph: ClientGraph) -> set[str]:
    """Nodes that may be dead, by what one subgraph shows: on a branch, or behind a Recv of something dead."""
    dead = {edge.node for edge in may_be_dead(graph)}
    for node in graph.nodes.values():
        if (node.op == RECV and node.attrs["maybe_dead"]) or not dead.isdisjoint(node.predecessors()):
            dead.add(node.name)
    return dead


# -- writing it into the plan ------------------------------------------------------------------------------------------


def _with_requests(plan: Plan, requests: Sequence[_Request]) -> Plan:
    graphs = {device: dict(graph.nodes) for device, graph in plan.by_device()}
    behind: dict[Key, list[Node]] = {}  # what is sent when a node has finished
    waits: dict[Key, list[Node]] = {}  # the requests that a node waits for
    made: dict[tuple[Key, str], Node] = {}
    for request in requests:
        pair = (request.source, request.device)
        if pair not in made:
            token, send, made[pair] = _request_nodes(len(made), request, graphs[request.source[0]][request.source[1]])
            behind.setdefault(request.source, []).extend((token, send))
        for name in request.gated:
            waits.setdefault((request.device, name), []).append(made[pair])
    nodes = {device: _rewritten(device, graph, behind, waits) for device, graph in graphs.items()}
    return plan.changed(lambda device, graph: replace(graph, nodes=nodes[device]))


def _request_nodes(number: int, request: _Request, source: Node) -> tuple[Node, Node, Node]:
    """The empty tensor, its Send and its Recv."""
    device = request.source[0]
    name = f"request_{number}_{source.name}"
    common = {
        "tensor_name": name,
        "send_device": device,
        "recv_device": request.device,
        "maybe_dead": False,
    }
    empty = {"value": np.zeros((0,), np.float32), "dtype": float32}
    token = Node(f"{name}/_token", "Const", (), (source.name,), empty, (_EMPTY,), device, source.source)
    send_attrs = {"T": float32, **common}
    send = Node(f"{name}/_send", SEND, (Edge(token.name, 0),), (), send_attrs, (), device, source.source)
    recv_attrs = {"tensor_type": float32, "shape": _EMPTY.dims, **common}
    return token, send, Node(f"{name}/_recv", RECV, (), (), recv_attrs, (_EMPTY,), request.device, source.source)


def _rewritten(
    device: str, graph: Mapping[str, Node], behind: Mapping[Key, list[Node]], waits: Mapping[Key, list[Node]]
) -> dict[str, Node]:
    """The nodes in topological order: a request is sent right behind its source, and received before who waits."""
    nodes: dict[str, Node] = {}
    for name, node in graph.items():
        requests = waits.get((device, name), ())
        nodes.update((request.name, request) for request in requests)
        nodes[name] = replace(node, control=(*node.control, *(r.name for r in requests))) if requests else node
        nodes.update((sent.name, sent) for sent in behind.get((device, name), ()))
    return nodes
