"""Partition of a subgraph without branches and loops into tasks, and the strands that run them."""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.config import SessionConfig
from aioflow.graph.boundary import ARG
from aioflow.graph.traits import Role
from aioflow.memory.values import Value
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode
from aioflow.runtime.codegen import finish
from aioflow.runtime.driver import TaskProgram
from aioflow.runtime.fetched import Finisher, fetches_of
from aioflow.runtime.liveness import fed_values, is_small
from aioflow.runtime.strand import Capture, Strand
from aioflow.runtime.strand_code import StrandCode
from aioflow.runtime.tasks import Task, constant_values, split


class TaskGraph:
    """The tasks of a subgraph.

    Args:
        graph: The subgraph.
        bound: Its bound nodes.
        executor: The executor of the device.
        config: The settings of the session.
        capture: `BackendDevice.captured`, where the device supports it.

    Attributes:
        tasks: The tasks in topological order.
        strands: For each task its strand, or None if it is an async node.
    """

    def __init__(
        self,
        graph: ClientGraph,
        bound: Sequence[BoundNode],
        executor: Executor,
        config: SessionConfig,
        capture: Capture | None,
    ) -> None:
        self._graph = graph
        self._config = config
        self._feeds = {Edge(n.name, 0): int(n.attrs["index"]) for n in graph.nodes.values() if n.op == ARG}
        self._fetched = [fetch.inputs[0] for fetch in fetches_of(graph)]
        self._constants = constant_values(bound)
        self._fed = fed_values(graph, bound)
        self._guarded = {b.node.name for b in bound if b.guard and b.node.role is not Role.CONSTANT}
        self.tasks = split(graph, bound, self._constants)
        self.strands = [None if task.is_async else self._strand(task, executor, capture) for task in self.tasks]

    def _strand(self, task: Task, executor: Executor, capture: Capture | None) -> Strand:
        code = StrandCode(task, self._graph, self._constants, self._fed)
        sized: list[int] = []
        texts: list[int] = []
        # Only inputs whose size may vary enter the cost estimate.
        for position, edge in enumerate(task.inputs):
            spec = self._graph.spec(edge)
            if spec.dtype.np_dtype.hasobject:
                texts.append(position)
            elif spec.dims is None or None in spec.dims:
                sized.append(position)
        config = self._config
        return Strand(code, executor, config.inline_budget, (sized, texts), capture, config.max_value_bytes)

    def maybe_dead(self) -> list[int]:
        """Return the indices of the fetches that may be on a branch that is not taken."""
        return [i for i, edge in enumerate(self._fetched) if edge.node in self._guarded]

    def finishers(self) -> list[Finisher]:
        """Return the finisher of each fetch, or None; a fetched feed is returned unchanged."""
        owned = {edge for strand in self.strands if strand is not None for edge in strand.code.owned}
        owned.difference_update(e for task in self.tasks for e in task.inputs)  # another task read it and may keep it
        found: list[Finisher] = []
        for edge in self._fetched:
            found.append(None if edge in self._feeds else finish(self._graph.spec(edge).dims, edge in owned))
            owned.discard(edge)  # a second fetch of the same value is copied
        return found

    def wiring(self) -> tuple[list[int] | None, list[int] | None, tuple[Value, ...]]:
        """Return how a single strand connects to the feeds and fetches of the step.

        Returns:
            The indices of the feeds that are the strand's inputs; the positions of the fetches in (outputs, feeds,
            constants); and the constants. The first two are None if they are all feeds or all outputs, in order.
        """
        (task,) = self.tasks
        count = self._graph.feeds
        take = [self._feeds[e] for e in task.inputs]
        places = {e: i for i, e in enumerate(task.outputs)}
        places.update((e, len(task.outputs) + index) for e, index in self._feeds.items())
        places.update((e, len(task.outputs) + count + i) for i, e in enumerate(self._constants))
        give = [places[e] for e in self._fetched]
        return (
            # None spares every step a selection that changes nothing.
            None if take == list(range(count)) else take,
            None if give == list(range(len(task.outputs))) else give,
            tuple(self._constants.values()),
        )

    def program(self) -> TaskProgram:
        """Return the tasks as a program for the driver."""
        inside = {e for task in self.tasks for e in task.inputs}
        read = {e: i for e, i in self._feeds.items() if e in self._fetched or e in inside}
        between = (e for task in self.tasks for e in task.outputs)
        large = frozenset(e for e in between if not is_small(e, self._graph))
        return TaskProgram(
            self.tasks, self.strands, self._constants, read, self._fetched, self._fed, large, self._config
        )
