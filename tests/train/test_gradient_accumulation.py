"""Gradient accumulation: several small batches equal a large one, for any replicas and order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.train import GradientAccumulationOptimizer
from aioflow.train.optimizer import Optimizer
from tests.net.clusters import cluster
from tests.train.replicas import replicas

RNG = np.random.default_rng(11)
INPUTS, WANTED, ROWS = RNG.standard_normal((12, 4)), RNG.standard_normal((12, 3)), RNG.integers(0, 6, 12)

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "descent": lambda: af.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: af.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: af.train.AdamOptimizer(0.1),
    "adagrad": lambda: af.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: af.train.RMSPropOptimizer(0.1),
    "ftrl": lambda: af.train.FtrlOptimizer(0.1),
}


class Model:
    """A matrix, and a table whose gradient has only the rows that occur; in float64."""

    def __init__(self, optimizer: Optimizer, mean: bool = True) -> None:
        self.x, self.y = af.placeholder("float64", [None, 4]), af.placeholder("float64", [None, 3])
        self.rows = af.placeholder("int64", [None])
        self.w = af.get_variable("w", initializer=np.ones((4, 3)))
        self.table = af.get_variable("table", initializer=np.ones((6, 3)))
        self.step = af.train.create_global_step()
        error = af.square(af.tanh(af.matmul(self.x, self.w)) + af.gather(self.table, self.rows) - self.y)
        loss = af.reduce_mean(error) if mean else af.reduce_sum(error)
        self.optimizer = optimizer
        self.train = optimizer.minimize(loss, self.step)
        self.variables = [self.w, self.table, self.step]

    def feeds(self, part: int, parts: int) -> dict[Any, Any]:
        where = slice(part * 12 // parts, (part + 1) * 12 // parts)
        return {self.x: INPUTS[where], self.y: WANTED[where], self.rows: ROWS[where]}


async def trained(make: Callable[[], Model], parts: int, rounds: int = 3) -> list[Any]:
    """Return all variables of the wrapped optimizer after `rounds` passes over all examples."""
    with af.Graph().as_default():
        model = make()
        async with af.Session() as sess:
            await sess.run(af.global_variables_initializer())
            for _ in range(rounds):
                for part in range(parts):
                    await sess.run(model.train, model.feeds(part, parts))
            slots = [
                slot
                for name in model.optimizer.get_slot_names()
                for v in (model.w, model.table)
                if (slot := model.optimizer.get_slot(v, name)) is not None
            ]
            return list(await sess.run([*model.variables, *slots]))


def agree(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("steps", "use_locking"), [(1, True), (2, True), (3, False), (6, True)])
@pytest.mark.parametrize("name", OPTIMIZERS)
async def test_small_batches_equal_one_large_batch(name: str, steps: int, use_locking: bool) -> None:
    make = OPTIMIZERS[name]
    whole = await trained(lambda: Model(make()), 1)
    assert whole[2] == 3

    def accumulating() -> Model:
        return Model(GradientAccumulationOptimizer(make(), steps, use_locking=use_locking))

    agree(await trained(accumulating, steps), whole)


async def test_gradients_of_sum_losses_are_summed() -> None:
    whole = await trained(lambda: Model(af.train.GradientDescentOptimizer(0.01), mean=False), 1)
    inner = af.train.GradientDescentOptimizer(0.01)
    agree(await trained(lambda: Model(GradientAccumulationOptimizer(inner, 4, average=False), mean=False), 4), whole)


async def test_variables_do_not_change_between_updates() -> None:
    model = Model(GradientAccumulationOptimizer(af.train.AdamOptimizer(0.1), 3))
    sums = [v for v in model.optimizer.variables() if "Gradient" in v.op.name or "added" in v.op.name]
    others = [v for v in af.global_variables() if v not in sums]
    assert len(sums) == 4
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        before = await sess.run(others)
        for part in range(2):
            await sess.run(model.train, model.feeds(part, 3))
            for a, b in zip(await sess.run(others), before, strict=True):
                np.testing.assert_array_equal(a, b)
        await sess.run(model.train, model.feeds(2, 3))
        assert await sess.run(model.step) == 1
        assert [v.size for v in await sess.run(sums) if v.ndim and v.shape[0] == 0] == [0, 0], "no rows are kept"


async def test_sparse_sum_has_one_row_for_each_index() -> None:
    model = Model(GradientAccumulationOptimizer(af.train.AdamOptimizer(0.1), 3))
    (rows,) = (v for v in model.optimizer.variables() if v.op.name == "table/GradientRows")
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for part in range(2):
            await sess.run(model.train, model.feeds(part, 3))
            seen = ROWS[: (part + 1) * 4]
            assert len(set(seen)) < len(seen)
            assert sorted(await sess.run(rows)) == sorted(set(seen))


async def test_checkpoint_contains_accumulated_gradients(tmp_path: Path) -> None:
    whole = await trained(lambda: Model(GradientAccumulationOptimizer(af.train.MomentumOptimizer(0.1, 0.9), 4)), 4, 1)
    model = Model(GradientAccumulationOptimizer(af.train.MomentumOptimizer(0.1, 0.9), 4))
    saver = af.train.Saver()
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for part in range(2):
            await sess.run(model.train, model.feeds(part, 4))
        path = str(await saver.save(sess, str(tmp_path / "model")))
    async with af.Session() as sess:
        await saver.restore(sess, path)
        for part in range(2, 4):
            await sess.run(model.train, model.feeds(part, 4))
        agree(list(await sess.run(model.variables)), whole[:3])


async def test_concurrent_steps_are_each_added_once() -> None:
    count, steps = 60, 5
    x, v = af.placeholder("float64", [200]), af.get_variable("v", initializer=np.zeros(200))
    table = af.get_variable("table", initializer=np.zeros((3, 2)))
    step = af.train.create_global_step()
    loss = af.reduce_sum(v * x) + af.reduce_sum(af.gather(table, [1])) * x[0]
    train = GradientAccumulationOptimizer(af.train.GradientDescentOptimizer(1.0), steps).minimize(loss, step)
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        await asyncio.gather(*(sess.run(train, {x: np.full(200, float(i))}) for i in range(count)))
        total = -sum(range(count)) / steps
        values, rows, counted = await sess.run([v, table, step])
    np.testing.assert_allclose(values, total, rtol=1e-12)
    np.testing.assert_allclose(rows, np.array([[0.0], [total], [0.0]]) * np.ones(2), rtol=1e-12)
    assert counted == count // steps


async def test_gradients_of_all_replicas_are_accumulated_together() -> None:
    async with cluster("ps", "worker", "worker") as servers:
        clients = []
        for index in range(2):
            setter = af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{index}")
            with af.Graph().as_default() as graph, af.device(setter):
                x, v = af.placeholder("float64", [2]), af.get_variable("v", initializer=np.zeros(2))
                step = af.train.create_global_step()
                inner = af.train.MomentumOptimizer(1.0, 0.0)
                train = GradientAccumulationOptimizer(inner, 4).minimize(af.reduce_sum(v * x), step)
                assert {variable.device for variable in af.global_variables()} == {"/job:ps/task:0"}
                clients.append((graph, x, v, step, train, af.global_variables_initializer()))
        sessions = [af.Session(s.target, graph=c[0]) for s, c in zip(servers[1:], clients, strict=True)]
        async with sessions[0], sessions[1]:
            await sessions[0].run(clients[0][5], timeout=60.0)

            async def work(index: int) -> None:
                _, x, *_, train, _ = clients[index]
                for i in range(6):
                    await sessions[index].run(train, {x: [1.0, i + 10 * index]}, timeout=60.0)

            await asyncio.gather(work(0), work(1))
            _, _, v, step, *_ = clients[0]
            values, counted = await sessions[0].run([v, step], timeout=60.0)
    np.testing.assert_allclose(values, [-3.0, -(15 + 75) / 4], rtol=1e-12)
    assert counted == 3


async def test_accumulation_inside_synchronous_replicas() -> None:
    """Each round is the mean over all replicas, and two rounds are one update."""

    def build(index: int) -> af.train.SyncReplicasOptimizer:
        inner = GradientAccumulationOptimizer(af.train.GradientDescentOptimizer(1.0), 2)
        return af.train.SyncReplicasOptimizer(inner, 2)

    async with replicas(2, build) as workers:
        for index, worker in enumerate(workers):
            optimizer = worker.optimizer
            await worker.run(optimizer.local_step_init_op if index else optimizer.chief_init_op)
        seen = []
        for values in ((1.0, 3.0), (5.0, 7.0), (2.0, 2.0), (4.0, 4.0)):
            async with asyncio.TaskGroup() as tg:
                for worker, value in zip(workers, values, strict=True):
                    tg.create_task(worker.compute(value))
                await workers[0].update()
            seen.append(await workers[0].run([workers[0].dense, workers[0].step]))
    assert [(v.tolist(), int(step)) for v, step in seen] == [
        ([0, 0], 0), ([-4, -4], 1), ([-4, -4], 1), ([-7, -7], 2)
    ]  # fmt: skip


@pytest.mark.parametrize("outside", [True, False])
async def test_accumulation_with_a_loss_scale(outside: bool) -> None:
    """Check both orders of nesting with a loss scale.

    Outside, the loss scale skips a gradient that is not finite. Inside, it skips the whole update that contains it.
    """
    x, v = af.placeholder("float32", []), af.get_variable("v", initializer=np.float32(0))
    step = af.train.create_global_step()
    scale = af.train.experimental.DynamicLossScale(8.0)
    inner: Optimizer = af.train.GradientDescentOptimizer(1.0)
    if outside:
        optimizer: Optimizer = af.train.experimental.MixedPrecisionLossScaleOptimizer(
            GradientAccumulationOptimizer(inner, 2), scale
        )
    else:
        scaled = af.train.experimental.MixedPrecisionLossScaleOptimizer(inner, scale)
        optimizer = GradientAccumulationOptimizer(scaled, 2)
    train = optimizer.minimize(v * x, step)
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        seen = []
        for value in (2.0, np.inf, 4.0, 6.0):
            await sess.run(train, {x: value})
            seen.append(tuple(float(a) for a in await sess.run([v, step, scale()])))
    if outside:
        assert seen == [(0, 0, 8), (0, 0, 4), (-3, 1, 4), (-3, 1, 4)]
    else:
        assert seen == [(0, 0, 8), (0, 0, 4), (0, 0, 4), (-5, 1, 4)]


async def test_change_can_clip_the_mean() -> None:
    def clipped(pairs: Any) -> Any:
        gradients, _ = af.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
        return list(zip(gradients, [v for _, v in pairs], strict=True))

    x, v = af.placeholder("float64", [2]), af.get_variable("v", initializer=np.zeros(2))
    inner = af.train.GradientDescentOptimizer(1.0)
    train = GradientAccumulationOptimizer(inner, 2, change=clipped).minimize(af.reduce_sum(v * x))
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for value in ([6.0, 0.0], [0.0, 8.0]):
            await sess.run(train, {x: value})
        np.testing.assert_allclose(await sess.run(v), [-0.6, -0.8], rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 2])
def test_change_receives_no_missing_gradients(steps: int) -> None:
    v, unused = (af.get_variable(name, initializer=np.zeros(2)) for name in ("v", "unused"))
    seen: list[Any] = []

    def halved(pairs: Any) -> Any:
        seen.extend(variable for _, variable in pairs)
        return [(gradient * 0.5, variable) for gradient, variable in pairs]

    opt = GradientAccumulationOptimizer(af.train.GradientDescentOptimizer(1.0), steps, change=halved)
    opt.minimize(af.reduce_sum(v), var_list=[v, unused])
    assert seen == [v]


@pytest.mark.parametrize("use_locking", [True, False])
async def test_each_call_accumulates_its_own_gradients(use_locking: bool) -> None:
    """Two losses with one optimizer, in one step: each update is the mean of three gradients of its own loss."""
    x = af.placeholder("float64", [])
    v, w = (af.get_variable(name, initializer=np.zeros(2)) for name in ("v", "w"))
    opt = GradientAccumulationOptimizer(af.train.GradientDescentOptimizer(1.0), 3, use_locking=use_locking)
    first = opt.minimize(af.reduce_sum(v * x), var_list=[v])
    second = opt.minimize(af.reduce_sum((10.0 * v + 2.0 * w) * x))
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        seen = []
        for value in (0.0, 1.0, 2.0, 3.0):
            await sess.run([first, second], {x: value})
            seen.append([float(each[0]) for each in await sess.run([v, w])])
        await sess.run(first, {x: 7.0})
        await sess.run(first, {x: 8.0})
        seen.append([float(each[0]) for each in await sess.run([v, w])])
    assert seen == [[0, 0], [0, 0], [-11, -2], [-11, -2], [-17, -2]]


def test_train_op_is_named_and_collected() -> None:
    v = af.get_variable("v", initializer=np.zeros(2))
    train = GradientAccumulationOptimizer(af.train.AdamOptimizer(), 2, name="sums").minimize(af.reduce_sum(v))
    assert train.name == "sums"
    assert af.get_collection(af.GraphKeys.TRAIN_OP) == [train]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: GradientAccumulationOptimizer("Adam", 2), DTypeError),  # type: ignore[arg-type]
        (lambda: GradientAccumulationOptimizer(af.train.AdamOptimizer(), 0), InvalidArgumentError),
        (lambda: GradientAccumulationOptimizer(af.train.AdamOptimizer(), 1.5), DTypeError),  # type: ignore[arg-type]
        (lambda: GradientAccumulationOptimizer(af.train.AdamOptimizer(), 2).apply_gradients([]), InvalidArgumentError),
    ],
)
def test_invalid_arguments_are_rejected(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
