"""A traced step in the format that Perfetto and chrome://tracing read (the "Trace Event Format").

A process is a task, a thread is a lane of one of its devices. Bars of a lane may only follow one another, so what waits
while something else runs in the same thread, as a Recv does, has lanes of its own. Times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from aioflow.compiler.partition import edge_of
from aioflow.graph.boundary import RECV, SEND
from aioflow.graph.device_spec import task_of
from aioflow.graph.graph import Graph
from aioflow.runtime.stats import NodeStats, RunMetadata, StepStats

__all__ = ["chrome_trace"]

_MICROSECONDS: Final = 1e6
_WITHIN: Final = 1e-3  # microseconds: an arrow ends so long before the end of its bar, to be inside of it
_SENDING: Final = 2e-9  # seconds that a value takes at least


def chrome_trace(step: RunMetadata | Sequence[StepStats], graph: Graph | None = None) -> dict[str, Any]:
    """The trace as data for JSON: a bar for each node, and an arrow from each Send to its Recv.

        metadata = aioflow.RunMetadata()
        await session.run(y, options=RunOptions(trace_level=RunOptions.FULL_TRACE), run_metadata=metadata)
        json.dump(aioflow.observe.chrome_trace(metadata), file)

    The clocks of tasks were compared when the step was traced, to what an answer takes, which may be more than a Send,
    so a task whose values would have come before they were sent is drawn later by as much.

    Args:
        step: What a run with `RunOptions(trace_level=FULL)` has recorded.
        graph: With it, arrows go from each node to those that read it, too; it has not what optimizations have made.
    """
    stats = step.step_stats if isinstance(step, RunMetadata) else step
    bars = _bars(_aligned(stats))
    transfers = list(_transfers(bars))
    sent = {id(target): source.start for _, source, target in transfers}
    drawn = [event for bar in bars for event in _events(bar, sent.get(id(bar), bar.start))]
    events = [*_names(bars), *drawn, *_arrows(transfers, "Transfer", 0)]
    if graph is not None:
        events += _arrows(_readers(bars, graph), "DataFlow", len(events))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


@dataclass(frozen=True, slots=True)
class _Bar:
    """A node, with where it is drawn."""

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


# -- time -------------------------------------------------------------------------------------------------------------


def _aligned(stats: Sequence[StepStats]) -> list[StepStats]:
    """The same with clocks by which each value is sent before it arrives, beginning at 0."""
    later = _shifts(stats)
    moved = [_moved(device, later[_task(device.device)]) for device in stats]
    first = min((node.start for device in moved for node in device.nodes), default=0.0)
    return [_moved(device, -first) for device in moved]


def _moved(device: StepStats, seconds: float) -> StepStats:
    return replace(device, nodes=tuple(replace(node, start=node.start + seconds) for node in device.nodes))


def _shifts(stats: Sequence[StepStats]) -> dict[str, float]:
    """By how many seconds each task is to be later: the least such that a Recv ends after its Send has begun.

    These are differences of the tasks' shifts with lower bounds, so the longest path to each task from any other is the
    answer (Bellman and Ford). Clocks that contradict one another, by their drift, leave some bound unmet.
    """
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
    for _ in later:
        for (source, target), least in bounds.items():
            if source != target:
                later[target] = max(later[target], later[source] + least)
    return later


def _task(device: str) -> str:
    return task_of(device) or device


# -- lanes ------------------------------------------------------------------------------------------------------------


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
    """The nodes by lanes, in each of which one follows the other."""
    lanes: dict[str, list[NodeStats]] = {}
    for node in sorted(nodes, key=lambda node: (node.start, node.start + node.duration)):
        base = f"{node.thread} - waits" if node.op == RECV else node.thread
        number, lane = 1, base
        while lane in lanes and lanes[lane][-1].start + lanes[lane][-1].duration > node.start:
            number += 1
            lane = f"{base} {number}"
        lanes.setdefault(lane, []).append(node)
    return lanes


# -- events -----------------------------------------------------------------------------------------------------------


def _names(bars: Sequence[_Bar]) -> Iterator[dict[str, Any]]:
    processes = {bar.process: _task(bar.device) for bar in bars}
    for number, name in sorted(processes.items()):
        label = name.strip("/").replace("/", " ")  # of a name with slashes Perfetto shows what is behind the last
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": label}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
    threads = {(bar.process, bar.thread): bar.lane for bar in bars}
    for order, ((process, thread), name) in enumerate(sorted(threads.items(), key=lambda item: (item[0][0], item[1]))):
        place = {"pid": process, "tid": thread}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": order}}


def _events(bar: _Bar, sent: float) -> Iterator[dict[str, Any]]:
    """A bar; of a Recv that began before its Send did, two: Perfetto takes the later of two bars for an arrow's end."""
    node, start, end = bar.node, bar.start, bar.start + bar.duration
    details = {"name": node.node, "op": node.op, "device": bar.device, "output_bytes": node.output_bytes}
    if start < sent < end:
        wait = {"ph": "X", "cat": "Wait", "name": f"{node.op} waits", "ts": start, "dur": sent - start}
        yield {**wait, **bar.place, "args": details}
        start = sent
    yield {"ph": "X", "cat": "Op", "name": node.op, "ts": start, "dur": end - start, **bar.place, "args": details}


def _arrows(pairs: Iterable[tuple[str, _Bar, _Bar]], kind: str, first: int) -> Iterator[dict[str, Any]]:
    """Arrows with numbers from `first`, from the middle of one bar, or what comes before, to the end of another."""
    for number, (name, source, target) in enumerate(pairs, first):
        arrow = {"cat": kind, "name": name, "id": number}
        end = target.start + target.duration - min(_WITHIN, target.duration / 2)
        begin = max(source.start, min(source.start + source.duration / 2, end))
        yield {"ph": "s", "ts": begin, **arrow, **source.place}
        yield {"ph": "f", "bp": "e", "ts": end, **arrow, **target.place}


def _transfers(bars: Sequence[_Bar]) -> Iterator[tuple[str, _Bar, _Bar]]:
    """Each Send with its Recv, in loops those of the same iteration."""
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
    """The nodes of that op: the edge of each and how often it has been there, its device, and the node."""
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
