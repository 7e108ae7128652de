"""Heterogeneous earliest finish time: the list scheduler of Topcuoglu, Hariri and Wu (IEEE TPDS 13, 2002).

Nodes are processed by *upward rank*, the length of the longest path from a node to the end at mean costs, so the nodes
that most others wait for come first. Each is placed where it finishes first, possibly in an idle gap of a device. HEFT
looks further ahead than greedy placement and takes longer to compute.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from aioflow.compiler.place.assignment import Assignment
from aioflow.compiler.place.problem import Problem

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
