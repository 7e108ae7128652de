"""Replicas of a small model on a cluster, each with its own graph and session, which tests drive by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import aioflow as af
from tests.net.clusters import cluster

__all__ = ["Build", "Replica", "numbered", "replicas"]

_SECONDS = 60.0


@dataclass
class Replica:
    """One client, with its graph and its session.

    Attributes:
        gradient: Placeholder for the gradient of `dense`. The gradient of the fed rows of `table` is twice that.
        rows: Placeholder for the indices of those rows.
    """

    graph: af.Graph
    optimizer: af.train.SyncReplicasOptimizer
    dense: af.Variable
    table: af.Variable
    step: af.Variable
    local_step: af.Variable
    gradient: af.Tensor
    rows: af.Tensor
    train: af.Operation
    initialize: af.Operation
    session: af.Session
    target: str

    async def crash(self) -> None:
        """Replace the session, as if the client had crashed and another one had started."""
        await self.session.close()
        self.session = af.Session(self.target, graph=self.graph)

    def feeds(self, value: Any, rows: Sequence[int] = (0, 1)) -> dict[Any, Any]:
        """Return the feeds for a gradient."""
        return {self.gradient: np.broadcast_to(np.asarray(value), [2]), self.rows: rows}

    async def run(self, fetches: Any, feeds: Any = None) -> Any:
        """Return the values of `fetches`, with a timeout of a minute."""
        return await self.session.run(fetches, feeds, timeout=_SECONDS)

    async def compute(self, value: Any, rows: Sequence[int] = (0, 1)) -> None:
        """Run one training step of this replica."""
        await self.run(self.train, self.feeds(value, rows))

    async def update(self) -> None:
        """Run one update, which the chief's queue runner does in a loop."""
        await self.run(self.optimizer.get_chief_queue_runner().enqueue_ops[0])

    async def until_given(self, counts: dict[str, int]) -> None:
        """Wait until the accumulators of these names hold this many gradients."""
        with self.graph.as_default(), af.device("/job:ps/task:0"):
            inside = [
                af.ConditionalAccumulator(
                    self.dense.dtype, [2], name, reduction_type="FIRST" if name[-1].isdigit() else "MEAN"
                ).num_accumulated()
                for name in counts
            ]
        async with asyncio.timeout(_SECONDS):
            while await self.run(inside) != list(counts.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)


Build = Callable[[int], af.train.SyncReplicasOptimizer]


def numbered(count: int) -> Build:
    """Return a builder of optimizers: gradient descent over `count` workers, in the order of their indices."""
    return lambda index: af.train.SyncReplicasOptimizer(
        af.train.GradientDescentOptimizer(1.0), count, worker_index=index
    )  # fmt: skip


@asynccontextmanager
async def replicas(count: int, build: Build, dtype: Any = np.float64) -> AsyncIterator[list[Replica]]:
    """Yield replicas on `count` workers with a parameter server. All variables are zero.

    `build` creates the optimizer of the worker with a given index.
    """
    async with AsyncExitStack() as stack:
        _, *workers = await stack.enter_async_context(cluster("ps", *["worker"] * count))
        made = [_replica(i, build, dtype, worker.target) for i, worker in enumerate(workers)]
        for replica in made:
            stack.push_async_callback(_close, replica)
        await made[0].run(made[0].initialize)
        yield made


async def _close(replica: Replica) -> None:
    await replica.session.close()


def _replica(index: int, build: Build, dtype: Any, target: str) -> Replica:
    setter = af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{index}")
    with af.Graph().as_default() as graph, af.device(setter):
        dense = af.get_variable("dense", initializer=np.zeros(2, dtype))
        table = af.get_variable("table", initializer=np.zeros((4, 2), dtype))
        step = af.train.get_or_create_global_step()
        gradient, rows = af.placeholder(dtype, [2], name="gradient"), af.placeholder("int64", [None], name="rows")
        values = af.tile(af.expand_dims(gradient * 2, 0), [af.size(rows), 1])
        optimizer = build(index)
        pairs: list[Any] = [(gradient, dense), (af.IndexedSlices(values, rows, af.constant([4, 2])), table)]
        train = optimizer.apply_gradients(pairs, step)
        (local_step,) = af.local_variables()
        initialize = af.global_variables_initializer()
    return Replica(
        graph, optimizer, dense, table, step, local_step, gradient, rows, train, initialize,
        af.Session(target, graph=graph), target,
    )  # fmt: skip
