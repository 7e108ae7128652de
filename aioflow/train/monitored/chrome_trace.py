"""A traced step in the format that chrome://tracing and Perfetto read (the "Trace Event Format")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aioflow.graph.graph import Graph
from aioflow.runtime.stats import NodeStats, StepStats

__all__ = ["chrome_trace"]


def chrome_trace(step_stats: Sequence[StepStats], graph: Graph | None = None) -> dict[str, Any]:
    """The trace as data for JSON: a process for each device, a thread for each thread, an event for each node.

    Args:
        graph: With it, arrows go from each node to those that read it. (What optimizations have made is not in it.)
    """
    placed = [_Placed(stats, process) for process, stats in enumerate(step_stats)]
    events = [event for device in placed for event in device.events()]
    if graph is not None:
        events += _arrows(placed, graph)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Placed:
    """The nodes of one device, with the numbers of its process and of its threads."""

    def __init__(self, stats: StepStats, process: int) -> None:
        self.device = stats.device
        self.nodes = stats.nodes
        self.process = process
        self._threads: dict[str, int] = {}
        for node in stats.nodes:
            self._threads.setdefault(node.thread, len(self._threads))

    def place(self, node: NodeStats) -> dict[str, int]:
        """Where a node is drawn."""
        return {"pid": self.process, "tid": self._threads[node.thread]}

    def events(self) -> Iterator[dict[str, Any]]:
        """Names of the process and its threads, and a bar for each node; times in microseconds."""
        yield {"ph": "M", "name": "process_name", "pid": self.process, "args": {"name": self.device}}
        for name, number in self._threads.items():
            yield {"ph": "M", "name": "thread_name", "pid": self.process, "tid": number, "args": {"name": name}}
        for node in self.nodes:
            yield {
                "ph": "X",
                "cat": "Op",
                "name": node.op,
                "ts": node.start * 1e6,
                "dur": node.duration * 1e6,
                "args": {"name": node.node, "op": node.op, "output_bytes": node.output_bytes},
                **self.place(node),
            }


def _arrows(placed: Sequence[_Placed], graph: Graph) -> Iterator[dict[str, Any]]:
    made = {node.node: (device, node) for device in placed for node in device.nodes}
    operations = {op.name: op for op in graph.get_operations()}
    number = 0
    for name, (reader_device, reader) in made.items():
        if name not in operations:
            continue
        for producer in dict.fromkeys(tensor.op.name for tensor in operations[name].inputs):
            if producer not in made:
                continue
            device, node = made[producer]
            arrow = {"cat": "DataFlow", "name": producer, "id": number}
            yield {"ph": "s", "ts": (node.start + node.duration) * 1e6, **arrow, **device.place(node)}
            yield {"ph": "t", "ts": reader.start * 1e6, **arrow, **reader_device.place(reader)}
            number += 1
