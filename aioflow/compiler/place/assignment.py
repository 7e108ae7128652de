"""State shared by the greedy and HEFT strategies: decided devices, finish times, and values already sent.

A node that takes no time and depends only on such nodes, such as the handle of a variable, *floats*: nothing favors a
device yet, so it goes where it is first read (TensorFlow's placer does the same for sources with one consumer). A group
is decided once, at its first member that does not float.
"""

from __future__ import annotations

from typing import Final

from aioflow.compiler.place.problem import Problem
from aioflow.graph.boundary import ARG

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
