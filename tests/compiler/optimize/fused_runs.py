"""Runs of client graphs without optimization, to compare a pass's result with its input."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import aioflow as af
from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.graph.arrays import to_array
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.reference import ReferenceExecutor
from aioflow.runtime.step import Step

Array = np.ndarray[Any, np.dtype[Any]]


def never(*_: object) -> None:
    """Fold nothing; an `Evaluate`."""
    return None


def pruned(fetches: Sequence[af.Tensor], feeds: Sequence[af.Tensor] = (), targets: Sequence[Any] = ()) -> ClientGraph:
    return verify(prune(StepRequest(tuple(feeds), tuple(fetches), tuple(targets))))


def run(graph: ClientGraph, feeds: Mapping[af.Tensor, Any], resources: ResourceManager | None = None) -> list[Array]:
    """Return the fetches of the graph by the reference executor.

    Args:
        graph: The graph.
        feeds: The feeds, in the order in which the graph was pruned.
        resources: Resources of the run; new ones by default.
    """
    bound = bind_graph(graph, host(), resources or ResourceManager(), {}, reproducible=True)
    values = [to_array(value, tensor.dtype) for tensor, value in feeds.items()]
    step = Step()
    runner = ReferenceExecutor(graph, bound, shared_threads("-fused", 1))
    try:
        return [np.asarray(value) for value in asyncio.run(runner.run(values, step))]
    finally:
        step.finish()


def ops(graph: ClientGraph) -> Counter[str]:
    """Return the number of nodes of each op, without constants, feeds and fetches."""
    return Counter(n.op for n in graph.nodes.values() if n.op not in ("Const", "_Arg", "_Retval"))


def same_bits(one: Array, other: Array) -> bool:
    """Return whether two arrays are the same to the last bit, except that all NaN are equal."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        one, other = (np.where(np.isnan(a), a.dtype.type(np.nan), a) for a in (one, other))
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def check(
    run_pass: Callable[..., ClientGraph], fetches: Sequence[af.Tensor], feeds: Mapping[af.Tensor, Any]
) -> ClientGraph:
    """Return the graph after the pass, checked to be valid and to have the same values to the last bit."""
    before = pruned(fetches, list(feeds))
    after = verify(run_pass(before, never))
    for expected, value in zip(run(before, feeds), run(after, feeds), strict=True):
        assert same_bits(expected, value)
    return after
