"""Data and model parallelism on a cluster: results that do not depend on the partitioning."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

import aioflow as af
from tests.net.clusters import cluster


def between_graphs(worker: int) -> tuple[af.Graph, af.Tensor, af.Variable, af.Variable, af.Operation, af.Operation]:
    """Build the graph of one client of asynchronous training.

    It minimizes x · v by gradient descent, so the gradient is x for any v.
    """
    setter = af.train.replica_device_setter(ps_tasks=2, worker_device=f"/job:worker/task:{worker}")
    with af.Graph().as_default() as graph, af.device(setter):
        x = af.placeholder("float64", [3])
        v = af.get_variable("v", initializer=np.zeros(3))
        step = af.train.get_or_create_global_step()
        train = af.train.GradientDescentOptimizer(0.5).minimize(af.reduce_sum(x * v), step)
        return graph, x, v, step, train, af.global_variables_initializer()


async def test_asynchronous_replicas_lose_no_update() -> None:
    """Clients update without locks at any time, and the variable receives the sum of all gradients."""
    steps, workers = 20, 3
    async with cluster("ps", "ps", *["worker"] * workers) as servers:
        clients = [between_graphs(index) for index in range(workers)]

        async def work(index: int) -> None:
            graph, x, _, _, train, _ = clients[index]
            async with af.Session(servers[2 + index].target, graph=graph) as session:
                for number in range(steps):
                    await session.run(train, {x: [1.0, index, number]}, timeout=60.0)

        graph, _, v, step, _, initialize = clients[0]
        async with af.Session(servers[0].target, graph=graph) as session:
            await session.run(initialize)
            async with asyncio.TaskGroup() as tg:
                for index in range(workers):
                    tg.create_task(work(index))
            assert await session.run(step) == steps * workers
            total = [steps * workers, steps * sum(range(workers)), workers * sum(range(steps))]
            assert (await session.run(v)).tolist() == [-0.5 * n for n in total]
            assert {v.device, step.device} == {"/job:ps/task:0", "/job:ps/task:1"}


async def test_two_steps_of_one_replica_overlap() -> None:
    """The first step waits for a value from the second, and continues with the variable that it has read before."""
    async with cluster("ps", "worker") as (_, server):
        x = af.placeholder("float64", [])
        with af.device("/job:ps"):
            v = af.Variable(np.float64(1.0))
            met = af.FIFOQueue(1, ["float64"], shapes=[()])
        with af.device("/job:worker"):
            read = af.identity(v.read_value())
        with af.device("/job:ps"), af.control_dependencies([read]):
            first = v.assign_add(read * met.dequeue(), read_value=False)
            second = af.group(v.assign_add(x, read_value=False), met.enqueue(x))
        async with af.Session(server.target) as session, asyncio.TaskGroup() as tg:
            await session.run(v.initializer)
            waits = tg.create_task(session.run(first, timeout=60.0))
            while not (await server.worker.state()).running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await session.run(second, {x: 10.0}, timeout=60.0)
            await waits
            assert await session.run(v) in (1.0 + 10.0 + 1.0 * 10.0, 1.0 + 10.0 + 11.0 * 10.0)


def halves(lower: str, upper: str) -> tuple[Any, Any, Any, Any]:
    """Build a model of two layers, each with its variables on a different device."""
    rng = np.random.default_rng(3)
    x, y = af.placeholder("float64", [None, 5]), af.placeholder("float64", [None, 2])
    with af.device(lower):
        first = af.Variable(rng.standard_normal((5, 7)), name="first")
        hidden = af.tanh(af.matmul(x, first))
    with af.device(upper):
        second = af.Variable(rng.standard_normal((7, 2)), name="second")
        loss = af.reduce_mean(af.square(af.matmul(hidden, second) - y))
    train = af.train.AdamOptimizer(0.1).minimize(loss)
    return x, y, train, [loss, first, second]


async def test_model_on_two_tasks_equals_the_local_model() -> None:
    """The results are bitwise equal, since activations and gradients are sent unchanged."""
    data = np.random.default_rng(4)
    inputs, targets = data.standard_normal((8, 5)), data.standard_normal((8, 2))

    async def train_on(target: str, lower: str, upper: str) -> list[Any]:
        with af.Graph().as_default():
            x, y, train, state = halves(lower, upper)
            async with af.Session(target) as session:
                await session.run(af.global_variables_initializer())
                for _ in range(5):
                    await session.run(train, {x: inputs, y: targets})
                return list(await session.run(state, {x: inputs, y: targets}))

    async with cluster("lower", "upper") as (lower, _):
        divided = await train_on(lower.target, "/job:lower", "/job:upper")
    alone = await train_on("", "", "")
    for mine, theirs in zip(divided, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)
