"""Traced steps in the format of Perfetto and chrome://tracing (the "Trace Event Format").

A process is a task, and a thread is a lane of one of its devices. The bars of a lane must not overlap. Nodes that wait
while other nodes run in the same thread, such as Recv, therefore have their own lanes. Times are in microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, TypeAlias

from aioflow.compiler.partition import edge_of
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.graph import Graph
from aioflow.runtime.stats import NodeStats, RunMetadata, StepStats

_MICROSECONDS: Final = 1e6
_WITHIN: Final = 1e-3  # microseconds by which an arrow ends before its bar does, so that it ends inside the bar
_SENDING: Final = 2e-9  # seconds: the least time that a transfer takes


TraceDocument: TypeAlias = dict[str, Any]  # an object of JSON


def chrome_trace(step: RunMetadata | Sequence[StepStats], graph: Graph | None = None) -> TraceDocument:
    """Return the trace as data for JSON: a bar for each node, and an arrow from each Send to its Recv.

        metadata = aioflow.RunMetadata()
        await session.run(y, options=RunOptions(trace_level=RunOptions.FULL_TRACE), run_metadata=metadata)
        json.dump(aioflow.observe.chrome_trace(metadata), file)

    Tracing compares the clocks of the tasks only to within the round-trip time, which may exceed the time of a Send. If
    the values of a task would arrive before they were sent, the task is therefore drawn later by the difference.

    Args:
        step: Records of a run with `RunOptions(trace_level=FULL)`.
        graph: If given, draw arrows from each node to its readers, too. Nodes that optimizations made are not in it.
    """
    stats = step.step_stats if isinstance(step, RunMetadata) else step
    bars = _bars(_aligned(stats))
    transfers = list(_transfers(bars))
    # By identity: two bars may be equal in all fields.
    sent = {id(target): source.start for _, source, target in transfers}
    drawn = [event for bar in bars for event in _events(bar, sent.get(id(bar), bar.start))]
    events = [*_names(bars), *drawn, *_arrows(transfers, "Transfer", 0)]
    if graph is not None:
        events += _arrows(_readers(bars, graph), "DataFlow", len(events))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


@dataclass(frozen=True, slots=True)
class _Bar:
    """A node and its place in the drawing."""

    device: str
    node: NodeStats
    process: int
    thread: int
    lane: str

    @property
    def start(self) -> float:
        return self.node.start * _MICROSECONDS

    @property
    def duration(self) -> float:
        return max(0.0, self.node.duration) * _MICROSECONDS

    @property
    def place(self) -> dict[str, int]:
        return {"pid": self.process, "tid": self.thread}


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _aligned(stats: Sequence[StepStats]) -> list[StepStats]:
    """Return the records with clocks shifted so that each value is sent before it arrives, starting at 0."""
    later = _shifts(stats)
    # One shift for all devices of a task, which share its clock.
    moved = [_moved(device, later[_task(device.device)]) for device in stats]
    first = min((node.start for device in moved for node in device.nodes), default=0.0)
    return [_moved(device, -first) for device in moved]


def _moved(device: StepStats, seconds: float) -> StepStats:
    return replace(device, nodes=tuple(replace(node, start=node.start + seconds) for node in device.nodes))


def _shifts(stats: Sequence[StepStats]) -> dict[str, float]:
    """Return the seconds by which to shift each task: the least for which each Recv ends after its Send began.

    The constraints are lower bounds on differences of shifts, so the longest path to each task solves them
    (Bellman-Ford). If the clocks contradict one another because of drift, some bound stays unmet.
    """
    # A task that receives nothing keeps its clock.
    later = {_task(device.device): 0.0 for device in stats}
    sent: dict[tuple[str, int], tuple[str, float]] = {}
    for edge, device, node in _ends(stats, SEND):
        sent[edge] = _task(device), node.start
    bounds: dict[tuple[str, str], float] = {}
    for edge, device, node in _ends(stats, RECV):
        if edge in sent:
            source, start = sent[edge]
            pair = source, _task(device)
            bounds[pair] = max(bounds.get(pair, -inf), start + _SENDING - node.start - node.duration)
    # As many rounds as tasks: the longest path has fewer edges.
    for _ in later:
        for (source, target), least in bounds.items():
            if source != target:
                later[target] = max(later[target], later[source] + least)
    return later


def _task(device: str) -> str:
    return task_of(device) or device


# ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bars(stats: Sequence[StepStats]) -> list[_Bar]:
    tasks = {task: number for number, task in enumerate(sorted({_task(device.device) for device in stats}), 1)}
    threads: dict[tuple[str, str], int] = {}
    found = []
    for device in stats:
        task = _task(device.device)
        short = device.device.removeprefix(task).removeprefix("/device:") or device.device
        for lane, nodes in _lanes(device.nodes).items():
            name = f"{short} - {lane}"
            number = threads.setdefault((task, name), len(threads) + 1)
            found += [_Bar(device.device, node, tasks[task], number, name) for node in nodes]
    return found


def _lanes(nodes: Iterable[NodeStats]) -> dict[str, list[NodeStats]]:
    """Return the nodes by lane, such that the nodes of a lane do not overlap."""
    lanes: dict[str, list[NodeStats]] = {}
    # By start, so that each lane's last bar is the one that may overlap.
    for node in sorted(nodes, key=lambda node: (node.start, node.start + node.duration)):
        base = f"{node.thread} - waits" if node.op == RECV else node.thread
        number, lane = 1, base
        # The first lane that is free at the start of the node.
        while lane in lanes and lanes[lane][-1].start + lanes[lane][-1].duration > node.start:
            number += 1
            lane = f"{base} {number}"
        lanes.setdefault(lane, []).append(node)
    return lanes


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _names(bars: Sequence[_Bar]) -> Iterator[TraceDocument]:
    processes = {bar.process: _task(bar.device) for bar in bars}
    for number, name in sorted(processes.items()):
        label = name.strip("/").replace("/", " ")  # Perfetto shows only what follows the last slash
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": label}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
    threads = {(bar.process, bar.thread): bar.lane for bar in bars}
    for order, ((process, thread), name) in enumerate(sorted(threads.items(), key=lambda item: (item[0][0], item[1]))):
        place = {"pid": process, "tid": thread}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": order}}


def _events(bar: _Bar, sent: float) -> Iterator[TraceDocument]:
    """Yield the bar of a node; two bars for a Recv that began before its Send."""
    node, start, end = bar.node, bar.start, bar.start + bar.duration
    details = {"name": node.node, "op": node.op, "device": bar.device, "output_bytes": node.output_bytes}
    # Perfetto attaches an arrow to the later of two bars at its end.
    if start < sent < end:
        wait = {"ph": "X", "cat": "Wait", "name": f"{node.op} waits", "ts": start, "dur": sent - start}
        yield {**wait, **bar.place, "args": details}
        start = sent
    yield {"ph": "X", "cat": "Op", "name": node.op, "ts": start, "dur": end - start, **bar.place, "args": details}


def _arrows(pairs: Iterable[tuple[str, _Bar, _Bar]], kind: str, first: int) -> Iterator[TraceDocument]:
    """Yield arrows, numbered from `first`, from the middle of one bar to the end of another.

    If the second bar ends before that middle, the arrow starts at that end, but not before the first bar.
    """
    for number, (name, source, target) in enumerate(pairs, first):
        arrow = {"cat": kind, "name": name, "id": number}
        end = target.start + target.duration - min(_WITHIN, target.duration / 2)
        begin = max(source.start, min(source.start + source.duration / 2, end))
        yield {"ph": "s", "ts": begin, **arrow, **source.place}
        yield {"ph": "f", "bp": "e", "ts": end, **arrow, **target.place}


def _transfers(bars: Sequence[_Bar]) -> Iterator[tuple[str, _Bar, _Bar]]:
    """Yield each Send with its Recv; in loops, those of the same iteration."""
    sent: defaultdict[str, list[_Bar]] = defaultdict(list)
    in_order = sorted(bars, key=lambda bar: bar.start)
    for bar in in_order:
        if bar.node.op == SEND:
            sent[edge_of(bar.node.node)].append(bar)
    taken: defaultdict[str, int] = defaultdict(int)
    for bar in in_order:
        edge = edge_of(bar.node.node)
        if bar.node.op == RECV and taken[edge] < len(sent[edge]):
            yield edge, sent[edge][taken[edge]], bar
            taken[edge] += 1


def _ends(stats: Iterable[StepStats], op: str) -> Iterator[tuple[tuple[str, int], str, NodeStats]]:
    """Yield the nodes of that op, each with its edge and the number of earlier nodes of that edge, and its device."""
    times: defaultdict[str, int] = defaultdict(int)
    for device in stats:
        for node in device.nodes:
            if node.op == op:
                edge = edge_of(node.node)
                yield (edge, times[edge]), device.device, node
                times[edge] += 1


def _readers(bars: Sequence[_Bar], graph: Graph) -> Iterator[tuple[str, _Bar, _Bar]]:
    made: Mapping[str, _Bar] = {bar.node.node: bar for bar in bars}
    operations = {op.name: op for op in graph.get_operations()}
    for name, reader in made.items():
        if name not in operations:
            continue
        for producer in dict.fromkeys(tensor.op.name for tensor in operations[name].inputs):
            if producer in made:
                yield producer, made[producer], reader
