"""The greedy placement of the whitepaper (3.2.1): simulate the step, and place each node where it finishes first.

Nodes are processed in the order in which they become ready. For each, every feasible device is tried: the node starts
when the device is idle and its inputs have arrived. The device with the earliest finish wins, the preferred one on a
tie. The first member of a group that does not float decides for the group.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from aioflow.compiler.place.assignment import Assignment
from aioflow.compiler.place.problem import Problem


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
