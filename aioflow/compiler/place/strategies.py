"""The placement strategies by name, and the choice among them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.problem import GroupLike, Problem, build_problem
from aioflow.compiler.place.simulate import makespan
from aioflow.errors import InvalidArgumentError
from aioflow.graph.boundary import ARG

# ── decided devices, finish times, and values already sent ────────────────────────────────────────────────────────────
#
# A node that takes no time and depends only on such nodes, such as the handle of a variable, *floats*: nothing favors a
# device yet, so it goes where it is first read (TensorFlow's placer does the same for sources with one consumer). A
# group is decided once, at its first member that does not float.


_FLOATING: Final = -1


class Assignment:
    """Devices of nodes, as far as they are decided.

    Attributes:
        problem: The placement problem.
        device: By node: its device; negative if undecided.
        finish: By node: when it finishes, in seconds from the start of the step.
    """

    __slots__ = ("_chosen", "_sent", "device", "finish", "problem")

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        feeds = [node.op == ARG for node in problem.nodes]
        self.device = [problem.host if is_feed else _FLOATING for is_feed in feeds]
        self.finish = [0.0] * len(problem.nodes)
        self._chosen = [feasible[0] if len(feasible) == 1 else _FLOATING for feasible in problem.feasible]
        self._sent = [bytearray(len(problem.source)) for _ in problem.devices]

    def floats(self, node: int) -> bool:
        """Return whether the node is placed where it is read. Always True for a feed."""
        problem = self.problem
        if self.device[node] == problem.host:
            return True
        if not problem.free[node] or self._chosen[problem.group[node]] != _FLOATING:
            return False
        # Feeds reach every device from the host, so they favor none.
        undecided = (_FLOATING, problem.host)
        return all(self.device[problem.source[tensor]] in undecided for tensor in problem.reads[node])

    def options(self, node: int) -> list[tuple[int, float, float]]:
        """Return the options for a node in order of preference, as (device, arrival, busy).

        `arrival` is the time at which all inputs are on the device, and `busy` the seconds that the node occupies it.
        """
        problem = self.problem
        group = problem.group[node]
        chosen = self._chosen[group]
        found = []
        for device in problem.feasible[group] if chosen == _FLOATING else (chosen,):
            ready = 0.0
            busy = problem.seconds[device][node]
            for tensor in problem.reads[node]:
                source = problem.source[tensor]
                at = self.finish[source]
                holder = self.device[source]
                if holder == _FLOATING:
                    holder = self._home(source, device)
                if holder != device:
                    trips = problem.trips[tensor]
                    at += (
                        trips * problem.latency[holder][device]
                        + problem.size[tensor] * problem.per_byte[holder][device]
                    )
                    # Each tensor is sent to a device once: only its first reader there pays the overhead.
                    if not self._sent[device][tensor]:
                        busy += trips * problem.overhead[holder][device]
                if at > ready:
                    ready = at
            found.append((device, ready, busy))
        return found

    def put(self, node: int, device: int, finish: float) -> None:
        """Place a node on a device, together with the floating nodes that it reads."""
        problem = self.problem
        self.device[node] = device
        self.finish[node] = finish
        self._chosen[problem.group[node]] = device
        sent = self._sent[device]
        for tensor in problem.reads[node]:
            source = problem.source[tensor]
            if self.device[source] == _FLOATING:
                self._choose(source, device)
            if self.device[source] != device:
                sent[tensor] = 1

    def placement(self) -> list[int]:
        """Return a device for every node. Nodes that still float go to the device of their first reader."""
        problem = self.problem
        # Backwards, so that a node's readers are placed before it.
        for node in range(len(problem.nodes) - 1, -1, -1):
            group = problem.group[node]
            if self._chosen[group] == _FLOATING:
                self._chosen[group] = self._home(node, self._first_reader_device(node))
        return [self._chosen[group] for group in problem.group]

    def _first_reader_device(self, node: int) -> int:
        problem = self.problem
        reader = problem.first_reader.get(node)
        if reader is None:
            reader = next(iter(problem.readers[node]), None)
        return _FLOATING if reader is None else self._chosen[problem.group[reader]]

    def _home(self, node: int, device: int) -> int:
        """Return the device of a floating node that is read on `device`."""
        group = self.problem.group[node]
        chosen = self._chosen[group]
        if chosen != _FLOATING:
            return chosen
        feasible = self.problem.feasible[group]
        return device if device in feasible else feasible[0]

    def _choose(self, node: int, device: int) -> None:
        # A floating node takes along the floating nodes that it reads.
        waiting = [node]
        while waiting:
            source = waiting.pop()
            if self.device[source] != _FLOATING:
                continue
            home = self._home(source, device)
            self._chosen[self.problem.group[source]] = self.device[source] = home
            waiting += [self.problem.source[tensor] for tensor in self.problem.reads[source]]


# ── greedy placement ──────────────────────────────────────────────────────────────────────────────────────────────────
#
# Nodes are processed in the order in which they become ready. For each, every feasible device is tried: the node starts
# when the device is idle and its inputs have arrived. The device with the earliest finish wins, the preferred one on a
# tie. The first member of a group that does not float decides for the group.


def greedy(problem: Problem) -> list[int]:
    """Return a device for every node."""
    assignment = Assignment(problem)
    finish = assignment.finish
    idle_from = [0.0] * len(problem.devices)
    waits = list(problem.waits)
    ready_at = [0.0] * len(problem.nodes)
    ready = [(0.0, node) for node, count in enumerate(waits) if not count]
    heapify(ready)
    while ready:
        _, node = heappop(ready)
        # A floating node is placed later, together with its first reader.
        if not assignment.floats(node):
            device, end, busy = -1, 0.0, 0.0
            for candidate, arrival, seconds in assignment.options(node):
                # A node that takes no time does not wait for the device.
                would_end = max(arrival, idle_from[candidate]) + seconds if seconds else arrival
                if device < 0 or would_end < end:
                    device, end, busy = candidate, would_end, seconds
            assignment.put(node, device, end)
            if busy:
                idle_from[device] = end
        for reader in problem.readers[node]:
            ready_at[reader] = max(ready_at[reader], finish[node])
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (ready_at[reader], reader))
    return assignment.placement()


# ── heterogeneous earliest finish time ────────────────────────────────────────────────────────────────────────────────
#
# Nodes are processed by *upward rank*, the length of the longest path from a node to the end at mean costs, so the
# nodes that most others wait for come first. Each is placed where it finishes first, possibly in an idle gap of a
# device. HEFT looks further ahead than greedy placement and takes longer to compute.


_NEVER: Final = float("inf")
_GAPS_TRIED: Final = 64  # a limit, so that a device with thousands of gaps does not make HEFT quadratic


def heft(problem: Problem) -> list[int]:
    """Return a device for every node."""
    assignment = Assignment(problem)
    gaps = [_Gaps() for _ in problem.devices]
    ranks = _upward_ranks(problem)
    # Ties are broken by the graph's order, so every node comes after its inputs.
    for node in sorted(range(len(problem.nodes)), key=lambda n: (-ranks[n], n)):
        if assignment.floats(node):
            continue
        device, start, busy = -1, 0.0, 0.0
        for candidate, arrival, seconds in assignment.options(node):
            would_start = gaps[candidate].earliest(arrival, seconds) if seconds else arrival
            if device < 0 or would_start + seconds < start + busy:
                device, start, busy = candidate, would_start, seconds
        assignment.put(node, device, start + busy)
        if busy:
            gaps[device].fill(start, start + busy)
    return assignment.placement()


def _upward_ranks(problem: Problem) -> list[float]:
    pairs = len(problem.devices) ** 2
    # The host's row is excluded: the mean is over pairs of devices, including each device with itself, at no cost.
    latency, per_byte, overhead = (
        sum([sum(row) for row in rows[:-1]]) / pairs for rows in (problem.latency, problem.per_byte, problem.overhead)
    )
    ranks = [0.0] * len(problem.nodes)
    for node in range(len(ranks) - 1, -1, -1):
        feasible = problem.feasible[problem.group[node]]
        # Its readers come later in the order, so `ranks[node]` holds their maximum, with the transfers, already.
        ranks[node] += sum([problem.seconds[device][node] for device in feasible]) / len(feasible)
        for tensor in problem.reads[node]:
            sending = problem.trips[tensor] * (latency + overhead) + problem.size[tensor] * per_byte
            source = problem.source[tensor]
            ranks[source] = max(ranks[source], sending + ranks[node])
    return ranks


class _Gaps:
    """The idle times of a device: disjoint intervals in order, the last one without end."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = [0.0]
        self._ends = [_NEVER]

    def earliest(self, arrival: float, seconds: float) -> float:
        """Return the earliest start: in one of the next gaps after `arrival`, or after all work of the device."""
        # A gap that ends before the arrival cannot be used.
        first, last = bisect_right(self._ends, arrival), len(self._ends) - 1
        for i in range(first, min(last, first + _GAPS_TRIED)):
            start = max(self._starts[i], arrival)
            if start + seconds <= self._ends[i]:
                return start
        return max(self._starts[last], arrival)

    def fill(self, start: float, end: float) -> None:
        """Mark an interval that was idle as busy."""
        i = bisect_right(self._starts, start) - 1
        before, after = (self._starts[i], start), (end, self._ends[i])
        # The interval splits the gap; a half without length vanishes.
        left = [gap for gap in (before, after) if gap[0] < gap[1]]
        self._starts[i : i + 1] = [gap[0] for gap in left]
        self._ends[i : i + 1] = [gap[1] for gap in left]


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A strategy assigns a device to every node; all results are rated by the same simulator.


