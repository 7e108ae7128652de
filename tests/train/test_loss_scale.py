"""Loss scaling: steps with infinite gradients are skipped, the scale adapts, and other optimizers can wrap it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from tests.net.clusters import cluster
from tests.train.replicas import replicas

LossScaleOptimizer = af.train.experimental.MixedPrecisionLossScaleOptimizer


def moved(before: Any, after: Any) -> bool:
    return any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "inner",
    [
        lambda: af.train.GradientDescentOptimizer(0.5),
        lambda: af.train.MomentumOptimizer(0.5, 0.9),
        lambda: af.train.AdamOptimizer(0.5),
    ],
)
async def test_overflowing_step_changes_only_the_scale(inner: Any) -> None:
    x = af.placeholder("float32", [2])
    w, table = af.Variable([1.0, 2.0]), af.Variable(np.ones((3, 2), np.float32))
    loss = af.reduce_sum(w * x) + af.reduce_sum(af.gather(table, [0, 2, 0]) * x)
    step = af.train.create_global_step()
    scale = af.train.experimental.DynamicLossScale(1024.0, increment_period=2)
    optimizer = LossScaleOptimizer(inner(), scale)
    train = optimizer.minimize(loss, step)
    state = [v for v in af.global_variables() if v not in scale.variables()]
    slots = optimizer.get_slot_names()
    assert len(state) >= 3 + 2 * len(slots)
    assert all(optimizer.get_slot(w, name) in state for name in slots)
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())

        async def one(*values: float) -> tuple[bool, float, int]:
            before = await sess.run(state)
            await sess.run(train, {x: values})
            now, good = await sess.run(scale.variables())
            return moved(before, await sess.run(state)), float(now), int(good)

        assert await one(1, 2) == (True, 1024, 1)
        assert await one(1, 2) == (True, 2048, 0)
        assert await one(1, 2) == (True, 2048, 1)
        assert await one(1, np.inf) == (False, 1024, 0)
        assert await one(np.nan, 1) == (False, 512, 0)
        assert await one(1e36, 1) == (False, 256, 0), "the gradient is finite, and too large with the scale"
        assert await one(1, 1) == (True, 256, 1)
        assert await sess.run(step) == 4


async def test_overflow_in_indexed_slices_skips_the_step() -> None:
    """Only the values of an IndexedSlices gradient are not finite."""
    table, bias = af.Variable(np.ones((4, 2), np.float32)), af.Variable([0.0])
    x = af.placeholder("float32", [])
    scale = af.train.experimental.DynamicLossScale(4.0)
    train = LossScaleOptimizer(af.train.GradientDescentOptimizer(1.0), scale).minimize(
        af.reduce_sum(af.gather(table, [1]) * x) + af.reduce_sum(bias)
    )
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        await sess.run(train, {x: np.inf})
        assert [v.tolist() for v in await sess.run([table, bias])] == [[[1, 1]] * 4, [0]]
        await sess.run(train, {x: 3.0})
        assert [v.tolist() for v in await sess.run([table, bias])] == [[[1, 1], [-2, -2], [1, 1], [1, 1]], [-1]]


async def test_the_scale_stays_between_one_and_infinity() -> None:
    w, x = af.Variable(1.0), af.placeholder("float32", [])
    low = af.train.experimental.DynamicLossScale(2.0, increment_period=1)
    high = af.train.experimental.DynamicLossScale(2.0**126, increment_period=1)
    trains = [LossScaleOptimizer(af.train.GradientDescentOptimizer(0.0), s).minimize(w * x) for s in (low, high)]
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for _ in range(3):
            await sess.run(trains[0], {x: np.inf})
            await sess.run(trains[1], {x: 1e-30})
        assert await sess.run([low(), high()]) == [1.0, 2.0**127]


@pytest.mark.parametrize("loss_scale", [2.0**16, "dynamic"])
async def test_unscaled_gradients_are_bitwise_equal(loss_scale: Any) -> None:
    """A power of 2 changes no bit of values within range. In float64, the scale is far from the limits of the range."""
    rng = np.random.default_rng(5)
    for dtype in ("float32", "float64"):
        w = af.Variable(rng.standard_normal((5, 4)).astype(dtype))
        loss = af.reduce_mean(af.square(af.tanh(af.matmul(rng.standard_normal((7, 5)).astype(dtype), w))))
        plain = af.train.GradientDescentOptimizer(0.1)
        pairs = [o.compute_gradients(loss, [w])[0] for o in (plain, LossScaleOptimizer(plain, loss_scale))]
        async with af.Session() as sess:
            await sess.run(af.global_variables_initializer())
            expected, scaled = await sess.run([gradient for gradient, _ in pairs])
        assert scaled.tobytes() == expected.tobytes()


async def test_small_gradients_survive_float16() -> None:
    """The gradient in float16 is 1e-4 · 1e-5, which underflows to 0 without a scale."""
    w = af.Variable([1.0])
    factors = np.float16(1e-4), np.float16(1e-5)
    loss = af.reduce_sum(af.cast(af.cast(w, af.float16) * factors[0] * factors[1], af.float32))
    plain = af.train.GradientDescentOptimizer(1.0)
    found = [o.compute_gradients(loss)[0][0] for o in (plain, LossScaleOptimizer(plain, 4096))]
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        lost, kept = (float(v[0]) for v in await sess.run(found))
    assert lost == 0.0
    assert kept == pytest.approx(1e-9, rel=1e-2)


async def test_clipping_by_global_norm_receives_unscaled_gradients() -> None:
    w, v = af.Variable([3.0, 0.0]), af.Variable([0.0])
    x = af.placeholder("float32", [])
    scale = af.train.experimental.DynamicLossScale(2.0**10)
    optimizer = LossScaleOptimizer(af.train.GradientDescentOptimizer(1.0), scale)
    pairs = optimizer.compute_gradients(af.reduce_sum(w * [3.0, 0.0] * x) + af.reduce_sum(v) * 4.0)
    clipped, norm = af.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs], strict=True))
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        assert await sess.run(norm, {x: 1.0}) == 5.0
        await sess.run(train, {x: np.inf})
        assert (await sess.run(w)).tolist() == [3.0, 0.0]
        assert await sess.run(scale()) == 2.0**9
        await sess.run(train, {x: 1.0})
        np.testing.assert_allclose(np.concatenate(await sess.run([w, v])), [2.4, 0.0, -0.8], rtol=1e-6)


async def test_checkpoint_contains_the_scale(tmp_path: Path) -> None:
    w, x = af.Variable(1.0), af.placeholder("float32", [])
    scale = af.train.experimental.DynamicLossScale(64.0, increment_period=3)
    optimizer = LossScaleOptimizer(af.train.GradientDescentOptimizer(0.1), scale)
    train = optimizer.minimize(w * x)
    assert set(scale.variables()) <= set(optimizer.variables()) & set(af.global_variables())
    saver = af.train.Saver()
    async with af.Session() as sess:
        await sess.run(af.global_variables_initializer())
        for value in (1.0, np.inf, 1.0, 1.0):
            await sess.run(train, {x: value})
        path = str(await saver.save(sess, str(tmp_path / "model")))
    async with af.Session() as sess:
        await saver.restore(sess, path)
        assert await sess.run(scale.variables()) == [32.0, 2]
        await sess.run(train, {x: 1.0})
        assert await sess.run(scale.variables()) == [64.0, 0]


async def test_skipped_step_does_not_increment_the_global_step(tmp_path: Path) -> None:
    w, x = af.Variable(1.0), af.placeholder("float32", [])
    step = af.train.create_global_step()
    scale = af.train.experimental.DynamicLossScale(8.0)
    train = LossScaleOptimizer(af.train.AdamOptimizer(0.1), scale).minimize(w * x, step)
    feeds = [1.0, np.inf, 1.0, np.nan, 1.0, 1.0]
    runs = 0
    async with af.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, hooks=[af.train.StopAtStepHook(last_step=3)]
    ) as sess:
        while not sess.should_stop():
            await sess.run(train, {x: feeds[runs]})
            runs += 1
    assert runs == 5, "until three steps have counted"
    reader = af.train.load_checkpoint(str(tmp_path))
    assert (reader.get_tensor("global_step"), reader.get_tensor("current_loss_scale")) == (3, 2.0)


async def test_replicas_share_the_scale_on_a_parameter_server() -> None:
    async with cluster("ps", "worker", "worker") as servers:
        clients = []
        for index in range(2):
            setter = af.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{index}")
            with af.Graph().as_default() as graph, af.device(setter):
                x = af.placeholder("float32", [])
                w = af.get_variable("w", initializer=np.float32(10.0))
                table = af.get_variable("table", initializer=np.ones((3, 2), np.float32))
                step = af.train.create_global_step()
                scale = af.train.experimental.DynamicLossScale(16.0, increment_period=4)
                loss = w * x + af.reduce_sum(af.gather(table, [index])) * x
                train = LossScaleOptimizer(af.train.MomentumOptimizer(1.0, 0.0), scale).minimize(loss, step)
                watched = [w, table, step, *scale.variables()]
                clients.append((graph, x, train, watched, af.global_variables_initializer()))
        assert {v.device for v in clients[0][3]} == {"/job:ps/task:0"}
        sessions = [af.Session(s.target, graph=c[0]) for s, c in zip(servers[1:], clients, strict=True)]
        async with sessions[0], sessions[1]:

            async def run(index: int, value: float) -> None:
                await sessions[index].run(clients[index][2], {clients[index][1]: value}, timeout=60.0)

            await sessions[0].run(clients[0][4], timeout=60.0)
            for index, value in ((0, 1.0), (1, np.inf), (1, 1.0)):
                await run(index, value)
            found: Any = await sessions[0].run(clients[0][3], timeout=60.0)
            assert [v.tolist() for v in found] == [8.0, [[0, 0], [0, 0], [1, 1]], 2, 8.0, 1]
            async with asyncio.TaskGroup() as tg:
                for index in (0, 1):
                    tg.create_task(run(index, 1.0))
            assert (await sessions[1].run(clients[1][3][:3:2], timeout=60.0)) == [6.0, 4]


async def test_synchronous_replicas_skip_a_step_together() -> None:
    """If one gradient is infinite, no replica's gradient is applied, and the next step proceeds normally."""
    made: list[af.train.experimental.DynamicLossScale] = []

    def build(index: int) -> af.train.SyncReplicasOptimizer:
        made.append(af.train.experimental.DynamicLossScale(4.0))
        return af.train.SyncReplicasOptimizer(LossScaleOptimizer(af.train.GradientDescentOptimizer(1.0), made[-1]), 2)

    async with replicas(2, build) as workers:
        for index, worker in enumerate(workers):
            optimizer = worker.optimizer
            await worker.run(optimizer.local_step_init_op if index else optimizer.chief_init_op)
        for values in ((np.inf, 1.0), (1.0, 3.0)):
            async with asyncio.TaskGroup() as tg:
                for worker, value in zip(workers, values, strict=True):
                    tg.create_task(worker.compute(value))
                await workers[0].update()
        dense, step = await workers[0].run([workers[0].dense, workers[0].step])
        assert (dense.tolist(), step, await workers[0].run(made[0]())) == ([-2.0, -2.0], 1, 2.0)


