"""A registered subgraph, ready to run: kernels bound, strands generated.

A step over one strand is a function call. Otherwise `driver` runs the units. Branches and loops are lifted into the
strands; a subgraph where that cannot be goes to `dataflow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aioflow.compiler.ir import ClientGraph, Edge
from aioflow.config import SessionConfig
from aioflow.graph.opdef import CONTROL_FLOW
from aioflow.kernels.registry import ArrayBackend
from aioflow.ops.transfer import RECV
from aioflow.runtime.backend_api import Executor
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.branches import lift_branches
from aioflow.runtime.codegen import StrandCode, finish
from aioflow.runtime.dataflow import Dataflow
from aioflow.runtime.driver import Driver, UnitProgram, UnitRun
from aioflow.runtime.frames import DEAD, dead_fetch
from aioflow.runtime.handing_over import Unfinished, is_large, large_bytes
from aioflow.runtime.lift import lift_loops
from aioflow.runtime.liveness import fed_values, is_small
from aioflow.runtime.reference import run_reference
from aioflow.runtime.step import Step
from aioflow.runtime.strand import Capture, Strand
from aioflow.runtime.units import Unit, constant_values, split
from aioflow.stopping import value_limit

__all__ = ["Executable"]


class Executable:
    """One device's subgraph. `run` may be called any number of times at once.

    Args:
        capture: As `BackendDevice.captured`, where the device has it.

    Attributes:
        feeds: How many feeds the whole step has.
        program: The units, for whoever runs them together with those of other devices; None where there are none.
        fetch_indices: Which of the step's fetches it gives, in the order in which it gives them.
        limit: `SessionConfig.max_value_bytes`.
    """

    def __init__(
        self,
        graph: ClientGraph,
        backend: ArrayBackend,
        resources: Any,
        state: dict[str, Any],
        executor: Executor,
        config: SessionConfig,
        capture: Capture | None = None,
    ) -> None:
        self.bound = bind_graph(graph, backend, resources, state)
        self.feeds = graph.feeds
        self._asked = [n for n in graph.nodes.values() if n.op == "_Retval"]
        self._asked.sort(key=lambda n: int(n.attrs["index"]))
        self._makers = [graph.nodes[n.inputs[0].node] for n in self._asked]
        self._capture = capture
        self._reference = config.executor == "reference"
        dead_arrivals = any(n.op == RECV and n.attrs["maybe_dead"] for n in graph.nodes.values())
        if not self._reference:
            graph, self.bound = lift_loops(graph, self.bound)
            if not dead_arrivals:
                graph, self.bound = lift_branches(graph, self.bound)
        self.graph = graph
        self._feeds = {Edge(n.name, 0): n.attrs["index"] for n in graph.nodes.values() if n.op == "_Arg"}
        retvals = sorted((n for n in graph.nodes.values() if n.op == "_Retval"), key=lambda n: int(n.attrs["index"]))
        self._fetched = [n.inputs[0] for n in retvals]
        self.fetch_indices = tuple(int(n.attrs["index"]) for n in retvals)
        self.program: UnitProgram | None = None
        self._flow: Dataflow | None = None
        self._maybe_dead: list[int] = []
        self._single: Strand | None = None
        self.limit = config.max_value_bytes
        self._large = large_bytes(config.inline_budget)
        ops = {node.op for node in graph.nodes.values()}
        # The plain executor awaits one thing at a time, and runs all kernels on the loop.
        beyond_plain = self._reference and (RECV in ops or config.inline_budget < 0)
        if ops & CONTROL_FLOW or dead_arrivals or beyond_plain:
            self._flow = Dataflow(graph, self.bound, executor, config.inline_budget, config.max_value_bytes)
            finishers = [finish(graph.spec(edge).dims, owned=False) for edge in self._fetched]
            self._polish = [(i, f) for i, f in enumerate(finishers) if f is not None]
        else:
            self._prepare_strands(executor, config)

    def _prepare_strands(self, executor: Executor, config: SessionConfig) -> None:
        graph = self.graph
        self._constants = constant_values(self.bound)
        self._units = split(graph, self.bound, self._constants)
        self._fed = fed_values(graph, self.bound)
        self._strands = [None if u.is_async else self._strand(u, executor, config.inline_budget) for u in self._units]
        guarded = {b.node.name for b in self.bound if b.guard and b.node.op != "Const"}
        self._maybe_dead = [i for i, edge in enumerate(self._fetched) if edge.node in guarded]
        self._finish = [self._finisher(i, edge) for i, edge in enumerate(self._fetched)]
        self._polish = [(i, f) for i, f in enumerate(self._finish) if f is not None]
        self._single = self._strands[0] if len(self._units) == 1 and not self._reference else None
        self._take, self._give, self._spare = self._wiring() if self._single is not None else (None, None, ())
        if not self._reference:
            read = {
                e: i for e, i in self._feeds.items() if e in self._fetched or any(e in u.inputs for u in self._units)
            }
            between = {e for u in self._units for e in u.outputs}
            large = frozenset(e for e in between if not is_small(e, graph))
            self.program = UnitProgram(
                self._units, self._strands, self._constants, read, self._fetched, self._fed, large, config
            )

    def _wiring(self) -> tuple[list[int] | None, list[int] | None, tuple[Any, ...]]:
        """How a single strand connects to the outside: which feeds it takes, and which of its outputs, the feeds and
        the constants are the fetches. None where it is just all of them in order."""
        unit = self._units[0]
        take = [self._feeds[e] for e in unit.inputs]
        # What `_collect` chooses from: the outputs, all feeds of the step, the constants.
        places = {e: i for i, e in enumerate(unit.outputs)}
        places.update((e, len(unit.outputs) + index) for e, index in self._feeds.items())
        places.update((e, len(unit.outputs) + self.graph.feeds + i) for i, e in enumerate(self._constants))
        give = [places[e] for e in self._fetched]
        return (
            None if take == list(range(self.graph.feeds)) else take,
            None if give == list(range(len(unit.outputs))) else give,
            tuple(self._constants.values()),
        )

    def _strand(self, unit: Unit, executor: Executor, budget: float) -> Strand:
        code = StrandCode(unit, self.graph, self._constants, self._fed)
        sized: list[int] = []
        texts: list[int] = []
        for position, edge in enumerate(unit.inputs):
            spec = self.graph.spec(edge)
            if spec.dtype.np_dtype.hasobject:
                texts.append(position)
            elif spec.dims is None or None in spec.dims:
                sized.append(position)
        return Strand(code, executor, budget, (sized, texts), self._capture, self.limit)

    def _finisher(self, index: int, edge: Edge) -> Any:
        """What fetch number `index` still needs; a feed that is fetched goes back as it came."""
        if edge in self._feeds:
            return None
        owner = next((s for s in self._strands if s is not None and edge in s.code.owned), None)
        if any(edge in unit.inputs for unit in self._units):
            owner = None  # another unit read it and may keep it
        return finish(self.graph.spec(edge).dims, owner is not None and self._fetched.index(edge) == index)

    def run_inline(self, feeds: Sequence[Any]) -> list[Any] | Unfinished | None:
        """The fetches, if the whole step is one strand that is expected to stay within the inline budget; else None."""
        if self._single is None:
            return None
        done = self._single.try_inline(feeds if self._take is None else [feeds[i] for i in self._take])
        return None if done is None else self._collect(done, feeds)

    def _collect(self, outputs: tuple[Any, ...], feeds: Sequence[Any]) -> list[Any] | Unfinished:
        if self._give is None:
            fetches = list(outputs)
        else:
            pool = (*outputs, *feeds, *self._spare)
            fetches = [pool[i] for i in self._give]
        return self._polished(fetches)

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step and return the fetches in order.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        if self.limit is None:
            fetches = await self._fetches(feeds, step)
        else:
            with value_limit(self.limit):
                fetches = await self._fetches(feeds, step)
        return fetches if isinstance(fetches, list) else await fetches.finish(step)

    async def _fetches(self, feeds: Sequence[Any], step: Step) -> list[Any] | Unfinished:
        if self._flow is not None:
            return self._polished(await self._flow.run(feeds, step))
        if self.program is None:
            return self._polished(await run_reference(self.graph, self.bound, feeds, step))
        if self._single is not None:
            taken = feeds if self._take is None else [feeds[i] for i in self._take]
            return self._collect(await self._single.run(taken, step), feeds)
        run = self.program.begin(feeds)
        await Driver(step).run([run])
        return self.results(run)

    def results(self, run: UnitRun) -> list[Any] | Unfinished:
        """The fetches of a run of `program` that has ended, in order."""
        fetches = run.program.fetches(run)
        run.values.clear()  # so that what nobody else holds need not be copied
        return self._polished(fetches)

    def _polished(self, fetches: list[Any]) -> list[Any] | Unfinished:
        for index in self._maybe_dead:
            if fetches[index] is DEAD:
                raise dead_fetch(self._asked[index])
        large = {}
        for index, finisher in self._polish:
            value = fetches[index]
            if is_large(value, self._large):
                large[index] = self._makers[index]
            else:
                fetches[index] = finisher(value)
        return Unfinished(fetches, large, self.limit) if large else fetches