# Seconds, measured on a machine of two cores with CPython 3.11: what HEFT takes per node and per node and device, and
# what the other stages from pruning to generated code take per node, for which the first step has to wait.
_HEFT_NODE: Final = 6e-6
_HEFT_NODE_AND_DEVICE: Final = 1.2e-6
_COMPILE_NODE: Final = 1.5e-4
_HEFT_SHARE: Final = 0.05
_WORTH_SPLITTING: Final = 0.05

PlacementStrategy: TypeAlias = Callable[[Problem, int], list[int]]


@dataclass(frozen=True, slots=True)
class Placement:
    """A device for every node.

    Attributes:
        devices: Full device name by node name.
        seconds: The predicted duration of a step.
        strategy: The name of the strategy that found the placement.
    """

    devices: Mapping[str, str]
    seconds: float
    strategy: str


def _first(problem: Problem, seed: int) -> list[int]:
    return [problem.feasible[group][0] for group in problem.group]


def _random(problem: Problem, seed: int) -> list[int]:
    source = random.Random(seed)
    chosen = [source.choice(feasible) for feasible in problem.feasible]
    return [chosen[group] for group in problem.group]


def _round_robin(problem: Problem, seed: int) -> list[int]:
    chosen = [feasible[(i + seed) % len(feasible)] for i, feasible in enumerate(problem.feasible)]
    return [chosen[group] for group in problem.group]


