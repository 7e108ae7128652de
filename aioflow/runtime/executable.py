"""A registered subgraph of one device, ready to run, in one of four forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.compiler.optimize.passes import around_delegation, chosen_passes
from aioflow.concurrency.stopping import value_limit
from aioflow.config import SessionConfig
from aioflow.errors import InternalError
from aioflow.formats.allowed_folders import ANYWHERE, AllowedFolders
from aioflow.graph.boundary import ARG, RECV
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.kernels.registry import ArrayBackend
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.collector import let_go
from aioflow.memory.values import Value
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import BoundNode, bind_graph
from aioflow.runtime.bodies import Body
from aioflow.runtime.branches import raise_branches
from aioflow.runtime.codegen import finish
from aioflow.runtime.dataflow import Dataflow
from aioflow.runtime.driver import Driver, TaskProgram, TaskRun
from aioflow.runtime.fetched import Fetched, Finisher, copying, fetches_of
from aioflow.runtime.folding import fold
from aioflow.runtime.handing_over import Unfinished
from aioflow.runtime.liveness import fed_values, is_small
from aioflow.runtime.loop_raising import raise_loops
from aioflow.runtime.reference import ReferenceExecutor
from aioflow.runtime.step import Step
from aioflow.runtime.strand import Capture, Strand
from aioflow.runtime.strand_code import StrandCode
from aioflow.runtime.tasks import Task, constant_values, split

# ── tasks of a subgraph without branches and loops, and the strands that run them ─────────────────────────────────────


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


# ── the executable ────────────────────────────────────────────────────────────────────────────────────────────────────
#
# - One strand: a step is a function call.
# - Several tasks: a driver runs them.
# - Tagged dataflow: for branches and loops that cannot be raised to structured control flow within strands.
# - Node by node: for any subgraph. This form defines the results of the other three.


class Executable(ABC):
    """The executable of one device's subgraph. `run` may be called concurrently any number of times.

    Args:
        graph: The subgraph as it was registered.
        fetched: Its fetches.
        config: The settings of the session.

    Attributes:
        feeds: Number of feeds of the whole step.
        fetch_indices: Indices of the returned values among the step's fetches, in the order of return.
        changes: Whether a run changes state that is visible outside without notifying its step at that moment.
        limit: `SessionConfig.max_value_bytes`.
    """

    def __init__(self, graph: ClientGraph, fetched: Fetched, config: SessionConfig) -> None:
        self.feeds = graph.feeds
        self.fetch_indices = fetched.indices
        # Assumed until `make_executable` has examined the nodes.
        self.changes = True
        self.limit = config.max_value_bytes
        self._fetched = fetched

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | Unfinished | None:
        """Return the fetches if the whole step is short enough to run in the calling thread, otherwise None.

        An `Unfinished` holds fetches of which large copies remain to be made.
        """
        return None

    @property
    def is_callable(self) -> bool:
        """True if `call` is available."""
        return False

    def is_brief(self, feeds: Sequence[Value]) -> bool:
        """Return whether the step is certainly short enough for `run_brief`."""
        return False

    def run_brief(self, feeds: Sequence[Value], step: Step) -> list[Value] | Unfinished:
        """Run a step for which `is_brief` is true and return its fetches. Raises like `run`."""
        raise InternalError("not a brief step")

    def call(self, feeds: Sequence[Value], step: Step | None) -> list[Value]:
        """Run in this thread as a part of `step`, and return the fetched values, which may have other holders.

        Raises like `run`.
        """
        raise InternalError("a body that is called has branches, loops, or nodes that wait")

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the fetches in order.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        # Set before the run: if the step fails halfway, some of its changes may have been made.
        step.changed = step.changed or self.changes
        if self.limit is None:
            fetches = self._fetched.hand_over(await self._values(feeds, step))
        else:
            with value_limit(self.limit):
                fetches = self._fetched.hand_over(await self._values(feeds, step))
        return fetches if isinstance(fetches, list) else await fetches.finish(step)

    @abstractmethod
    async def _values(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the fetched values in order, which may have other holders. Raises like `run`."""


