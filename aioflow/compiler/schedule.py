"""Stage 6: compute and send large values as late as possible without delaying the step, to lower peak memory.

In the published system a Recv fetches the value, so a control edge that starts the Recv late is enough (whitepaper,
5.2). Here a Send pushes the value, and without further measures it would wait in the rendezvous. So the edge goes to
the sender: when a suitable node of the receiving device has finished, a *request* is sent, an empty tensor. It starts
the Send and the nodes that only compute its value.
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

from aioflow.compiler.control_flow import may_be_dead
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Plan
from aioflow.compiler.optimize.facts import is_pure_op
from aioflow.compiler.timeline import (
    NodeKey,
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

_EMPTY: Final = OutputSpec(float32, (0,))
_MOST_NODES: Final = 64  # most nodes that are delayed for one value
_ATTEMPTS: Final = 2  # the second attempt requests twice as early
_ROUNDING: Final = 1e-9  # relative difference at which two simulated times count as equal


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The limits for requests, each of which costs the step two more strands.

    Attributes:
        minimum_bytes: Smaller values are sent at once.
        minimum_seconds: The least delay of a value that justifies a request.
        minimum_gain: The least reduction of the sum of all devices' peaks, in bytes.
        prefetch: How early a value shall arrive before it is needed, as a share of the step (TensorFlow: 6 of 100
            epochs).
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
    """Return the plan in which large values are sent on request, or the same plan if that gains nothing.

    Values within loops and values that may be dead are sent at once. A request never comes from a node that may be
    dead. It never comes from a node behind one that may wait for other clients, such as a dequeue, unless all readers
    of the value are behind that node, too: the other client might need the value.

    Args:
        plan: The partitioned step.
        seconds: See `forecast`.
        transfer_seconds: See `forecast`.
        options: The limits; None for the defaults.
    """
    chosen = options or ScheduleOptions()
    if not any(_is_large(node, chosen) for node in plan.nodes()):
        return plan
    before = Timeline(plan, seconds, transfer_seconds)
    if len(before.order) < len(before.members):  # a cycle through a loop, which counts as one unit: no timeline exists
        return plan
    expected = before.forecast()
    held = sum(expected.peak_bytes.values())
    # No request can close a cycle or lengthen the predicted step. All are derived from one order, the predicted
    # timeline. In it, nodes that only compute the value of one Send move to idle times of their device, so late that
    # the value arrives just before its first reader starts. Other nodes do not move, so the schedule keeps its length.
    # A request goes from a node to one that starts later than the first one finishes, by at least the time of the
    # request, which is positive. Along all other edges time does not decrease, so no path returns to its origin. A loop
    # is one unit in this, on whichever devices its nodes are.
    choice = _Choice(plan, before, transfer_seconds, chosen)
    for attempt in range(_ATTEMPTS):
        requests = choice.requests(chosen.prefetch * 2**attempt)
        if not requests:
            return plan
        changed = _with_requests(plan, requests)
        # Devices choose at run time what to run next, so the simulation checks whether the plan still pays off.
        found = forecast(changed, seconds, transfer_seconds)
        gain = held - sum(found.peak_bytes.values())
        # If the requests lengthen the predicted step, the second attempt sends them earlier.
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
    """A request: nodes `gated` on `device` may start when `source` on another device has finished."""

    source: NodeKey
    device: str
    gated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value that can be requested.

    Attributes:
        send: The Send of its edge.
        recv: The Recv of its edge.
        making: The nodes that only compute this value, in topological order; empty if the sender keeps it in memory
            anyway.
        due: When its Send must be done for it to arrive in time.
        waits: The waiting nodes that come before all its readers, as bits.
    """

    send: NodeKey
    recv: NodeKey
    making: tuple[NodeKey, ...]
    due: float
    waits: int


