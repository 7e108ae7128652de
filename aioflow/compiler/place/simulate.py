"""The predicted step of a placement: a discrete event simulation without computation (whitepaper, 3.2.1).

A device runs one node at a time, in the order in which their inputs are complete. A tensor is sent once to each device
that reads it, as soon as it exists; its first reader there pays the receiving device's overhead. A node that takes no
time (an alias, a feed) waits only for its inputs. The nodes of a loop's body are simulated once, each with its time
over all iterations, and the back edge is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.problem import CONTROL_PORT, Problem, build_problem
from aioflow.graph.boundary import ARG
from aioflow.graph.opdef import traits_of


@dataclass(frozen=True, slots=True)
class Interval:
    """One node's execution, in seconds from the start of the step."""

    node: str
    op: str
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer of one tensor.

    Attributes:
        node: The node that makes it.
        port: The output of the node; negative for a control edge.
        source: The sending device.
        destination: The receiving device.
        size: Bytes.
        start: Seconds from the start of the step.
        finish: Seconds from the start of the step.
    """

    node: str
    port: int
    source: str
    destination: str
    size: float
    start: float
    finish: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A predicted step.

    Attributes:
        seconds: The duration of the step.
        timeline: By device: its nodes in the order in which they start.
        transfers: All transfers except those of feeds, in the order in which they start.
        peak_bytes: By device: the peak of the bytes held by outputs of nodes and by received copies.
    """

    seconds: float
    timeline: Mapping[str, tuple[Interval, ...]]
    transfers: tuple[Transfer, ...]
    peak_bytes: Mapping[str, int]


def simulate_placement(
    graph: ClientGraph, placement: Mapping[str, str], costs: CostModel, devices: Sequence[str] = ()
) -> Schedule:
    """Simulate the step in which every node has the given device.

    Args:
        graph: The graph.
        placement: The device of each node, by name.
        costs: The costs of nodes and transfers.
        devices: The order of the devices in the schedule; feeds come from the first, and devices without nodes may be
            listed. By default the order in which the graph names them.
    """
    devices = devices or list(dict.fromkeys(placement[name] for name in graph.nodes))
    numbers = {device: i for i, device in enumerate(devices)}
    problem = build_problem(graph, (), devices, costs)
    return simulate(problem, [numbers[placement[name]] for name in graph.nodes])


def makespan(problem: Problem, placement: Sequence[int]) -> float:
    """Return the duration of the step under a placement, in seconds."""
    return max(_Simulation(problem, placement).run().finish, default=0.0)


def simulate(problem: Problem, placement: Sequence[int]) -> Schedule:
    """Return the step under a placement in detail."""
    run = _Simulation(problem, placement).run()
    intervals: list[list[Interval]] = [[] for _ in problem.devices]
    for i in sorted(range(len(problem.nodes)), key=lambda n: (run.start[n], run.finish[n], n)):
        node = problem.nodes[i]
        intervals[placement[i]].append(Interval(node.name, node.op, run.start[i], run.finish[i]))
    transfers = [
        Transfer(
            problem.nodes[problem.source[tensor]].name,
            problem.port[tensor],
            problem.devices[run.holder[problem.source[tensor]]],
            problem.devices[device],
            problem.size[tensor],
            run.finish[problem.source[tensor]],
            arrival,
        )
        for (device, tensor), arrival in run.arrivals.items()
        if run.holder[problem.source[tensor]] != problem.host
    ]
    return Schedule(
        max(run.finish, default=0.0),
        {device: tuple(nodes) for device, nodes in zip(problem.devices, intervals, strict=True)},
        tuple(sorted(transfers, key=lambda t: (t.start, t.finish, t.node, t.port, t.destination))),
        dict(zip(problem.devices, _peaks(problem, placement, run), strict=True)),
    )


