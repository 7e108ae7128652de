"""The compiled steps of a session, by signature: each is compiled once, however many callers wait for it.

A signature is the structure of the fetches with the keys of the feeds. The graph is append-only, so a step stays valid
when nodes are added; a change to an existing node (`Graph.mutations`) makes it stale.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aioflow.compiler.ir import Plan, worth_a_thread
from aioflow.compiler.prune import StepRequest
from aioflow.config import SessionConfig
from aioflow.errors import SourceLine
from aioflow.graph.boundary import ARG
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.graph import Graph
from aioflow.ops import nest
from aioflow.runtime.cluster import Cluster, RegisteredStep
from aioflow.session.fetches import FetchMapper, convert_feeds, fed_tensors, feed_converter, fetch_key
from aioflow.session.planner import Meeting, Planner
from aioflow.work.collector import full_collections_postponed, garbage_was_left
from aioflow.work.stopping import Brief, Elsewhere, doing
from aioflow.work.threads import in_thread

__all__ = ["PreparedStep", "StepCache", "described", "names_of", "planned"]

_LOGGER: Final = logging.getLogger("aioflow.placement")
_COMPILING: Final = 0.005  # seconds that it may take on the loop
_NAMED: Final = 3  # fetches and targets that messages name
_SAMPLES: Final = 5  # traced steps before a signature is placed again
_GROWTH_LIMIT: Final = 100  # new steps in a row for which the graph had grown

Converters = tuple[Callable[[Any], Any], ...]


class PreparedStep:
    """A signature that has been compiled: how to convert its feeds, what to run, how to give the result back."""

    __slots__ = (
        "changes", "converters", "fetches", "made", "mutations", "registered", "request", "run_inline", "sampling",
        "single", "take",
    )  # fmt: skip

    def __init__(self, fetches: FetchMapper, request: StepRequest, mutations: int, sampling: Sampling) -> None:
        self.fetches = fetches
        self.take = fetches.take if fetches.is_direct else None  # in the structure of the fetches, where that is all
        self.single = fetches.single is not None
        self.request = request
        self.mutations = mutations
        self.sampling = sampling

    def use(self, made: Plan, registered: RegisteredStep) -> None:
        """Run by this plan from now on."""
        self.made = made
        self.changes = any(part.changes for part in made.parts.values())
        self.registered = registered
        self.run_inline = registered.run_inline
        on_cards = _read_on_cards(made)
        self.converters: Converters = tuple(feed_converter(t, i in on_cards) for i, t in enumerate(self.request.feeds))

    async def convert(self, fed: Sequence[Any]) -> list[Any]:
        """The values of what is fed, as the step takes them."""
        try:
            return convert_feeds(self.converters, fed)
        except Elsewhere:
            return await self.convert_in_thread(fed)

    async def convert_in_thread(self, fed: Sequence[Any]) -> list[Any]:
        """As `convert`, where that takes too long for the event loop."""
        return await in_thread(convert_feeds, self.converters, fed, effects=False)

    def describe(self) -> str:
        """What the step is for, by the names of what it fetches and runs."""
        return described(self.request)

    async def give(self, values: list[Any]) -> Any:
        """The fetched values in the structure of the fetches."""
        return await self.fetches.give(values)


def described(request: StepRequest) -> str:
    """What a step is for, by the names of what it fetches and runs."""
    return f"the step for {names_of([*request.fetches, *request.targets])}"


def names_of(fetches: Any) -> str:
    """The names in a structure of fetches, the first of them."""
    names = [repr(getattr(leaf, "name", leaf)) for leaf in nest.flatten(fetches)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED]) or 'nothing'}{more}"


def _read_on_cards(plan: Plan) -> set[int]:
    """The feeds, by index, that only devices with memory of their own read."""
    host: set[int] = set()
    cards: set[int] = set()
    for device, graph in plan.by_device():
        found = host if DeviceSpec.from_string(device).device_type == "CPU" else cards
        found.update(n.attrs["index"] for n in graph.nodes.values() if n.op == ARG)
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
        # By event loop too: a task cannot wait for a future of another loop.
        self._preparing: dict[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Future[PreparedStep]] = {}
        self._growth = _GrowthWatch(graph)
        cluster.on_move.append(self.drop)

    async def drop(self) -> None:
        """Forget all steps, and have the workers forget them: they are to be planned anew."""
        dropped = list(self.steps.values())
        self.close()
        await _deregister(dropped)

    def close(self) -> None:
        """Forget all steps."""
        if self.steps:
            garbage_was_left()
        self.steps.clear()

    async def prepare(self, fetches: Any, feeds: Mapping[Any, Any]) -> PreparedStep:
        """The step of a signature: compile it, unless it is known, or another task of this loop is compiling it."""
        key = (fetch_key(fetches), *feeds)
        known = self.steps.get(key)
        if known is not None and known.mutations == self._graph.mutations:
            return known
        loop = asyncio.get_running_loop()
        while (running := self._preparing.get((loop, key))) is not None:
            await asyncio.wait([running])
            prepared = self.steps.get(key)
            if prepared is not None and prepared.mutations == self._graph.mutations:
                return prepared
        turn: asyncio.Future[PreparedStep] = loop.create_future()
        self._preparing[loop, key] = turn
        try:
            prepared = await self._compile(fetches, feeds)
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
        """Drop what is out of date, and the oldest of too many."""
        while len(self.steps) > self._config.plan_cache_size:
            stale.append(self.steps.pop(next(iter(self.steps))))
        if stale:
            garbage_was_left()
        await _deregister(stale)

    async def _compile(self, fetches: Any, feeds: Mapping[Any, Any]) -> PreparedStep:
        mutations = self._graph.mutations
        mapper = FetchMapper(self._graph, fetches)
        fed = fed_tensors(self._graph, feeds)
        request = StepRequest(tuple(fed), tuple(mapper.tensors), tuple(mapper.targets))
        made = await planned(self._planner, request, self._graph.version)
        if self._config.log_device_placement:
            _log_placement(made)
        sampling = Sampling(self._config.replace_after if self._planner.chooses else 0)
        prepared = PreparedStep(mapper, request, mutations, sampling)
        prepared.use(made, await self._cluster.register(made, self._session, self._config))
        return prepared

    async def place_again(self, prepared: PreparedStep) -> None:
        """Replace the plan of a step by a better one, if measured costs say that there is one worth it."""
        again = full_collections_postponed()(self._planner.plan_again)
        made = await in_thread(again, prepared.request, prepared.made, effects=False)
        if made.parts is prepared.made.parts:
            prepared.made = made
            return
        registered = await self._cluster.register(made, self._session, self._config)
        if not any(known is prepared for known in list(self.steps.values())):  # dropped meanwhile, and its plan with it
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
    """The plan of a step of a graph with so many nodes, made here if that takes no longer than a moment.

    Args:
        asks, meeting: As of `Planner.plan`.
    """
    while True:
        plan = await _planned(planner, request, nodes, asks, meeting)
        if await planner.agree(plan, request):
            return plan


async def _planned(planner: Planner, request: StepRequest, nodes: int, asks: bool, meeting: Meeting | None) -> Plan:
    if not worth_a_thread(nodes):
        with suppress(Elsewhere):
            return doing(Brief(seconds=_COMPILING), planner.plan, request, asks, meeting)
    return await in_thread(full_collections_postponed()(planner.plan), request, asks, meeting, effects=False)


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
    for device, node in plan.placed_nodes():
        _show("%s: (%s): %s", node.name, node.op, device)


def _show(message: str, *arguments: object) -> None:
    """Log what was asked for by a setting: a program that has not configured logging sees it on its error output."""
    if _LOGGER.hasHandlers():
        _LOGGER.info(message, *arguments)
    elif logging.lastResort is not None and logging.root.manager.disable < logging.INFO:
        # What `logging` does with warnings, for which nobody has asked.
        record = _LOGGER.makeRecord(_LOGGER.name, logging.INFO, __file__, 0, message, arguments, None)
        logging.lastResort.handle(record)
