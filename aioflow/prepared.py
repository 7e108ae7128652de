"""The compiled steps of a session, by signature: each is compiled once, however many callers wait for it.

A signature is the structure of the fetches with the keys of the feeds. The graph is append-only, so a step stays valid
when nodes are added; a change to an existing node (`Graph.mutations`) makes it stale.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from aioflow.compiler.ir import Plan
from aioflow.compiler.prune import StepRequest
from aioflow.config import SessionConfig
from aioflow.errors import SourceLine
from aioflow.fetches import FetchPlan, fed_tensors, feed_converter, fetch_key
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph
from aioflow.planner import Planner
from aioflow.runtime.cluster import Cluster, RunnablePlan

__all__ = ["PreparedStep", "StepCache"]

_LOGGER: Final = logging.getLogger("aioflow.placement")
_LARGE_GRAPH: Final = 256  # nodes: a larger graph is compiled in a thread, so that the loop goes on
_SAMPLES: Final = 5  # traced steps before a signature is placed again
_GROWTH_LIMIT: Final = 100  # new steps in a row for which the graph had grown

Converters = tuple[Callable[[Any], Any], ...]


class PreparedStep:
    """A signature that has been compiled: how to convert its feeds, what to run, how to give the result back."""

    __slots__ = ("converters", "made", "mutations", "plan", "request", "run_inline", "sampling", "single", "take")

    def __init__(self, fetches: FetchPlan, request: StepRequest, mutations: int, sampling: Sampling) -> None:
        self.take = fetches.take
        self.single = fetches.single is not None
        self.request = request
        self.mutations = mutations
        self.sampling = sampling

    def use(self, made: Plan, plan: RunnablePlan) -> None:
        """Run by this plan from now on."""
        self.made = made
        self.plan = plan
        self.run_inline = plan.run_inline
        on_cards = _read_on_cards(made)
        self.converters: Converters = tuple(feed_converter(t, i in on_cards) for i, t in enumerate(self.request.feeds))


def _read_on_cards(plan: Plan) -> set[int]:
    """The feeds, by index, that only devices with memory of their own read."""
    host: set[int] = set()
    cards: set[int] = set()
    for part in plan.parts.values():
        for device, graph in part.subgraphs.items():
            found = host if DeviceSpec.from_string(device).device_type == "CPU" else cards
            found.update(n.attrs["index"] for n in graph.nodes.values() if n.op == "_Arg")
    return cards - host


class Sampling:
    """Which steps of a signature are traced for their costs, and when it is placed again.

    Args:
        after: As `SessionConfig.replace_after`; 0 where there is nothing to choose.
    """

    __slots__ = ("_after", "_every", "_steps")

    def __init__(self, after: int) -> None:
        self._after = after
        self._every = max(1, after // _SAMPLES)
        self._steps = 0

    def begin(self) -> bool:
        """A step begins: whether to trace it. The first is not traced: it is slower than all others."""
        self._steps += 1
        return 1 < self._steps <= self._after and self._steps % self._every == 0

    def is_due(self) -> bool:
        """Whether the signature is to be placed again now; true once."""
        return self._steps == self._after > 0


class StepCache:
    """The prepared steps of one session.

    Attributes:
        steps: By signature, the oldest first; at most `SessionConfig.plan_cache_size` of them.
    """

    def __init__(self, graph: Graph, cluster: Cluster, planner: Planner, session: int, config: SessionConfig) -> None:
        self.steps: dict[Hashable, PreparedStep] = {}
        self._graph = graph
        self._cluster = cluster
        self._planner = planner
        self._session = session
        self._config = config
        self._preparing: dict[Hashable, asyncio.Future[PreparedStep]] = {}
        self._growth = _GrowthWatch(graph)

    async def prepare(self, fetches: Any, feeds: Mapping[Any, Any]) -> PreparedStep:
        """The step of a signature: compile it, unless it is known, or somebody is compiling it already."""
        key = (fetch_key(fetches), *feeds)
        known = self.steps.get(key)
        if known is not None and known.mutations == self._graph.mutations:
            return known
        while (running := self._preparing.get(key)) is not None:
            await asyncio.wait([running])
            prepared = self.steps.get(key)
            if prepared is not None and prepared.mutations == self._graph.mutations:
                return prepared
        turn: asyncio.Future[PreparedStep] = asyncio.get_running_loop().create_future()
        self._preparing[key] = turn
        try:
            prepared = await self._compile(fetches, feeds)
            self._growth.note()
            while len(self.steps) >= self._config.plan_cache_size:
                oldest = next(iter(self.steps))
                await self.steps.pop(oldest).plan.deregister()
            self.steps[key] = prepared
            return prepared
        finally:
            del self._preparing[key]
            turn.cancel()

    async def _compile(self, fetches: Any, feeds: Mapping[Any, Any]) -> PreparedStep:
        mutations = self._graph.mutations
        plan = FetchPlan(self._graph, fetches)
        fed = fed_tensors(self._graph, feeds)
        request = StepRequest(tuple(fed), tuple(plan.tensors), tuple(plan.targets))
        if self._graph.version > _LARGE_GRAPH:
            made = await asyncio.to_thread(self._planner.plan, request)
        else:
            made = self._planner.plan(request)
        if self._config.log_device_placement:
            _log_placement(made)
        sampling = Sampling(self._config.replace_after if self._planner.chooses else 0)
        prepared = PreparedStep(plan, request, mutations, sampling)
        prepared.use(made, await self._cluster.register(made, self._session, self._config))
        return prepared

    async def place_again(self, prepared: PreparedStep) -> None:
        """Replace the plan of a step by a better one, if measured costs say that there is one worth it."""
        made = await asyncio.to_thread(self._planner.plan_again, prepared.request, prepared.made)
        if made.parts is prepared.made.parts:
            prepared.made = made
            return
        registered = await self._cluster.register(made, self._session, self._config)
        if not any(known is prepared for known in self.steps.values()):  # dropped meanwhile, and its plan with it
            await registered.deregister()
            return
        before = prepared.plan
        prepared.use(made, registered)
        await before.deregister()
        if self._config.log_device_placement:
            _log_placement(made)


class _GrowthWatch:
    """Warns when every run makes new nodes: a graph built in a loop grows until memory ends."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._version = graph.version
        self._count = 0

    def note(self) -> None:
        """A step was compiled."""
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
    for part in plan.parts.values():
        for device, graph in part.subgraphs.items():
            for node in graph.nodes.values():
                _LOGGER.info("%s: (%s): %s", node.name, node.op, device)
