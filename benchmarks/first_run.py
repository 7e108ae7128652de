"""Event-loop lag of the first run of a large graph: `python -m benchmarks.first_run [nodes …]`.

A first run compiles the step, which takes a second or more for some thousand nodes. Meanwhile a task of the same loop
repeatedly sleeps for a millisecond; its delay is the time that every other request would wait. The benchmark also
reports the processor time of each stage, and the collections of cyclic garbage.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Final

import uvloop

import aioflow as af  # before NumPy, so that its backends may prepare it
from aioflow.compiler.optimize.order_memory import order_memory
from aioflow.compiler.optimize.passes import chosen_passes
from aioflow.compiler.partition import partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.placement import place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.config import SessionConfig
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.branches import raise_branches
from aioflow.runtime.codegen import CodeVariant
from aioflow.runtime.executable import TaskGraph
from aioflow.runtime.folding import fold
from aioflow.runtime.loop_raising import raise_loops
from aioflow.runtime.worker import Worker
from aioflow.session.fetches import FetchMapper
from benchmarks.tables import BASELINE, Row, Target, beside
from benchmarks.tables import seconds as in_seconds

# isort: split
import numpy as np

__all__ = ["FIRST_RUN_ROWS"]

SIZES: Final = (5_000, 20_000)
LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
_TARGET: Final = 10e-3
_WIDTH: Final = 8
_INTERVAL: Final = 1e-3


# -- the graph ---------------------------------------------------------------------------------------------------------


def mixed(nodes: int) -> tuple[list[Any], dict[Any, Any]]:
    """Build a step of about `nodes` nodes, with four parts of equal size.

    The parts are elementwise chains, a network's training, small variables, and control flow.
    """
    x = af.placeholder(af.float32, [None, _WIDTH])
    share = nodes * 3 // 10  # operations, some of which the step does not need
    fetches = [_chains(x, share), *_training(x, max(1, share // 18)), *_small_variables(x, share // 6)]
    return [*fetches, *_control_flow(x, share // 51)], {x: np.full((4, _WIDTH), 0.5, np.float32)}


def _chains(x: Any, count: int) -> Any:
    """Build a random graph of additions and multiplications."""
    rng = random.Random(0)
    made = [x, x * 0.5]
    for i in range(count):
        other = made[rng.randrange(max(0, len(made) - 40), len(made))]
        made.append(af.add(made[-1 - i % 2], other) if i % 3 else af.multiply(made[-1 - i % 2], 0.01))
    return af.add(made[-1], made[-2])


def _training(x: Any, layers: int) -> list[Any]:
    """Build one gradient-descent step on `layers` layers."""
    rng = np.random.default_rng(0)
    y = x
    for _ in range(layers):
        weight = af.Variable((rng.standard_normal((_WIDTH, _WIDTH)) / _WIDTH).astype(np.float32))
        bias = af.Variable(np.zeros(_WIDTH, np.float32))
        y = af.nn.relu(af.nn.bias_add(af.matmul(y, weight), bias))
    loss = af.reduce_mean(af.square(y))
    return [af.train.GradientDescentOptimizer(0.01).minimize(loss), loss]


def _small_variables(x: Any, count: int) -> list[Any]:
    """Build counters and means, like those of batch normalization or metrics."""
    mean = af.reduce_mean(x)
    found = []
    for i in range(count):
        variable = af.Variable(np.float32(i))
        found.append(variable.assign_add(mean * (0.1 * i)).op)
    return found


def _half(value: Any) -> Any:
    return value * 0.5 + 1.0


def _bent(value: Any) -> Any:
    return af.tanh(value) - 2.0


def _control_flow(x: Any, count: int) -> list[Any]:
    """Build `count` branches and loops, in sequence."""
    total = af.reduce_sum(x)
    value = total
    for i in range(count):
        value = af.cond(value > float(i), partial(_half, value), partial(_bent, value))
        start = [af.constant(0), value]
        _, value = af.while_loop(lambda k, _: k < 3, lambda k, v: (k + 1, v * 0.9 + total), start)
    return [value]


# -- what it does to the loop ------------------------------------------------------------------------------------------


@dataclass
class Collections:
    """Counts and longest durations, in seconds, of cyclic garbage collections, for each generation."""

    count: list[int] = field(default_factory=lambda: [0, 0, 0])
    longest: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    _began: float = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        generation = info["generation"]
        self.count[generation] += 1
        self.longest[generation] = max(self.longest[generation], time.perf_counter() - self._began)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the collections within a block."""
        gc.callbacks.append(self)
        try:
            yield
        finally:
            gc.callbacks.remove(self)

    def __str__(self) -> str:
        return ", ".join(f"{n} (≤ {s * 1e3:.1f} ms)" for n, s in zip(self.count, self.longest, strict=True))


