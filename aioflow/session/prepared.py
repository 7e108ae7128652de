"""The compiled steps of a session, by signature. Each is compiled once, even if several callers wait for it.

A signature is the structure of the fetches with the keys of the feeds. The graph is append-only, so a step stays valid
when nodes are added; a change to an existing node (`Graph.mutations`) makes it stale.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from aioflow.compiler.ir import Plan, worth_a_thread
from aioflow.compiler.prune import StepRequest
from aioflow.concurrency.stopping import BoundedWork, OffloadToThread, doing
from aioflow.concurrency.threads import in_thread
from aioflow.config import SessionConfig
from aioflow.errors import SourceLine
from aioflow.graph.boundary import ARG
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph
from aioflow.memory.collector import full_collections_postponed, garbage_was_left
from aioflow.memory.values import Value
from aioflow.ops import nest
from aioflow.runtime.cluster import Cluster, RegisteredStep
from aioflow.session.fetches import Feeds, FetchMapper, convert_feeds, fed_tensors, feed_converter, fetch_key
from aioflow.session.planner import Meeting, Planner
from aioflow.session.tensor_handle import HandleOwner, TensorHandle

_LOGGER: Final = logging.getLogger("aioflow.placement")
_COMPILING: Final = 0.005  # maximum seconds of compilation on the event loop
_NAMED: Final = 3  # number of fetches and targets that a message names
_SAMPLES: Final = 5  # traced steps before a signature is placed again
_GROWTH_LIMIT: Final = 100  # consecutive compilations with a grown graph before a warning

Converters: TypeAlias = tuple[Callable[[Value], Value], ...]


class PreparedStep:
    """The compiled step of a signature: feed converters, the registered plan, and the structure of the result."""

    __slots__ = (
        "changes", "converters", "fetches", "made", "mutations", "registered", "request", "run_inline", "sampling",
        "single", "take",
    )  # fmt: skip

    def __init__(self, fetches: FetchMapper, request: StepRequest, mutations: int, sampling: TraceSampling) -> None:
        self.fetches = fetches
        # The function that makes the result, if it alone is enough (no copies and no conversion); else None.
        self.take = fetches.take if fetches.is_direct else None
        self.single = fetches.single is not None
        self.request = request
        self.mutations = mutations
        self.sampling = sampling

    def use(self, made: Plan, registered: RegisteredStep) -> None:
        """Switch to this plan."""
        self.made = made
        self.changes = any(part.changes for part in made.parts.values())
        self.registered = registered
        self.run_inline = registered.run_inline
        only_devices = _read_in_device_memory(made)
        self.converters: Converters = tuple(
            feed_converter(t, i in only_devices) for i, t in enumerate(self.request.feeds)
        )

    async def convert(self, fed: Sequence[Value]) -> list[Value]:
        """Convert the fed values to the dtypes and shapes of the feeds."""
        try:
            return convert_feeds(self.converters, fed)
        except OffloadToThread:
            return await self.convert_in_thread(fed)

    async def convert_in_thread(self, fed: Sequence[Value]) -> list[Value]:
        """Like `convert`, in a thread, for values that take too long to convert on the event loop, and handles."""
        fed = [await value.eval() if isinstance(value, TensorHandle) else value for value in fed]
        return await in_thread(convert_feeds, self.converters, fed, effects=False)

    def describe(self) -> str:
        """Return a description of the step for messages, with the names of its fetches and targets."""
        return described(self.request)

    async def give(self, values: list[Value]) -> Value:
        """Return the fetched values in the structure of the fetches."""
        return await self.fetches.give(values)


def described(request: StepRequest) -> str:
    """Return a description of the step for messages, with the names of its fetches and targets."""
    return f"the step for {names_of([*request.fetches, *request.targets])}"


def names_of(fetches: object) -> str:
    """Return the first few names in a structure of fetches."""
    names = [repr(getattr(leaf, "name", leaf)) for leaf in nest.flatten(fetches)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED]) or 'nothing'}{more}"


def _read_in_device_memory(plan: Plan) -> set[int]:
    """Return the indices of the feeds that only devices with their own memory read."""
    host: set[int] = set()
    devices: set[int] = set()
    for device, graph in plan.by_device():
        found = host if DeviceSpec.from_string(device).device_type == "CPU" else devices
        found.update(n.attrs["index"] for n in graph.nodes.values() if n.op == ARG)
    # A feed that the host reads, too, has to be a NumPy array.
    return devices - host


class TraceSampling:
    """Decides which steps of a signature are traced for the cost model, and when it is placed again.

    Args:
        after: Number of steps after which to place again, as `SessionConfig.replace_after`; 0 if there is no choice.
    """

    __slots__ = ("_after", "_every", "_steps")

    def __init__(self, after: int) -> None:
        self._after = after
        self._every = max(1, after // _SAMPLES)
        self._steps = 0

    def begin(self) -> bool:
        """Count a step and return True if it is to be traced. The first never is: it is slower than the others."""
        self._steps += 1
        return 1 < self._steps <= self._after and self._steps % self._every == 0

    def is_due(self) -> bool:
        """Return True if the signature is to be placed again, which is so after exactly one step."""
        return self._steps == self._after > 0


class StepCache:
    """The prepared steps of one session.

    Attributes:
        steps: Prepared steps by signature, oldest first; at most `SessionConfig.plan_cache_size`.
        handles: Makes the handles of tensors that the steps store.
    """

    def __init__(self, graph: Graph, cluster: Cluster, planner: Planner, session: int, config: SessionConfig) -> None:
        self.steps: dict[Hashable, PreparedStep] = {}
        self.handles: HandleOwner | None = None
        self._graph = graph
        self._cluster = cluster
        self._planner = planner
        self._session = session
        self._config = config
        # The event loop is part of the key, because a task cannot wait for a future of another loop.
        self._preparing: dict[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Future[PreparedStep]] = {}
        self._growth = _GrowthWatch(graph)
        cluster.on_move.append(self.drop)

    async def drop(self) -> None:
        """Forget all steps, here and on the workers, so that they are planned again."""
        dropped = list(self.steps.values())
        self.close()
        await _deregister(dropped)

    def close(self) -> None:
        """Forget all steps."""
        if self.steps:
            garbage_was_left()
        self.steps.clear()

    async def prepare(self, fetches: object, feeds: Feeds) -> PreparedStep:
        """Return the step of a signature. Compile it unless it is cached or a task of this loop is compiling it."""
        key = (fetch_key(fetches), *feeds)
        known = self.steps.get(key)
        if known is not None and known.mutations == self._graph.mutations:
            return known
        loop = asyncio.get_running_loop()
        while (running := self._preparing.get((loop, key))) is not None:
            # Not `await running`: it is cancelled at the end of the other compilation, which must not cancel this task.
            await asyncio.wait([running])
            prepared = self.steps.get(key)
            if prepared is not None and prepared.mutations == self._graph.mutations:
                return prepared
        turn: asyncio.Future[PreparedStep] = loop.create_future()
        self._preparing[loop, key] = turn
        try:
            prepared = await self._compile(fetches, feeds)
            # A hit does not come here, so only compilations count.
            self._growth.note()
            before = self.steps.pop(key, None)
            self.steps[key] = prepared
            await self._make_room([] if before is None else [before])
            return prepared
        except asyncio.CancelledError as error:
            error.add_note(f"aioflow: a step for {names_of(fetches)} was cancelled while it was being compiled")
            raise
        finally:
            del self._preparing[loop, key]
            turn.cancel()

    async def _make_room(self, stale: list[PreparedStep]) -> None:
        """Deregister stale steps, and evict the oldest beyond the cache size."""
        while len(self.steps) > self._config.plan_cache_size:
            stale.append(self.steps.pop(next(iter(self.steps))))
        if stale:
            garbage_was_left()
        await _deregister(stale)

    async def _compile(self, fetches: object, feeds: Feeds) -> PreparedStep:
        mutations = self._graph.mutations
        mapper = FetchMapper(self._graph, fetches, self.handles)
        fed = fed_tensors(self._graph, feeds)
        request = StepRequest(tuple(fed), tuple(mapper.tensors), tuple(mapper.targets))
        made = await planned(self._planner, request, self._graph.version)
        if self._config.log_device_placement:
            _log_placement(made)
        sampling = TraceSampling(self._config.replace_after if self._planner.chooses else 0)
        prepared = PreparedStep(mapper, request, mutations, sampling)
        prepared.use(made, await self._cluster.register(made, self._session, self._config))
        return prepared

    async def place_again(self, prepared: PreparedStep) -> None:
        """Replace the plan of a step if the measured costs predict a sufficient gain."""
        again = full_collections_postponed()(self._planner.plan_again)
        made = await in_thread(again, prepared.request, prepared.made, effects=False)
        # `plan_again` has kept the current plan: only its prediction is new.
        if made.parts is prepared.made.parts:
            prepared.made = made
            return
        registered = await self._cluster.register(made, self._session, self._config)
        # The step may have been evicted during registration, and its plan with it.
        if not any(known is prepared for known in list(self.steps.values())):
            await registered.deregister()
            return
        before = prepared.registered
        prepared.use(made, registered)
        await before.deregister()
        if self._config.log_device_placement:
            _log_placement(made)


async def _deregister(steps: Sequence[PreparedStep]) -> None:
    for prepared in steps:
        await prepared.registered.deregister()


async def planned(
    planner: Planner, request: StepRequest, nodes: int, asks: bool = True, meeting: Meeting | None = None
) -> Plan:
    """Return the plan of a step, compiled on the event loop if that is expected to be quick, else in a thread.

    Args:
        planner: Compiles the plan.
        request: The feeds, fetches and targets of the step.
        nodes: Number of nodes of the graph, which decides whether to try on the event loop.
        asks: As for `Planner.plan`.
        meeting: As for `Planner.plan`.
    """
    while True:
        plan = await _planned(planner, request, nodes, asks, meeting)
        # Another client may have placed a shared resource elsewhere meanwhile. Its choice stands, so plan again.
        if await planner.agree(plan, request):
            return plan


async def _planned(planner: Planner, request: StepRequest, nodes: int, asks: bool, meeting: Meeting | None) -> Plan:
    if not worth_a_thread(nodes):
        with suppress(OffloadToThread):
            # If this takes too long, a checkpoint raises OffloadToThread, and a thread makes the plan from the start.
            return doing(BoundedWork(seconds=_COMPILING), planner.plan, request, asks, meeting)
    return await in_thread(full_collections_postponed()(planner.plan), request, asks, meeting, effects=False)


class _GrowthWatch:
    """Warns if every run adds nodes: a graph that is built in a loop grows until memory is exhausted."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._version = graph.version
        self._count = 0

    def note(self) -> None:
        """Record that a step was compiled, and warn once the limit is reached."""
        grown = self._graph.version > self._version
        self._version = self._graph.version
        self._count = self._count + 1 if grown else 0
        if self._count == _GROWTH_LIMIT:
            operations = self._graph.get_operations()
            line: SourceLine | None = operations[-1].source if operations else None
            warnings.warn(
                f"the graph has grown before each of the last {_GROWTH_LIMIT} runs that had to be compiled; "
                f"nodes are being added in a loop at {line}. Build once, then run; `graph.finalize()` finds the place.",
                ResourceWarning,
                stacklevel=2,
            )


def _log_placement(plan: Plan) -> None:
    for device, node in plan.placed_nodes():
        _show("%s: (%s): %s", node.name, node.op, device)


def _show(message: str, *arguments: object) -> None:
    """Log a message that a setting requested. If logging is not configured, it goes to stderr."""
    if _LOGGER.hasHandlers():
        _LOGGER.info(message, *arguments)
    elif logging.lastResort is not None and logging.root.manager.disable < logging.INFO:
        # `logging` itself does so only for warnings and above.
        record = _LOGGER.makeRecord(_LOGGER.name, logging.INFO, __file__, 0, message, arguments, None)
        logging.lastResort.handle(record)