class PlainExecutable(Executable):
    """The reference executor of a subgraph: node by node, in any order that the graph allows."""

    def __init__(
        self, graph: ClientGraph, bound: Sequence[BoundNode], executor: Executor, config: SessionConfig
    ) -> None:
        super().__init__(graph, Fetched(graph, config, copying(graph)), config)
        self._reference = ReferenceExecutor(graph, bound, executor)

    async def _values(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        return await self._reference.run(feeds, step)


class FlowExecutable(Executable):
    """Tagged dataflow, for branches and loops in primitive form.

    Args:
        graph: The subgraph, in which some loops may be raised.
        bound: The nodes of `graph`.
        executor: The executor of the device.
        config: The settings of the session.
        fetched: The fetches of the subgraph as it was registered.
    """

    def __init__(
        self,
        graph: ClientGraph,
        bound: Sequence[BoundNode],
        executor: Executor,
        config: SessionConfig,
        fetched: Fetched,
    ) -> None:
        super().__init__(graph, fetched, config)
        self._flow = Dataflow(graph, bound, executor, config.inline_budget, config.max_value_bytes)

    async def _values(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        return await self._flow.run(feeds, step)


class StrandExecutable(Executable):
    """A subgraph that is a single strand."""

    def __init__(
        self, graph: ClientGraph, fetched: Fetched, config: SessionConfig, strand: Strand, cut: TaskGraph
    ) -> None:
        super().__init__(graph, fetched, config)
        self._strand = strand
        self._take, self._give, self._constants = cut.wiring()

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | Unfinished | None:
        """Return the fetches if the strand is expected to stay within the inline budget, otherwise None."""
        outputs = self._strand.try_inline(self._taken(feeds))
        return None if outputs is None else self._fetched.hand_over(self._given(outputs, feeds))

    def is_brief(self, feeds: Sequence[Value]) -> bool:
        """Return whether the step is certainly short enough for `run_brief`."""
        return self._strand.is_brief(self._taken(feeds))

    def run_brief(self, feeds: Sequence[Value], step: Step) -> list[Value] | Unfinished:
        """Run a brief step and return its fetches; the strand may send values to other parts of the step."""
        outputs = self._strand.try_inline(self._taken(feeds), step)
        if outputs is None:
            raise InternalError("a brief step was not run")
        return self._fetched.hand_over(self._given(outputs, feeds))

    @property
    def is_callable(self) -> bool:
        """True if `call` is available."""
        return True

    def call(self, feeds: Sequence[Value], step: Step | None) -> list[Value]:
        """Run the strand in this thread as a part of `step`, and return the fetched values."""
        return self._given(self._strand.call(self._taken(feeds), step), feeds)

    async def _values(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        return self._given(await self._strand.run(self._taken(feeds), step), feeds)

    def _taken(self, feeds: Sequence[Value]) -> Sequence[Value]:
        return feeds if self._take is None else [feeds[i] for i in self._take]

    def _given(self, outputs: tuple[Value, ...], feeds: Sequence[Value]) -> list[Value]:
        if self._give is None:
            # A list, because `Fetched.hand_over` replaces values in place.
            return list(outputs)
        pool = (*outputs, *feeds, *self._constants)
        return [pool[i] for i in self._give]


class TasksExecutable(Executable):
    """Several tasks, alone or together with those of other devices.

    Attributes:
        program: The tasks.
    """

    def __init__(self, graph: ClientGraph, fetched: Fetched, config: SessionConfig, cut: TaskGraph) -> None:
        super().__init__(graph, fetched, config)
        self.program = cut.program()

    async def _values(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        run = self.program.begin(feeds)
        await Driver(step).run([run])
        return self._ended(run)

    def results(self, run: TaskRun) -> list[Value] | Unfinished:
        """Return the fetches, in order, of a run of `program` that has ended."""
        return self._fetched.hand_over(self._ended(run))

    def _ended(self, run: TaskRun) -> list[Value]:
        values = self.program.fetches(run)
        run.values.clear()  # a value without another holder then needs no copy
        return values


def make_executable(
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: ResourceManager,
    state: dict[str, object],
    executor: Executor,
    config: SessionConfig,
    capture: Capture | None = None,
    alone: bool = True,
    folders: AllowedFolders = ANYWHERE,
) -> Executable:
    """Bind the kernels of a subgraph, and choose the form in which it runs.

    Args:
        graph: The subgraph.
        backend: The backend of the device.
        resources: The resources of the device.
        state: The state that nodes keep for the session.
        executor: The executor of the device.
        config: The settings of the session.
        capture: `BackendDevice.captured`, where the device supports it.
        alone: Whether the worker has no other subgraph of the step.
        folders: Folders in which the nodes may open files.

    Raises:
        UnimplementedError: there is no kernel for a node on this kind of device.
        InvalidArgumentError: a kernel cannot be bound to the attributes of its node.
    """
    made = _made(graph, backend, resources, state, executor, config, capture, alone, folders)
    # A body may run as a step of its own, so its nodes cannot notify the step around it.
    made.changes = any(
        node.changes and (node.body is not None or not traits_of(node.op).tells_step) for node in graph.nodes.values()
    )
    return made


def _made(
    graph: ClientGraph,
    backend: ArrayBackend,
    resources: ResourceManager,
    state: dict[str, object],
    executor: Executor,
    config: SessionConfig,
    capture: Capture | None,
    alone: bool,
    folders: AllowedFolders,
) -> Executable:
    def prepare(node: Node) -> Body:
        body = node.body
        if body is None:
            raise InternalError(f"node {node.name!r} has no body")
        settings = config
        if node.op == DELEGATED:  # not fused yet, for the engine's sake; only strands can be called
            body, settings = _fused(body, config), replace(config, executor="strands")
        made = make_executable(body, backend, resources, state, executor, settings, capture, True, folders)
        return Body(body, made)

    bound = bind_graph(graph, backend, resources, state, folders, prepare, reproducible=config.reproducible)
    if config.executor == "reference":
        return PlainExecutable(graph, bound, executor, config)
    # A strand cannot handle a received value that may be DEAD, only tagged dataflow can.
    dead_arrivals = any(n.op == RECV and n.attrs["maybe_dead"] for n in graph.nodes.values())
    before: list[BoundNode | Node] = list(bound)
    # Loops first: `raise_branches` leaves a graph unchanged that still contains a loop.
    lifted, bound = raise_loops(graph, bound)
    if not dead_arrivals:
        before += (*bound, *lifted.nodes.values())
        lifted, bound = raise_branches(lifted, bound)
    # Freed in batches: freeing the nodes of a large graph at once would block all threads for milliseconds.
    let_go(before)
    if dead_arrivals or any(traits_of(node.op).is_control_flow for node in lifted.nodes.values()):
        return FlowExecutable(lifted, bound, executor, config, Fetched(graph, config, copying(lifted)))
    cut = TaskGraph(lifted, bound, executor, config, capture)
    fetched = Fetched(graph, config, cut.finishers(), cut.maybe_dead())
    # Beside other subgraphs a single strand is still a task: one driver runs the tasks of all of them.
    strand = cut.strands[0] if alone and len(cut.tasks) == 1 else None
    if strand is not None:
        return StrandExecutable(lifted, fetched, config, strand, cut)
    return TasksExecutable(lifted, fetched, config, cut)


def _fused(graph: ClientGraph, config: SessionConfig) -> ClientGraph:
    """Return the graph after the passes that a step with delegated parts postpones."""
    _, later = around_delegation(chosen_passes(config.optimizations))
    found = graph
    for each in later:
        found = each.run(found, fold)
    is_constant = all(node.role in (Role.FEED, Role.FETCH, Role.CONSTANT) for node in found.nodes.values())
    # The passes may have folded the whole graph into constants.
    return graph if is_constant else found  # a strand needs a node to run