@dataclass(frozen=True)
class FirstRun:
    """One measurement, in seconds.

    Attributes:
        lags: Lags of the loop during the initialization of variables and the first run, longest first.
        clock: Wall time of the first run.
        processor: Processor time of the first run.
        second: Wall time of the second run.
        second_lag: Longest lag of the loop during the second and third runs.
        collections: Garbage collections during the initialization and the first run.
    """

    lags: Sequence[float]
    clock: float
    processor: float
    second: float
    second_lag: float
    collections: Collections


async def _watched(awaitable: Awaitable[Any]) -> tuple[list[float], float, float]:
    """Await `awaitable`, and return the lags of the loop meanwhile, the wall time and the processor time."""
    lags: list[float] = []
    done = False

    async def tick() -> None:
        while not done:
            began = time.perf_counter()
            await asyncio.sleep(_INTERVAL)
            lags.append(max(0.0, time.perf_counter() - began - _INTERVAL))

    async with asyncio.TaskGroup() as tg:
        tg.create_task(tick())
        await asyncio.sleep(10 * _INTERVAL)
        lags.clear()
        started, worked = time.perf_counter(), time.process_time()
        await awaitable
        seconds, busy = time.perf_counter() - started, time.process_time() - worked
        await asyncio.sleep(20 * _INTERVAL)  # include delays that the run causes right after its end
        done = True
    return lags, seconds, busy


async def _measured(nodes: int) -> FirstRun:
    with af.Graph().as_default():
        fetches, feeds = mixed(nodes)
        initialize = af.global_variables_initializer()
        async with af.Session() as session:
            collections = Collections()
            with collections.watching():
                lags, _, _ = await _watched(session.run(initialize))
                more, clock, processor = await _watched(session.run(fetches, feeds))
            later = [await _watched(session.run(fetches, feeds)) for _ in range(2)]
    second_lag = max(lag for found, _, _ in later for lag in found)
    return FirstRun(sorted((*lags, *more), reverse=True), clock, processor, later[0][1], second_lag, collections)


def first_run(nodes: int, loop: str) -> FirstRun:
    """Build a graph of about `nodes` nodes and measure its first run."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(_measured(nodes))


# -- what takes the time -----------------------------------------------------------------------------------------------


def stages(nodes: int) -> dict[str, float]:
    """Return the processor time in seconds of each stage of a first run, run sequentially in this thread."""
    found: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        started = time.thread_time()
        result = function(*arguments)
        found[name] = time.thread_time() - started
        return result

    with af.Graph().as_default():
        fetches, feeds = timed("building the graph (the user's)", mixed, nodes)
        wanted = FetchMapper(af.get_default_graph(), fetches)
        request = StepRequest(tuple(feeds), tuple(wanted.tensors), tuple(wanted.targets))
        graph = timed("prune", prune, request)
        for optimization in chosen_passes(True):
            graph = timed(optimization.name, optimization.run, graph, fold)
        worker = Worker()
        device = next(iter(worker.devices.values()))
        plan = partition(timed("place", place, graph, ClusterView((device.name,))))
        graph = next(graph for _, graph in plan.by_device())
        graph = timed("order memory", order_memory, graph, fold)
        bound = timed("bind", bind_graph, graph, device.backend, device.resources, {})
        graph, bound = timed("lift loops", raise_loops, graph, bound)
        graph, bound = timed("lift branches", raise_branches, graph, bound)
        cut = timed(
            "cut, lifetimes, texts of nodes", TaskGraph, graph, bound, device.backend.executor, SessionConfig(), None
        )
        codes = [strand.code for strand in cut.strands if strand is not None]
        timed("functions", lambda: [code.function(CodeVariant.STOPPABLE) for code in codes])
        timed("a full collection", gc.collect)
    return found


# -- the tables --------------------------------------------------------------------------------------------------------


def _row(nodes: int, loop: str) -> Row:
    most = median(first_run(nodes, loop).lags[0] for _ in range(5))
    name = f"event-loop lag of the first run of a graph of {nodes:,} nodes, at most ({loop})"
    return beside(name, in_seconds(most), target=Target(_TARGET, column="aioflow"), other=BASELINE)


FIRST_RUN_ROWS: tuple[Callable[[], Row], ...] = tuple(partial(_row, nodes, loop) for nodes in SIZES for loop in LOOPS)


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_run", description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stages", action="store_true", help="only what the stages take")
    options = parser.parse_args()
    for nodes in options.nodes or SIZES:
        if options.stages:
            print(f"{nodes:,} nodes, in ms of the processor:")
            print("\n".join(f"  {seconds * 1e3:8.1f}  {name}" for name, seconds in stages(nodes).items()), flush=True)
            continue
        for loop in LOOPS:
            for _ in range(options.rounds):
                m = first_run(nodes, loop)
                lags = ", ".join(f"{lag * 1e3:.1f}" for lag in m.lags[:3])
                took = f"{m.clock:.2f} s ({m.processor:.2f} s of the processor), then {m.second * 1e3:.0f} ms"
                print(
                    f"{nodes:,} nodes, {loop}: lag {lags} ms; {took} with a lag of {m.second_lag * 1e3:.1f} ms; "
                    f"collections {m.collections}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
