"""Reports of a run: the time of every node, the graphs that it ran, and the first result that is not finite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from aioflow.compiler.ir import Plan
from aioflow.concurrency.forking import not_forked
from aioflow.errors import InvalidArgumentError
from aioflow.memory.values import Value
from aioflow.runtime.bind import BoundNode

Report: TypeAlias = Callable[[BoundNode, Sequence[Value]], None]


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The measurements of one node in one step.

    Attributes:
        node: The name of the node.
        op: The name of its op.
        thread: The name of the thread that ran it.
        start: Seconds since the start of the step; on a cluster, since the client began it, by the client's clock.
        duration: Seconds; for a node of a strand, since the end of the node before it.
        output_bytes: Size of its outputs.
    """

    node: str
    op: str
    thread: str
    start: float
    duration: float
    output_bytes: int


@dataclass(frozen=True, slots=True)
class StepStats:
    """All nodes of one step on one device, in the order in which they finished."""

    device: str
    nodes: tuple[NodeStats, ...]


class RecordedSteps(list[StepStats]):
    """The records of the devices of one step; `dev_stats` has them as TensorFlow's messages."""

    @property
    def dev_stats(self) -> Any:
        """The records as `DeviceStepStats` messages, whose `node_stats` have times in microseconds."""
        return _messages().step_stats_message(self).dev_stats


class RunMetadata:
    """The records of the last run that it was passed to; empty if `RunOptions` of that run did not request them.

    Args:
        step_stats: Records of a step, for functions that read them.
    """

    def __init__(self, step_stats: Iterable[StepStats] = ()) -> None:
        self.step_stats = step_stats
        self._plan: Plan | None = None
        self._with_graphs = False

    def __repr__(self) -> str:
        return f"RunMetadata(step_stats={self._step_stats!r})"

    @property
    def step_stats(self) -> RecordedSteps:
        """The time of every node, device by device. `dev_stats` of it has them as TensorFlow's messages."""
        return self._step_stats

    @step_stats.setter
    def step_stats(self, records: Iterable[StepStats]) -> None:
        self._step_stats = RecordedSteps(records)

    @property
    def partition_graphs(self) -> list[Any]:
        """The graph of every device as it ran, as a `GraphDef` message; for `RunOptions(output_partition_graphs=True)`.

        It has the optimized nodes. Attributes without a stored form, such as programs of fused nodes, are left out.
        """
        graphs = () if self._plan is None or not self._with_graphs else self._plan.by_device()
        return [_messages().graph_message(device, graph) for device, graph in graphs]

    @property
    def cost_graph(self) -> Any:
        """The nodes of a traced run as a `CostGraphDef` message, with measured times in microseconds, and sizes."""
        graphs = () if self._plan is None or not self._step_stats else self._plan.by_device()
        return _messages().cost_message(graphs, self._step_stats)

    def SerializeToString(self) -> bytes:
        """Return the bytes of TensorFlow's `RunMetadata` message with these records."""
        data: bytes = _messages().serialized(self)
        return data

    def record(self, step_stats: Iterable[StepStats] = (), plan: Plan | None = None, with_graphs: bool = False) -> None:
        """Replace the records with those of a run: its node times and its plan, of which `with_graphs` shows graphs."""
        self.step_stats = step_stats
        self._plan = plan
        self._with_graphs = with_graphs


def _messages() -> Any:
    """Return the module that makes messages. It imports this one, and is loaded with the first use."""
    # In a child forked during the import, the module's lock would stay locked.
    with not_forked():
        return import_module("aioflow.runtime.run_metadata_messages")


class TraceProbe:
    """A probe that records the time of every node.

    Args:
        clock: Returns seconds.

    Attributes:
        origin: Start of the step, by that clock.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.origin = clock()
        self._nodes: dict[str, list[NodeStats]] = {}

    def begin(self) -> Report:
        """Return the reporter for the nodes of a task that starts now."""
        thread = threading.current_thread().name
        last = self._clock() - self.origin

        def report(bound: BoundNode, outputs: Sequence[Value]) -> None:
            nonlocal last
            now = self._clock() - self.origin
            size = sum(getattr(value, "nbytes", 0) for value in outputs)
            stats = NodeStats(bound.node.name, bound.node.op, thread, last, now - last, size)
            self._nodes.setdefault(bound.node.device, []).append(stats)
            # Read the clock again, so that the next node does not include the reporting.
            last = self._clock() - self.origin

        return report

    def add(self, step_stats: Iterable[StepStats], origin: float) -> None:
        """Add the records of another worker for the same step.

        Args:
            step_stats: The records.
            origin: Start of the step there, by the clock of this probe.
        """
        # Seconds by which that worker began the step after the client.
        later = origin - self.origin
        for stats in step_stats:
            moved = (replace(node, start=node.start + later) for node in stats.nodes)
            self._nodes.setdefault(stats.device, []).extend(moved)

    def stats(self) -> list[StepStats]:
        """Return the records, device by device."""
        return [StepStats(device, tuple(self._nodes[device])) for device in sorted(self._nodes)]


class FiniteProbe:
    """A probe that raises InvalidArgumentError at the first floating-point or complex result with NaN or infinity.

    All results are first passed to `trace`, if any.
    """

    def __init__(self, trace: TraceProbe | None = None) -> None:
        self.trace = trace

    def begin(self) -> Report:
        """Return the reporter for the nodes of a task that starts now."""
        inner = None if self.trace is None else self.trace.begin()

        def report(bound: BoundNode, outputs: Sequence[Value]) -> None:
            if inner is not None:
                inner(bound, outputs)
            _check_finite(bound, outputs)

        return report


def _check_finite(bound: BoundNode, outputs: Sequence[Any]) -> None:
    for port, (value, spec) in enumerate(zip(outputs, bound.node.outputs, strict=True)):
        if not (spec.dtype.is_floating or spec.dtype.is_complex) or np.isfinite(value).all():
            continue
        found = "NaN" if np.isnan(value).any() else "infinity"
        raise InvalidArgumentError(
            f"output {port} is not finite", expected="finite values (SessionConfig.check_finite)", actual=found
        ).at(bound.node.name, bound.node.op, bound.node.source)
