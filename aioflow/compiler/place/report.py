"""The explanation of a placement: the placed graph with its predicted step, as text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.messages import Messages, messages
from aioflow.compiler.optimize.sinking import transposes
from aioflow.compiler.partition import partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.constraints import feasible_groups
from aioflow.compiler.place.cost_model import CostModel
from aioflow.compiler.place.placement import place
from aioflow.compiler.place.simulate import Interval, Schedule, Transfer, simulate_placement
from aioflow.compiler.place.strategies import Placement, choose
from aioflow.compiler.place.timeline_svg import byte_text, device_labels, draw_timeline, time_text
from aioflow.graph.device_spec import task_of

_NAMED: Final = 4  # transposes listed by name


@dataclass(frozen=True, slots=True)
class Explanation:
    """A placement with its predicted and its measured step time.

    Attributes:
        placement: The device of every node.
        schedule: The simulated step.
        unsplit_seconds: The prediction with everything on its first feasible device.
        messages: The messages of a step requested by a client in its own process; None if there is one task.
        measured_seconds: The measured step time, or None.
        transposes: The nodes that change a value's order of axes.
        is_optimized: Whether the nodes are those after optimization.
    """

    placement: Placement
    schedule: Schedule
    unsplit_seconds: float
    messages: Messages | None = None
    measured_seconds: float | None = None
    transposes: tuple[str, ...] = ()
    is_optimized: bool = True

    def __str__(self) -> str:
        return "\n".join([*self._summary(), "", *self._devices(), *self._transfers(), *self._messages()])

    def to_svg(self, title: str = "Placement and predicted step") -> str:
        """Return the predicted timeline as an SVG file."""
        return draw_timeline(self.schedule, title)

    def _summary(self) -> Iterator[str]:
        devices = len(self.schedule.timeline)
        seconds = self.schedule.seconds
        nodes = _counted(len(self.placement.devices), "node")
        counted = "after optimization" if self.is_optimized else "without optimization"
        yield f"{nodes} {counted}, on {_counted(devices, 'device')}, placed by {self.placement.strategy}"
        yield f"predicted step  {time_text(seconds)}"
        if self.measured_seconds is not None:
            yield f"measured step   {time_text(self.measured_seconds)}"
        yield f"without a split {time_text(self.unsplit_seconds)}"
        if self.transposes:
            more = ", …" if len(self.transposes) > _NAMED else ""
            yield f"transposes      {len(self.transposes)} ({', '.join(self.transposes[:_NAMED])}{more})"

    def _devices(self) -> Iterator[str]:
        for device, nodes in self.schedule.timeline.items():
            busy = sum(node.finish - node.start for node in nodes)
            share = busy / self.schedule.seconds if self.schedule.seconds else 0.0
            peak = byte_text(self.schedule.peak_bytes[device])
            number = _counted(len(nodes), "node")
            yield f"{device}: {number}, busy {time_text(busy)} ({share:.0%}), at most {peak} of outputs"
            yield from _node_lines(nodes)
            yield ""

    def _transfers(self) -> Iterator[str]:
        transfers = self.schedule.transfers
        yield f"{_counted(len(transfers), 'transfer')}, {byte_text(sum(transfer.size for transfer in transfers))}"
        labels = device_labels(list(self.schedule.timeline))
        for transfer in transfers:
            yield (
                f"  {transfer.start * 1e3:10.3f} {transfer.finish * 1e3:10.3f} ms  {byte_text(transfer.size):>8}  "
                f"{labels[transfer.source]} → {labels[transfer.destination]}  {_edge(transfer)}"
            )

    def _messages(self) -> Iterator[str]:
        if self.messages is not None:
            requests, values, answers = self.messages
            yield (
                f"{_counted(self.messages.total, 'message')} a step: {_counted(requests, 'request')}, "
                f"{_counted(values, 'value')} from task to task, {_counted(answers, 'answer')}"
            )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _node_lines(nodes: tuple[Interval, ...]) -> Iterator[str]:
    working = [node for node in nodes if node.finish > node.start]
    width = max((len(node.op) for node in working), default=0)
    for node in working:
        yield f"  {node.start * 1e3:10.3f} {node.finish * 1e3:10.3f} ms  {node.op:<{width}}  {node.node}"
    others = [node.node for node in nodes if node.finish <= node.start]
    if others:
        yield f"  nodes that take no time: {', '.join(others)}"


def _edge(transfer: Transfer) -> str:
    return f"^{transfer.node}" if transfer.port < 0 else f"{transfer.node}:{transfer.port}"


def explain(graph: ClientGraph, cluster: ClusterView, costs: CostModel, strategy: str = "auto") -> Explanation:
    """Place a graph and explain the result.

    Args:
        graph: The optimized graph.
        cluster: The devices that the plan may use.
        costs: The costs of nodes and transfers.
        strategy: A name in `STRATEGIES`, or "auto".

    Raises:
        InvalidArgumentError: no device satisfies a node's request, or the strategy is unknown.
        UnimplementedError: no device has a kernel for a node.
    """
    groups = feasible_groups(graph, cluster)
    placement = choose(graph, groups, cluster, costs, strategy)
    schedule = simulate_placement(graph, placement.devices, costs, cluster.devices)
    unsplit = choose(graph, groups, cluster, costs, "first").seconds
    # Only a step of several tasks has messages.
    several = len({task_of(device) for device in cluster.devices}) > 1
    plan = partition(place(graph, cluster, lambda *_: placement.devices)) if several else None
    return Explanation(
        placement, schedule, unsplit, None if plan is None else messages(plan), transposes=tuple(transposes(graph))
    )
