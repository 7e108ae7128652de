"""Optimized steps for tests: their graphs, results and effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.optimize.rewrite import Evaluate
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.config import SessionConfig
from aioflow.graph.opdef import OPS
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.device import host
from aioflow.runtime.executable import Executable, make_executable
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.folding import fold
from aioflow.runtime.step import Step

_THREADS = DeviceThreads("-test", 2)
EXECUTORS = ("strands", "reference")
OptimizationPass = Callable[[ClientGraph, Evaluate], ClientGraph]


def step(fetches: Any, feeds: Iterable[Any] = (), targets: Iterable[Any] = ()) -> ClientGraph:
    """Return the pruned graph of a step."""
    found = fetches if isinstance(fetches, list | tuple) else [fetches]
    return verify(prune(StepRequest(tuple(feeds), tuple(found), tuple(targets))))


def optimized(graph: ClientGraph, *passes: OptimizationPass) -> ClientGraph:
    """Return the graph after the passes, verified after each."""
    for optimization in passes:
        graph = verify(optimization(graph, fold))
    return graph


def ops(graph: ClientGraph) -> Counter[str]:
    """Return the number of nodes of each op, without feeds, fetches and constants."""
    return Counter(n.op for n in graph.nodes.values() if n.op not in ("_Arg", "_Retval", "Const"))


def fetched(graph: ClientGraph, index: int = 0) -> Node:
    """Return the node that a fetch reads."""
    return graph.nodes[graph.nodes[f"_retval_{index}"].inputs[0].node]


@dataclass
class Ran:
    """The results of a step, and the number of runs of each node with effects."""

    values: list[Any]
    effects: Counter[str]


class _Count:
    """A probe that counts the runs of nodes with effects."""

    def __init__(self) -> None:
        self.nodes: Counter[str] = Counter()

    def begin(self) -> Callable[[Any, Sequence[Any]], None]:
        def report(bound: Any, outputs: Sequence[Any]) -> None:
            if bound.node.op in OPS and OPS.get(bound.node.op).stateful:
                self.nodes[bound.node.name] += 1

        return report


async def run(
    graph: ClientGraph, feeds: Sequence[Any] = (), executor: str = "strands", before: ClientGraph | None = None
) -> Ran:
    """Run a step.

    Args:
        graph: The step's graph.
        feeds: Values of its feeds.
        executor: The executor of the step.
        before: A step to run first on the same resources, for example an initialization of variables.
    """
    resources = ResourceManager()
    if before is not None:
        await _executable(before, resources, "strands").run([], Step())
    count = _Count()
    values = await _executable(graph, resources, executor).run(list(feeds), Step(count))
    return Ran(values, count.nodes)


def _executable(graph: ClientGraph, resources: ResourceManager, executor: str) -> Executable:
    config = SessionConfig(executor=executor)
    return make_executable(graph, host(), resources, {}, _THREADS, config)


def assert_same_bits(actual: Sequence[Any], expected: Sequence[Any], what: object = "") -> None:
    """Assert equal dtypes, shapes and bytes; NaN and the sign of zero count."""
    assert len(actual) == len(expected)
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        have, want = np.asarray(have), np.asarray(want)
        assert (have.dtype, have.shape) == (want.dtype, want.shape), (index, what)
        if have.dtype.hasobject:
            assert have.tolist() == want.tolist(), (index, what)
        else:
            assert have.tobytes() == want.tobytes(), (index, what, have, want)


async def assert_equivalent(graph: ClientGraph, feeds: Sequence[Any], *passes: OptimizationPass) -> ClientGraph:
    """Return the graph after the passes, checked to give the same bits and effects on both executors."""
    made = optimized(graph, *passes)
    for executor in EXECUTORS:
        wanted, found = await run(graph, feeds, executor), await run(made, feeds, executor)
        assert_same_bits(found.values, wanted.values, executor)
        assert found.effects == wanted.effects
    return made