# By name. "random" and "round_robin" are baselines for comparison.
STRATEGIES: Final[Mapping[str, PlacementStrategy]] = {
    "first": _first,
    "greedy": lambda problem, _: greedy(problem),
    "heft": lambda problem, _: heft(problem),
    "random": _random,
    "round_robin": _round_robin,
}


def check_strategy(name: str) -> None:
    """Raise InvalidArgumentError if this is neither "auto" nor a name in `STRATEGIES`."""
    if name not in ("auto", *STRATEGIES):
        raise InvalidArgumentError(
            "unknown placement strategy", expected=f"one of {['auto', *STRATEGIES]}", actual=name
        )


def choose(
    graph: ClientGraph,
    groups: Sequence[GroupLike],
    cluster: ClusterView,
    costs: CostModel,
    strategy: str = "auto",
    seed: int = 0,
) -> Placement:
    """Return a device for every node of a graph.

    Args:
        graph: The graph.
        groups: Nodes that must share a device, with their feasible devices (`constraints.feasible_groups`).
        cluster: The devices that the plan may use.
        costs: The costs of nodes and transfers.
        strategy: A name in `STRATEGIES`, or "auto": see `choose_for`.
        seed: The seed for the strategies that use one.

    Raises:
        InvalidArgumentError: the strategy is unknown.
    """
    problem = build_problem(graph, groups, cluster.devices, costs)
    devices, seconds, winner = choose_for(problem, strategy, seed)
    names = [problem.devices[device] for device in devices]
    return Placement(dict(zip(graph.nodes, names, strict=True)), seconds, winner)


def choose_for(problem: Problem, strategy: str = "auto", seed: int = 0) -> tuple[list[int], float, str]:
    """Return the same as `choose`, in numbers: devices by node, predicted seconds, and the strategy.

    "auto" uses the better of greedy and HEFT; HEFT is tried only if `heft_is_affordable`. If the result gains less than
    5 % over the first feasible device for everything, that one is returned: predictions are not exact enough for a
    small gain to justify transfers.

    Raises:
        InvalidArgumentError: the strategy is unknown.
    """
    if strategy != "auto":
        check_strategy(strategy)
        devices = STRATEGIES[strategy](problem, seed)
        return devices, makespan(problem, devices), strategy
    unsplit = _first(problem, seed)
    alone = makespan(problem, unsplit)
    best, seconds, winner = choose_for(problem, "greedy")
    if heft_is_affordable(len(problem.nodes), len(problem.devices), seconds):
        other, other_seconds, _ = choose_for(problem, "heft")
        if other_seconds < seconds:
            best, seconds, winner = other, other_seconds, "heft"
    # A small predicted gain is within the error of the prediction.
    if seconds >= alone * (1.0 - _WORTH_SPLITTING):
        return unsplit, alone, "first"
    return best, seconds, winner


def heft_is_affordable(nodes: int, devices: int, step_seconds: float) -> bool:
    """Return whether HEFT costs less than 5 % of the first step.

    The first step is compiled and run: nodes x 150 µs + the predicted time of a step. HEFT takes about nodes x (6 µs +
    1.2 µs x devices). So it is tried if a step takes longer than nodes x 18 µs on two devices, nodes x 0.16 ms on
    eight. Only counts and predictions decide, not a clock, so the choice is reproducible.
    """
    cost = nodes * (_HEFT_NODE + _HEFT_NODE_AND_DEVICE * devices)
    return cost < _HEFT_SHARE * (nodes * _COMPILE_NODE + step_seconds)