class _Choice:
    """The choice of values and of the nodes that request them, for one plan and its timeline."""

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
        """Return the requests by which values arrive a share `prefetch` of the step early, latest values first."""
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

    # -- values --------------------------------------------------------------------------------------------------------

    def _large_values(self) -> Iterable[_Value]:
        timeline = self._timeline
        for edge, recv in timeline.recvs.items():
            unit = timeline.unit_of[recv]
            send = timeline.sends.get(edge)
            if send is None or unit in timeline.loops or not _is_large(timeline.nodes[recv], self._options):
                continue
            readers = timeline.after[unit]
            making = self._making(send)
            # With shared memory and nothing to delay, a late Send does not free anything.
            if readers and (making or not share_memory(send[0], recv[0])):
                # The Send has to be done one transfer before the first reader starts.
                due = min(self._starts[reader] for reader in readers) - timeline.before[unit][timeline.unit_of[send]]
                yield _Value(send, recv, making, due, reduce(and_, (self._waits[reader] for reader in readers)))

    def _making(self, send: NodeKey) -> tuple[NodeKey, ...]:
        """Return the nodes that only compute the value of one Send, as far back as no larger values must be kept."""
        device, name = send
        graph = self._graphs[device]
        alone = {name}
        # Readers are popped first: whether a node qualifies is known only after all its readers.
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
        # A delayed node keeps its inputs alive, so delaying it only helps if they are not larger than its outputs.
        makes = [known_bytes(spec) for spec in node.outputs]
        reads = [known_bytes(graph.spec(e)) for e in dict.fromkeys(node.inputs) if self._roots[device, e] is not None]
        known = [size for size in (*makes, *reads) if size is not None]
        return len(known) == len(makes) + len(reads) and sum(known[len(makes) :]) <= sum(known[: len(makes)])

    # -- times and sources ---------------------------------------------------------------------------------------------

    def _possible_sources(self) -> dict[str, list[tuple[float, int, NodeKey]]]:
        """Return by device the nodes that a request may come from, ordered by finish; delayed nodes are excluded."""
        timeline = self._timeline
        moving = {timeline.unit_of[key] for value in self._values for key in value.making}
        found: dict[str, list[tuple[float, int, NodeKey]]] = {}
        for position, unit in enumerate(timeline.order):
            key = timeline.members[unit][0]
            device, name = key
            silent = unit in timeline.loops or unit in moving or not timeline.seconds[unit] > 0.0
            if not silent and name not in self._dead[device]:
                insort(found.setdefault(device, []), (self._finish(unit), position, key))
        return found

    def _request(self, value: _Value, due: float, busy: _Busy) -> _Request | None:
        """Return the request for a value, or None if it cannot be delayed. Moves its nodes in `busy`."""
        timeline = self._timeline
        units = [timeline.unit_of[key] for key in value.making]
        slots = [(self._starts[u], self._finish(u)) for u in units if timeline.seconds[u] > 0.0]
        first = self._starts[units[0] if units else timeline.unit_of[value.send]]
        # Inputs exist at the original start, so no node may start earlier than that.
        earliest, length = first, 0.0
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

    def _source(self, value: _Value, begin: float, first: float) -> NodeKey | None:
        """Return the last node to finish whose request arrives by `begin`, or None if none delays the value enough."""
        # Positive, because the proof in `schedule_receives` needs requests that lead forward in time.
        delay = max(self._transfer_seconds(_EMPTY, value.recv[0], value.send[0]), 1e-9)
        sources = self._sources.get(value.recv[0], [])
        for finish, _, key in reversed(sources[: bisect_right(sources, begin - delay, key=lambda s: s[0])]):
            if finish + delay - first < self._options.minimum_seconds:
                return None
            # The source must not wait for other clients, unless all readers of the value wait for them anyway.
            if not self._waits[self._timeline.unit_of[key]] & ~value.waits:
                return key
        return None

    def _entries(self, value: _Value) -> tuple[str, ...]:
        """Return the first nodes of those that compute the value; without any, the Send."""
        device = value.send[0]
        names = {name for _, name in value.making}
        nodes = self._graphs[device].nodes
        entries = tuple(n for _, n in value.making if names.isdisjoint(nodes[n].predecessors()))
        return entries or (value.send[1],)


class _Busy:
    """The busy times of a device: disjoint intervals in order."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> None:
        """Mark an idle interval as busy."""
        place = bisect_left(self._begins, begin)
        self._begins.insert(place, begin)
        self._ends.insert(place, end)

    def remove(self, slots: Iterable[tuple[float, float]]) -> None:
        """Mark busy intervals as idle."""
        for begin, _ in slots:
            place = bisect_left(self._begins, begin)
            del self._begins[place], self._ends[place]

    def latest(self, length: float, earliest: float, end: float) -> float | None:
        """Return the latest start of an idle time of `length` seconds between `earliest` and `end`, or None."""
        # From `end` backwards, over one busy interval after the other.
        place = bisect_left(self._begins, end)
        while end - length >= earliest:
            if not place or self._ends[place - 1] <= end - length:
                return end - length
            place -= 1
            end = self._begins[place]
        return None


def _waits(timeline: Timeline) -> list[int]:
    """Return for each unit the nodes before it that may wait for more than their inputs, one bit each."""
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
    # A Recv waits only for nodes of this plan, and those are ordered by the timeline.
    if node.op in (SEND, RECV, *BOUNDARY) or traits_of(node.op).is_control_flow:
        return False
    kernel = KERNELS.find(node.op, DeviceSpec.from_string(device).device_type or "CPU", node.attrs)
    return kernel is not None and kernel.is_async


def _may_be_dead(graph: ClientGraph) -> set[str]:
    """Return the nodes of a subgraph that may be dead: on a branch, or behind a Recv of a value that may be dead."""
    dead = {edge.node for edge in may_be_dead(graph)}
    for node in graph.nodes.values():
        if (node.op == RECV and node.attrs["maybe_dead"]) or not dead.isdisjoint(node.predecessors()):
            dead.add(node.name)
    return dead


# ── rewriting the plan ────────────────────────────────────────────────────────────────────────────────────────────────


def _with_requests(plan: Plan, requests: Sequence[_Request]) -> Plan:
    graphs = {device: dict(graph.nodes) for device, graph in plan.by_device()}
    behind: dict[NodeKey, list[Node]] = {}  # the nodes to insert behind a node
    waits: dict[NodeKey, list[Node]] = {}  # the requests that a node waits for
    made: dict[tuple[NodeKey, str], Node] = {}
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
    """Return the empty tensor, its Send and its Recv."""
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
    device: str, graph: Mapping[str, Node], behind: Mapping[NodeKey, list[Node]], waits: Mapping[NodeKey, list[Node]]
) -> dict[str, Node]:
    """Return the nodes in topological order.

    A request is sent directly behind its source, and received directly before its first waiter.
    """
    nodes: dict[str, Node] = {}
    for name, node in graph.items():
        requests = waits.get((device, name), ())
        nodes.update((request.name, request) for request in requests)
        nodes[name] = replace(node, control=(*node.control, *(r.name for r in requests))) if requests else node
        nodes.update((sent.name, sent) for sent in behind.get((device, name), ()))
    return nodes
