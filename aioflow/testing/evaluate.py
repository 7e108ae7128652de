"""Evaluation of tensors without a session, by the reference executor: for tests of ops and kernels."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.values import Array, Value
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.reference import ReferenceExecutor
from aioflow.runtime.step import Step

__all__ = ["Evaluation", "evaluate"]


class Evaluation:
    """Tensors that can be evaluated any number of times, each time with fresh variables and random numbers.

    Args:
        fetches: Tensors to evaluate.
        fed: Tensors that are fed a value each time.
        targets: Operations to run as well.
        resources: Resources to use instead of fresh ones, to evaluate several steps over the same variables.
        state: State of the kernels to use instead of fresh state, for the same purpose.
    """

    def __init__(
        self,
        fetches: Sequence[Tensor],
        fed: Sequence[Tensor] = (),
        targets: Sequence[Operation] = (),
        resources: ResourceManager | None = None,
        state: dict[str, object] | None = None,
    ) -> None:
        self._fed = tuple(fed)
        self._graph = prune(StepRequest(self._fed, tuple(fetches), tuple(targets)))
        self._resources, self._state = resources, state
        self._has_state = any(traits_of(node.op).effect.is_stateful for node in self._graph.nodes.values())
        self._runner: ReferenceExecutor | None = None

    async def run(self, values: Sequence[Value]) -> list[Array]:
        """Feed `values`, one for each of `fed`, and return the fetches as NumPy arrays."""
        runner = self._runner or self._bound()
        # Stateful kernels keep their state in the bound graph, so the next evaluation has to bind a new one.
        self._runner = None if self._has_state else runner
        arrays = [to_array(value, tensor.dtype) for value, tensor in zip(values, self._fed, strict=True)]
        step = Step()
        try:
            return [np.asarray(v) for v in await runner.run(arrays, step)]
        finally:
            step.finish()

    def _bound(self) -> ReferenceExecutor:
        # `is None` rather than truth: an empty dictionary is the caller's, which later evaluations share.
        resources, state = self._resources or ResourceManager(), {} if self._state is None else self._state
        bound = bind_graph(self._graph, host(), resources, state)
        return ReferenceExecutor(self._graph, bound, shared_threads("-evaluate", 1))


def evaluate(
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Value] | None = None,
    *,
    targets: Sequence[Operation] = (),
    resources: ResourceManager | None = None,
    state: dict[str, object] | None = None,
) -> list[Array]:
    """Return the values of `fetches` as NumPy arrays.

    Args:
        fetches: Tensors to evaluate.
        feeds: Values of the fed tensors.
        targets: Operations to run as well.
        resources: Resources to use instead of fresh ones, to evaluate several steps over the same variables.
        state: State of the kernels to use instead of fresh state, for the same purpose.
    """
    fed = dict(feeds or {})
    evaluation = Evaluation(fetches, tuple(fed), targets, resources, state)
    found: list[Array] = []

    # The result goes into `found`: `asyncio.run` would format the repr of a returned one.
    async def run() -> None:
        found.extend(await evaluation.run(tuple(fed.values())))

    asyncio.run(run())
    return found
