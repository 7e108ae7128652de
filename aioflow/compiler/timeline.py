"""The predicted timeline of a plan on all devices: when each node can and must start, and the bytes in use.

A node outside of loops is a unit of its own. All nodes of a loop, on whichever devices, are one unit: it starts with
the last of its inputs, like a raised loop. A Send takes no time, and its value arrives one transfer later. These edges
determine the earliest and latest starts on the critical path. In the timeline a device also runs one unit at a time,
the most urgent of those that are ready (whitepaper, 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import Final, TypeAlias

from aioflow.compiler.control_flow import loops_of
from aioflow.compiler.ir import ClientGraph, Edge, Node, OutputSpec, Plan
from aioflow.errors import InternalError
from aioflow.graph.boundary import RECV, RETVAL, SEND
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role

# A node of a plan: its device and its name there. Constants, feeds and loop invariants exist on several devices.
NodeKey: TypeAlias = tuple[str, str]
NodeSeconds: TypeAlias = Callable[[Node], float]
TransferSeconds: TypeAlias = Callable[[OutputSpec, str, str], float]  # of a value between two devices

INSTANT: Final = frozenset({Role.SEND, Role.RECV, Role.FEED, Role.FETCH, Role.CONSTANT})  # take no time of a device


@dataclass(frozen=True, slots=True)
class Forecast:
    """A predicted step.

    Attributes:
        seconds: The duration of the step.
        peak_bytes: By device: the peak of the bytes held by computed and received values. Feeds, constants and
            variables, which are in memory anyway, and values within loops do not count.
    """

    seconds: float
    peak_bytes: Mapping[str, int]


def forecast(plan: Plan, seconds: NodeSeconds, transfer_seconds: TransferSeconds) -> Forecast:
    """Return the predicted step of a plan.

    Args:
        plan: The partitioned step.
        seconds: Returns the seconds of a node in one step. Not called for Send, Recv, feeds, fetches and constants.
        transfer_seconds: Returns the transfer time of a value between two devices.

    Raises:
        InternalError: nodes wait for one another in a cycle.
    """
    timeline = Timeline(plan, seconds, transfer_seconds)
    if len(timeline.order) < len(timeline.members):
        raise InternalError("the nodes of a plan wait for one another", expected="a partial order", actual="a cycle")
    return timeline.forecast()


def known_bytes(spec: OutputSpec) -> int | None:
    """Return the bytes of a value, or None if they depend on an unknown shape or on the contents."""
    if spec.dtype.name in ("resource", "variant"):
        return 0
    if spec.dims is None or spec.dtype.name == "string":
        return None
    count = 1
    for size in spec.dims:
        if size is None:
            return None
        count *= size
    return count * spec.dtype.size


@cache
def share_memory(one: str, other: str) -> bool:
    """Return whether values pass between the devices without a copy: both are CPUs of one process."""
    a, b = DeviceSpec.from_string(one), DeviceSpec.from_string(other)
    return (a.job, a.replica, a.task) == (b.job, b.replica, b.task) and a.device_type == b.device_type == "CPU"


class Timeline:
    """The units of a plan and their times. Units are numbers; times are seconds from the start of the step.

    Attributes:
        nodes: All nodes of the plan.
        members: By unit: its nodes.
        unit_of: The unit of each node.
        loops: The units that are loops.
        device: By unit: its device; for a loop on several devices, the busiest one.
        seconds: By unit: its duration.
        before: By unit: the units it waits for, with the time in between.
        after: By unit: the units that wait for it, with the time in between.
        order: The units in topological order, without those in a cycle.
        sends: The Send of each edge between devices, by the name of the edge.
        recvs: The Recv of each edge between devices, by the name of the edge.
    """

    def __init__(self, plan: Plan, seconds: NodeSeconds, transfer_seconds: TransferSeconds) -> None:
        self.nodes: dict[NodeKey, Node] = {}
        self.members: list[list[NodeKey]] = []
        self.unit_of: dict[NodeKey, int] = {}
        self.loops: set[int] = set()
        self.sends: dict[str, NodeKey] = {}
        self.recvs: dict[str, NodeKey] = {}
        loops: dict[str, int] = {}
        for device, graph in plan.by_device():
            self._add(device, graph, loops)
        self.device: list[str] = []
        self.seconds: list[float] = []
        for keys in self.members:
            self._measure(keys, seconds)
        self.before: list[dict[int, float]] = [{} for _ in self.members]
        self.after: list[dict[int, float]] = [{} for _ in self.members]
        self._connect(transfer_seconds)
        self.order = self._sorted()
        self._starts: list[float] | None = None
        self._roots: dict[tuple[str, Edge], tuple[str, Edge] | None] | None = None

    # -- units ---------------------------------------------------------------------------------------------------------

    def _add(self, device: str, graph: ClientGraph, loops: dict[str, int]) -> None:
        loop_of = loops_of(graph)
        for name, node in graph.nodes.items():
            key = (device, name)
            self.nodes[key] = node
            if node.op in (SEND, RECV):
                (self.sends if node.op == SEND else self.recvs)[node.attrs["tensor_name"]] = key
            frame = loop_of[name]
            if frame is None:
                unit = len(self.members)
            else:
                unit = loops.setdefault(frame.outermost.name, len(self.members))
                self.loops.add(unit)
            if unit == len(self.members):
                self.members.append([])
            self.members[unit].append(key)
            self.unit_of[key] = unit

    def _measure(self, keys: Sequence[NodeKey], seconds: NodeSeconds) -> None:
        by_device: dict[str, float] = {}
        for key in keys:
            node = self.nodes[key]
            took = 0.0 if node.role in INSTANT else seconds(node)
            by_device[key[0]] = by_device.get(key[0], 0.0) + took
        # The devices of a loop work at the same time, so the busiest one determines its duration.
        busiest = max(by_device, key=by_device.__getitem__)
        self.device.append(busiest)
        self.seconds.append(by_device[busiest])

    def _connect(self, transfer_seconds: TransferSeconds) -> None:
        for (device, name), node in self.nodes.items():
            for source in node.predecessors():
                self._edge((device, source), (device, name), 0.0)
        for edge, recv in self.recvs.items():
            if edge in self.sends:
                send = self.sends[edge]
                delay = transfer_seconds(self.nodes[recv].outputs[0], send[0], recv[0])
                self._edge(send, recv, delay)

    def _edge(self, source: NodeKey, target: NodeKey, delay: float) -> None:
        one, other = self.unit_of[source], self.unit_of[target]
        # Edges within a loop do not order units.
        if one != other:
            # If several edges connect two units, the longest delay counts.
            self.after[one][other] = self.before[other][one] = max(delay, self.after[one].get(other, 0.0))

    def _sorted(self) -> list[int]:
        waits = [len(before) for before in self.before]
        order = [unit for unit, count in enumerate(waits) if not count]
        for unit in order:  # the list grows during the iteration
            for other in self.after[unit]:
                waits[other] -= 1
                if not waits[other]:
                    order.append(other)
        return order

    # -- times ---------------------------------------------------------------------------------------------------------

    def earliest(self) -> list[float]:
        """Return for each unit its earliest start with unlimited parallelism on every device (ASAP)."""
        starts = [0.0] * len(self.members)
        for unit in self.order:
            ready = [starts[s] + self.seconds[s] + delay for s, delay in self.before[unit].items()]
            starts[unit] = max(ready, default=0.0)
        return starts

    def latest(self, end: float) -> list[float]:
        """Return for each unit its latest start for the step to finish by `end` (ALAP)."""
        starts = [0.0] * len(self.members)
        for unit in reversed(self.order):
            due = min((starts[t] - delay for t, delay in self.after[unit].items()), default=end)
            starts[unit] = due - self.seconds[unit]
        return starts

    @property
    def starts(self) -> list[float]:
        """By unit: its start if a device runs one unit at a time, the ready unit with least slack first.

        Units that take no time do not wait for a device.
        """
        if self._starts is None:
            self._starts = self._simulated()
        return self._starts

    def _simulated(self) -> list[float]:
        earliest = self.earliest()
        end = max((start + took for start, took in zip(earliest, self.seconds, strict=True)), default=0.0)
        # The slack: the delay after a unit's earliest start that does not delay the step.
        slack = [late - early for late, early in zip(self.latest(end), earliest, strict=True)]
        return _Devices(self, slack).run()

    def forecast(self) -> Forecast:
        """Return the predicted step."""
        starts = self.starts
        finishes = [start + took for start, took in zip(starts, self.seconds, strict=True)]
        end = max(finishes, default=0.0)
        return Forecast(end, self._peaks(starts, finishes, end))

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def roots(self) -> dict[tuple[str, Edge], tuple[str, Edge] | None]:
        """By output outside of loops: the output whose memory it shares; None if that is in memory anyway."""
        if self._roots is None:
            self._roots = self._found_roots()
        return self._roots

    def _found_roots(self) -> dict[tuple[str, Edge], tuple[str, Edge] | None]:
        roots: dict[tuple[str, Edge], tuple[str, Edge] | None] = {}
        for unit in self.order:
            for key in self.members[unit]:
                node = self.nodes[key]
                for port in range(len(node.outputs)):
                    here = (key[0], Edge(node.name, port))
                    roots[here] = here if unit in self.loops else self._root(key[0], node, here, roots)
        return roots

    def _root(
        self,
        device: str,
        node: Node,
        here: tuple[str, Edge],
        roots: Mapping[tuple[str, Edge], tuple[str, Edge] | None],
    ) -> tuple[str, Edge] | None:
        traits = traits_of(node.op)
        origin = traits.origin(here[1].port)
        if traits.is_resident:
            return None
        if origin is not None and origin < len(node.inputs):
            return roots.get((device, node.inputs[origin]), here)
        send = self.sends.get(node.attrs["tensor_name"]) if node.op == RECV else None
        # CPUs of one process share the sender's buffer, so the arrival of a resident value takes no further memory.
        if send is not None and share_memory(send[0], device):
            sent = (send[0], self.nodes[send].inputs[0])
            return None if roots.get(sent, sent) is None else here
        return here

    def _peaks(self, starts: Sequence[float], finishes: Sequence[float], end: float) -> dict[str, int]:
        """Return the peak bytes of each device.

        A value lives from the start of its node to the end of its last reader, a fetched one to `end`. A received value
        lives from when it was sent.
        """
        roots = self.roots
        lives: dict[tuple[str, Edge], list[float]] = {}
        for here, root in roots.items():
            if root == here:
                begin = self._begin((here[0], here[1].node), starts, finishes)
                lives[here] = [begin, finishes[self.unit_of[here[0], here[1].node]]]
        for key, node in self.nodes.items():
            until = end if node.op == RETVAL else finishes[self.unit_of[key]]
            for edge in node.inputs:
                root = roots[key[0], edge]
                if root is not None:
                    lives[root][1] = max(lives[root][1], until)
        changes: dict[str, list[tuple[float, int]]] = {device: [] for device, _ in self.nodes}
        for (device, edge), (begin, until) in lives.items():
            node = self.nodes[device, edge.node]
            # Only the values that leave a loop count.
            if self.unit_of[device, edge.node] not in self.loops or node.role is Role.EXIT:
                size = known_bytes(node.outputs[edge.port]) or 0
                changes[device] += [(begin, size), (until, -size)]
        return {device: _highest(found) for device, found in changes.items()}

    def _begin(self, key: NodeKey, starts: Sequence[float], finishes: Sequence[float]) -> float:
        node, unit = self.nodes[key], self.unit_of[key]
        send = self.sends.get(node.attrs["tensor_name"]) if node.op == RECV else None
        if send is not None:
            return finishes[self.unit_of[send]]
        return finishes[unit] if node.role is Role.EXIT else starts[unit]


class _Devices:
    """The devices with their ready units: one discrete event simulation without computation."""

    def __init__(self, timeline: Timeline, slack: Sequence[float]) -> None:
        self._timeline = timeline
        self._position = {unit: i for i, unit in enumerate(timeline.order)}
        self._slack = slack
        self._starts = [0.0] * len(slack)
        self._ready_at = [0.0] * len(slack)
        self._waits = [len(before) for before in timeline.before]
        self._events: list[tuple[float, int, bool, int]] = []  # (time, position, whether it ends, unit)
        self._queues: dict[str, list[tuple[float, int, int]]] = {device: [] for device in timeline.device}
        self._idle = dict.fromkeys(timeline.device, True)

    def run(self) -> list[float]:
        """Simulate to the end, and return the start of each unit."""
        for unit in self._timeline.order:
            if not self._waits[unit]:
                self._event(0.0, unit, False)
        while self._events:
            now = self._events[0][0]
            touched: dict[str, None] = {}
            # All events of one instant come first; then devices choose.
            while self._events and self._events[0][0] == now:
                _, _, ends, unit = heappop(self._events)
                touched[self._timeline.device[unit]] = None
                self._happen(unit, now, ends)
            for device in touched:
                if self._idle[device] and self._queues[device]:
                    _, _, unit = heappop(self._queues[device])
                    self._idle[device] = False
                    self._starts[unit] = now
                    self._event(now + self._timeline.seconds[unit], unit, True)
        return self._starts

    def _event(self, when: float, unit: int, ends: bool) -> None:
        # The position breaks ties, so that the prediction is reproducible.
        heappush(self._events, (when, self._position[unit], ends, unit))

    def _happen(self, unit: int, now: float, ends: bool) -> None:
        timeline = self._timeline
        if not ends and timeline.seconds[unit] > 0.0:
            heappush(self._queues[timeline.device[unit]], (self._slack[unit], self._position[unit], unit))
            return
        if ends:
            self._idle[timeline.device[unit]] = True
        else:
            self._starts[unit] = now
        for other, delay in timeline.after[unit].items():
            self._ready_at[other] = max(self._ready_at[other], now + delay)
            self._waits[other] -= 1
            if not self._waits[other]:
                self._event(self._ready_at[other], other, False)


def _highest(changes: Sequence[tuple[float, int]]) -> int:
    """Return the highest level. At equal times releases come before allocations."""
    levels = 0
    highest = 0
    for _, change in sorted(changes):
        levels += change
        highest = max(highest, levels)
    return highest