def test_fixed_scale_adds_no_branch() -> None:
    w = af.Variable(1.0)
    train = LossScaleOptimizer(af.train.GradientDescentOptimizer(0.1), 128).minimize(w * 2.0)
    assert not [op for op in train.graph.get_operations() if op.type == "Switch"]
    assert len(af.global_variables()) == 1


def test_train_op_is_named_and_collected() -> None:
    w = af.Variable(1.0)
    train = LossScaleOptimizer(af.train.GradientDescentOptimizer(0.1), "dynamic").minimize(w * 2.0, name="train")
    assert train.name == "train"
    assert af.get_collection(af.GraphKeys.TRAIN_OP) == [train]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LossScaleOptimizer("Adam", 1.0), DTypeError),  # type: ignore[arg-type]
        (lambda: LossScaleOptimizer(af.train.AdamOptimizer(), "static"), InvalidArgumentError),
        (lambda: LossScaleOptimizer(af.train.AdamOptimizer(), None), DTypeError),  # type: ignore[arg-type]
        (lambda: LossScaleOptimizer(af.train.AdamOptimizer(), True), DTypeError),
        (lambda: af.mixed_precision.FixedLossScale(0.5), InvalidArgumentError),
        (lambda: af.mixed_precision.FixedLossScale(float("inf")), InvalidArgumentError),
        (lambda: af.mixed_precision.FixedLossScale("8"), DTypeError),  # type: ignore[arg-type]
        (lambda: af.mixed_precision.DynamicLossScale(multiplier=1.0), InvalidArgumentError),
        (lambda: af.mixed_precision.DynamicLossScale(increment_period=0), InvalidArgumentError),
    ],
)
def test_invalid_scales_and_optimizers_are_rejected(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_scales_are_rebuilt_from_their_config() -> None:
    for scale in (af.mixed_precision.FixedLossScale(8), af.mixed_precision.DynamicLossScale(4.0, 7, 3.0)):
        again = type(scale).from_config(scale.get_config())
        assert repr(again) == repr(scale)
        assert again.get_config() == scale.get_config()
