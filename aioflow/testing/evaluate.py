"""Evaluate tensors without a session, by the reference executor: for tests of ops and kernels."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.graph.graph import Tensor
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.reference import plain_runner
from aioflow.runtime.step import Step

__all__ = ["evaluate"]


def evaluate(
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Any] | None = None,
    *,
    targets: Sequence[Any] = (),
    resources: ResourceManager | None = None,
    state: dict[str, Any] | None = None,
) -> list[np.ndarray[Any, Any]]:
    """The values of `fetches` as NumPy arrays.

    Args:
        feeds: Values of fed tensors.
        targets: Operations to run as well.
        resources, state: Kept by the caller to evaluate several steps over the same variables.
    """
    fed = dict(feeds or {})
    request = StepRequest(tuple(fed), tuple(fetches), tuple(targets))
    graph = prune(request)
    bound = bind_graph(graph, host(), resources or ResourceManager(), {} if state is None else state)
    values = [to_array(value, tensor.dtype) for tensor, value in fed.items()]
    step = Step()
    runner = plain_runner(graph, bound, shared_threads("-evaluate", 1), float("inf"))
    try:
        return [np.asarray(v) for v in asyncio.run(runner.run(values, step))]
    finally:
        step.finish()
