"""The paper's placement (whitepaper, 3.2.1): simulate the step, and put each node where it would finish first.

Nodes are taken in the order in which they become ready. For each, every feasible device is tried: the node starts when
the device is free and its inputs have been brought there, and the device on which it would end first gets it, the
preferred one of several. The first member that matters decides for its group.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from aioflow.compiler.place.assignment import Assignment
from aioflow.compiler.place.problem import Problem

__all__ = ["greedy"]


def greedy(problem: Problem) -> list[int]:
    """A device for every node."""
    assignment = Assignment(problem)
    finish = assignment.finish
    idle_from = [0.0] * len(problem.devices)
    waits = list(problem.waits)
    ready_at = [0.0] * len(problem.nodes)
    ready = [(0.0, node) for node, count in enumerate(waits) if not count]
    heapify(ready)
    while ready:
        _, node = heappop(ready)
        if not assignment.floats(node):
            device, end, busy = -1, 0.0, 0.0
            for candidate, arrival, seconds in assignment.options(node):
                # What takes no time does not wait for the device either.
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
