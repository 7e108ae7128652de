"""The bookkeeping that greedy and HEFT share: what has been decided, when it finishes, what has been sent where.

A node that takes no time and depends on nothing but such nodes, such as the handle of a variable, *floats*: there is
nothing to base a decision on, so it goes where it is first read (TensorFlow's placer does the same for sources with one
consumer). A group is decided once, at its first member that does not float.
"""

from __future__ import annotations

from typing import Final

from aioflow.compiler.place.problem import Problem
from aioflow.graph.boundary import ARG

__all__ = ["Assignment"]

_FLOATING: Final = -1


class Assignment:
    """Devices of nodes, as far as they are decided.

    Attributes:
        device: By node; negative where it is not decided.
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
        """Whether the node waits to be put where it is read. A feed does, always."""
        problem = self.problem
        if self.device[node] == problem.host:
            return True
        if not problem.free[node] or self._chosen[problem.group[node]] != _FLOATING:
            return False
        undecided = (_FLOATING, problem.host)
        return all(self.device[problem.source[tensor]] in undecided for tensor in problem.reads[node])

    def options(self, node: int) -> list[tuple[int, float, float]]:
        """(device, when everything has arrived there, seconds that the device is busy with it) for every device that
        the node may be on, in order of preference.
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
                    if not self._sent[device][tensor]:
                        busy += trips * problem.overhead[holder][device]
                if at > ready:
                    ready = at
            found.append((device, ready, busy))
        return found

    def put(self, node: int, device: int, finish: float) -> None:
        """Decide for a device. What floats and is read here comes along."""
        problem = self.problem
        self.device[node] = device
        self.finish[node] = finish
        self._chosen[problem.group[node]] = device
        sent = self._sent[device]
        for tensor in problem.reads[node]:
            source = problem.source[tensor]
            if self.device[source] == _FLOATING:
                self._settle(source, device)
            if self.device[source] != device:
                sent[tensor] = 1

    def placement(self) -> list[int]:
        """A device for every node, now that all have been seen: what still floats goes where its first reader is."""
        problem = self.problem
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
        """Where a floating node goes if it is wanted on `device`."""
        group = self.problem.group[node]
        chosen = self._chosen[group]
        if chosen != _FLOATING:
            return chosen
        feasible = self.problem.feasible[group]
        return device if device in feasible else feasible[0]

    def _settle(self, node: int, device: int) -> None:
        waiting = [node]
        while waiting:
            source = waiting.pop()
            if self.device[source] != _FLOATING:
                continue
            home = self._home(source, device)
            self._chosen[self.problem.group[source]] = self.device[source] = home
            waiting += [self.problem.source[tensor] for tensor in self.problem.reads[source]]