class _Simulation:
    """One simulation. `start` and `finish` are by node, `arrivals` by receiving device and tensor."""

    def __init__(self, problem: Problem, placement: Sequence[int]) -> None:
        self.problem = problem
        self.placement = placement
        feeds = [node.op == ARG for node in problem.nodes]
        self.holder = [problem.host if feed else device for feed, device in zip(feeds, placement, strict=True)]
        self.start = [0.0] * len(feeds)
        self.finish = [0.0] * len(feeds)
        self.arrivals: dict[tuple[int, int], float] = {}
        self._waits = list(problem.waits)
        # (time, node): the node's inputs are complete or, if it is running, it ends.
        self._events: list[tuple[float, int]] = []
        self._busy = [0.0] * len(feeds)
        self._running = [False] * len(feeds)
        self._queues: list[list[tuple[float, int]]] = [[] for _ in problem.devices]
        self._idle = [True] * len(problem.devices)

    def run(self) -> _Simulation:
        """Simulate to the end."""
        for node, count in enumerate(self._waits):
            if not count:
                self._arrive(node)
        events = self._events
        while events:
            now = events[0][0]
            # Devices with an event at this instant, which may choose their next node.
            touched = set()
            # All events of one instant come first; then idle devices choose.
            while events and events[0][0] == now:
                _, node = heappop(events)
                device = self.placement[node]
                if self._running[node]:
                    self._running[node] = False
                    self._idle[device] = True
                    self._end(node, now)
                # A node that takes time queues for its device; any other one ends at once.
                elif self._busy[node]:
                    heappush(self._queues[device], (now, node))
                else:
                    self.start[node] = now
                    self._end(node, now)
                touched.add(device)
            for device in touched:
                if self._idle[device] and self._queues[device]:
                    self._begin(device, now)
        return self

    def _begin(self, device: int, now: float) -> None:
        _, node = heappop(self._queues[device])
        self._idle[device] = False
        self._running[node] = True
        self.start[node] = now
        heappush(self._events, (now + self._busy[node], node))

    def _end(self, node: int, now: float) -> None:
        self.finish[node] = now
        for reader in self.problem.readers[node]:
            self._waits[reader] -= 1
            if not self._waits[reader]:
                self._arrive(reader)

    def _arrive(self, node: int) -> None:
        """Schedule the arrival of a node's inputs, all of which exist, and compute how long it occupies its device."""
        problem, device = self.problem, self.placement[node]
        arrival = 0.0
        busy = problem.seconds[device][node]
        for tensor in problem.reads[node]:
            source = problem.source[tensor]
            at = self.finish[source]
            holder = self.holder[source]
            if holder != device:
                known = self.arrivals.get((device, tensor))
                if known is None:
                    trips = problem.trips[tensor]
                    at += (
                        trips * problem.latency[holder][device]
                        + problem.size[tensor] * problem.per_byte[holder][device]
                    )
                    busy += trips * problem.overhead[holder][device]
                    self.arrivals[device, tensor] = at
                else:
                    at = known
            arrival = max(arrival, at)
        self._busy[node] = busy
        heappush(self._events, (arrival, node))


def _peaks(problem: Problem, placement: Sequence[int], run: _Simulation) -> list[int]:
    """Return the peak of the bytes held on each device.

    An output lives from its node's start to the end of its last reader there, a copy from its arrival. Feeds, constants
    and variables exist anyway and do not count.
    """
    roots = _roots(problem)
    lives: dict[tuple[int, int], list[float]] = {}  # (device, root) → [from, to]
    for tensor, source in enumerate(problem.source):
        # Only tensors with memory of their own; others extend the lifetime of their root.
        if roots[tensor] == tensor:
            lives[placement[source], tensor] = [run.start[source], run.finish[source]]
    for node, device in enumerate(placement):
        for tensor in problem.reads[node]:
            root = roots[tensor]
            if root is None:
                continue
            arrival = run.arrivals.get((device, tensor))
            if arrival is not None:  # the sender holds the value until it has arrived
                sent = lives[run.holder[problem.source[tensor]], root]
                sent[1] = max(sent[1], arrival)
                lives.setdefault((device, root), [arrival, arrival])
            life = lives[device, root]
            life[1] = max(life[1], run.finish[node])
    changes: list[list[tuple[float, float]]] = [[] for _ in problem.devices]
    for (device, root), (begin, end) in lives.items():
        # `size` is that of all iterations, of which one is alive at a time.
        size = problem.size[root] / problem.trips[root]
        changes[device] += [(begin, size), (end, -size)]
    return [_highest(found) for found in changes]


def _roots(problem: Problem) -> list[int | None]:
    """Return for each tensor the tensor whose memory it shares; None if that memory does not count."""
    roots: list[int | None] = list(range(len(problem.source)))
    tensors = {(problem.nodes[problem.source[t]].name, problem.port[t]): t for t in range(len(roots))}
    # In the order of the nodes, so that the root of an origin is known before it is needed.
    for tensor in sorted(range(len(roots)), key=problem.source.__getitem__):
        node = problem.nodes[problem.source[tensor]]
        traits = traits_of(node.op)
        origin = traits.origin(problem.port[tensor])
        if traits.is_resident or problem.port[tensor] == CONTROL_PORT:
            roots[tensor] = None
        elif origin is not None and origin < len(node.inputs):
            shared = tensors.get((node.inputs[origin].node, node.inputs[origin].port))
            roots[tensor] = None if shared is None else roots[shared]  # not a tensor: a constant, which exists anyway
    return roots


def _highest(changes: Sequence[tuple[float, float]]) -> int:
    """Return the highest level. At equal times releases come before allocations."""
    level = highest = 0.0
    for _, change in sorted(changes):
        level += change
        highest = max(highest, level)
    return round(highest)
