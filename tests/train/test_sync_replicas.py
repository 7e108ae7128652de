"""Synchronous training on a cluster: the gradients that count, their order of summation, and the end of training."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import aioflow as af
from tests.net.clusters import cluster
from tests.train.replicas import Build, Replica, numbered, replicas

DENSE = "dense:0/grad_accum"
CLUSTER = {"ps": ["a:1"], "worker": ["b:1", "c:1"]}  # the device setter reads the number of parameter servers from it
SECONDS = 60.0


def descent(needed: int, total: int | None = None, **more: Any) -> Build:
    return lambda index: af.train.SyncReplicasOptimizer(
        af.train.GradientDescentOptimizer(1.0), needed, total, **more
    )  # fmt: skip


async def begin(workers: list[Replica]) -> None:
    """Initialize new sessions as the hooks do, without starting the queue runner."""
    for index, worker in enumerate(workers):
        optimizer = worker.optimizer
        await worker.run(optimizer.local_step_init_op if index else optimizer.chief_init_op)


async def test_all_gradients_of_a_step_are_averaged() -> None:
    async with replicas(3, descent(3)) as workers:
        await begin(workers)
        chief = workers[0]
        async with asyncio.TaskGroup() as tg:
            for index, worker in enumerate(workers):
                tg.create_task(worker.compute(3.0**index, rows=[index, index + 1]))
            await chief.until_given({DENSE: 3})
            assert (await chief.run(chief.dense)).tolist() == [0.0, 0.0], "nothing has been applied"
            await chief.update()
        assert await chief.run(chief.step) == 1
        assert [int(await w.run(w.local_step)) for w in workers] == [1, 1, 1]
        np.testing.assert_allclose(await chief.run(chief.dense), [-13.0 / 3] * 2, rtol=1e-15)
        # A row's mean is over the workers that have it: 0 | 0 and 1 | 1 and 2 | 2.
        np.testing.assert_allclose((await chief.run(chief.table))[:, 0], [-2.0, -4.0, -12.0, -18.0], rtol=1e-15)


async def test_late_gradient_of_a_backup_worker_is_dropped() -> None:
    """Two of three gradients count. The third worker is a backup: its gradient for the same step changes nothing."""
    async with replicas(3, descent(2, 3)) as workers:
        await begin(workers)
        first, second, slow = workers
        async with asyncio.TaskGroup() as tg:
            for worker, value in ((first, 2.0), (second, 4.0)):
                tg.create_task(worker.compute(value))
            await first.until_given({DENSE: 2})
            await first.update()
        assert await first.run(first.step) == 1
        await slow.compute(1000.0)  # for step 0; it does not wait, since its token is available
        await first.until_given({DENSE: 0})
        assert (await first.run(first.dense)).tolist() == [-3.0, -3.0]
        assert await slow.run(slow.local_step) == 1, "and goes on with the others"
        async with asyncio.TaskGroup() as tg:
            for worker, value in ((slow, 10.0), (second, 20.0)):
                tg.create_task(worker.compute(value))
            await first.until_given({DENSE: 2})
            await first.update()
        assert (await first.run(first.dense)).tolist() == [-18.0, -18.0]


GRADIENTS = [np.float32(1e8), np.float32(-1e8), np.float32(1.0)]


async def test_gradients_of_numbered_workers_are_summed_in_order() -> None:
    """The order of arrival is irrelevant. In float32, (1e8 - 1e8) + 1 is 1, and 1e8 + (1 - 1e8) is 0."""
    in_order = ((GRADIENTS[0] + GRADIENTS[1]) + GRADIENTS[2]) / np.float32(3)
    assert in_order != (GRADIENTS[0] + (GRADIENTS[1] + GRADIENTS[2])) / np.float32(3)
    tables = set()
    for order in permutations(range(3)):
        async with replicas(3, numbered(3), np.float32) as workers:
            await begin(workers)
            chief = workers[0]
            async with asyncio.TaskGroup() as tg:
                for position, index in enumerate(order):
                    tg.create_task(workers[index].compute(GRADIENTS[index], rows=[0]))
                    await chief.until_given({f"{DENSE}_{i}": int(i in order[: position + 1]) for i in range(3)})
                await chief.update()
            dense, table = await chief.run([chief.dense, chief.table])
        assert dense.tolist() == [-in_order] * 2
        tables.add(table.tobytes())
    assert len(tables) == 1


async def test_sparse_rows_of_numbered_workers_are_averaged() -> None:
    async with replicas(2, numbered(2)) as workers:
        await begin(workers)
        async with asyncio.TaskGroup() as tg:
            tg.create_task(workers[0].compute(1.0, rows=[3, 0, 3]))
            tg.create_task(workers[1].compute(5.0, rows=[1, 3]))
            await workers[0].update()
        table = await workers[1].run(workers[1].table)
        assert table[:, 1].tolist() == [-2.0, -10.0, 0.0, -7.0], "a row's mean is over those who have it"


async def test_numbered_worker_waits_for_its_own_token() -> None:
    """A quick worker waits for its own token. Without numbers, it would take the slow worker's token."""
    async with replicas(2, numbered(2)) as workers:
        await begin(workers)
        quick, slow = workers
        async with asyncio.TaskGroup() as tg:
            first = [tg.create_task(quick.compute(1.0)), tg.create_task(slow.compute(3.0))]
            await quick.update()
            await asyncio.wait(first)  # a gradient computed before its token arrives belongs to the previous step
            again = tg.create_task(quick.compute(5.0))
            await quick.until_given({f"{DENSE}_0": 1, f"{DENSE}_1": 0})
            assert not again.done()
            tg.create_task(slow.compute(7.0))
            await quick.update()
        assert (await quick.run(quick.dense)).tolist() == [-8.0, -8.0]


async def test_first_gradient_of_a_numbered_worker_counts() -> None:
    """A worker that waits while a new chief starts computes its gradient twice. The second one is not applied."""
    async with replicas(2, numbered(2)) as workers:
        await begin(workers)
        chief, other = workers
        with chief.graph.as_default():
            tokens = chief.optimizer.get_init_tokens_op()
            with pytest.raises(af.errors.InvalidArgumentError, match="divisible among the workers"):
                chief.optimizer.get_init_tokens_op(1)
        await chief.run(tokens)
        await other.compute(3.0)
        async with asyncio.TaskGroup() as tg:
            again = tg.create_task(other.compute(1000.0))
            first = tg.create_task(chief.compute(1.0))
            await chief.until_given({f"{DENSE}_0": 1, f"{DENSE}_1": 1})
            assert not again.done()
            assert not first.done()
            await chief.update()
        assert (await chief.run(chief.dense)).tolist() == [-2.0, -2.0]
        assert (await chief.run(chief.table))[0].tolist() == [-4.0, -4.0]


async def test_cancelled_update_leaves_gradients_in_the_accumulators() -> None:
    async with replicas(2, numbered(2)) as workers:
        await begin(workers)
        chief, slow = workers
        async with asyncio.TaskGroup() as tg:
            tg.create_task(chief.compute(1.0))
            await chief.until_given({f"{DENSE}_0": 1})
            waits = tg.create_task(chief.update())
            while not await chief.session.stuck_report():  # noqa: ASYNC110
                await asyncio.sleep(0)
            waits.cancel()
            await asyncio.wait([waits])
            await chief.until_given({f"{DENSE}_0": 1})
            tg.create_task(slow.compute(3.0))
            await chief.update()
        assert (await chief.run(chief.dense)).tolist() == [-2.0, -2.0]


async def test_one_replica_can_compute_several_gradients_a_step() -> None:
    async with replicas(1, descent(3, 1)) as (worker,):
        optimizer = worker.optimizer
        with worker.graph.as_default(), pytest.raises(af.errors.InvalidArgumentError, match="num_tokens"):
            optimizer.get_init_tokens_op(1)
        tokens = optimizer.get_init_tokens_op(2)
        await begin([worker])
        await worker.run(tokens)
        await worker.compute(1.0)
        await worker.compute(2.0)
        async with asyncio.TaskGroup() as tg:
            tg.create_task(worker.compute(6.0))
            await worker.update()
        assert (await worker.run(worker.dense)).tolist() == [-3.0, -3.0]


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def train_until(workers: list[Replica], last: int, num_tokens: int = -1) -> None:
    """Train with all replicas and their hooks until the chief sees step `last`."""
    chief = workers[0]
    async with asyncio.timeout(60), af.train.Coordinator() as coord:
        hooks = [w.optimizer.make_session_run_hook(w is chief, num_tokens) for w in workers]
        for worker, hook in zip(workers, hooks, strict=True):
            hook.begin()
            await hook.after_create_session(worker.session, coord)

        async def work(worker: Replica) -> None:
            while not coord.should_stop():
                await worker.compute(1.0, rows=[0])
                if worker is chief and await worker.run(worker.step) >= last:
                    coord.request_stop()

        for worker in workers:
            coord.start(work(worker))
        await coord.join()


@pytest.mark.parametrize("build", [descent(2), descent(1, 2), numbered(2)], ids=["all", "backup", "numbered"])
async def test_training_ends_with_the_chief_and_can_restart(build: Build) -> None:
    """The chief's runner waits for gradients that are never computed, and the other replicas wait for tokens."""
    async with replicas(2, build) as workers:
        chief = workers[0]
        await train_until(workers, 3)
        reached = int(await chief.run(chief.step))
        assert reached >= 3
        assert (await chief.run(chief.dense)).tolist() == [-reached] * 2, "every update is a whole one"
        assert (await chief.run(chief.table))[0].tolist() == [-2.0 * reached] * 2
        await train_until(workers, reached + 2)
        assert await chief.run(chief.step) >= reached + 2


@pytest.mark.parametrize("build", [descent(2), numbered(2)], ids=["all", "numbered"])
async def test_training_resumes_from_an_earlier_step(build: Build) -> None:
    """After a restore, the accumulators are at a later step. If they stayed there, all gradients would be dropped."""
    async with replicas(2, build) as workers:
        chief = workers[0]
        await train_until(workers, 5)
        with chief.graph.as_default():
            back = [chief.step.assign(2), chief.dense.assign([0.0, 0.0])]
        await chief.run(back)
        await train_until(workers, 4)
        assert await chief.run(chief.step) >= 4
        assert (await chief.run(chief.dense)).tolist() == [2.0 - int(await chief.run(chief.step))] * 2


async def test_hook_requires_initialized_variables() -> None:
    async with replicas(1, lambda index: af.train.SyncReplicasOptimizer(af.train.AdamOptimizer(), 1)) as (worker,):
        hook = worker.optimizer.make_session_run_hook(True)
        async with af.train.Coordinator() as coord:
            with pytest.raises(af.errors.FailedPreconditionError, match="not begun"):
                await hook.after_create_session(worker.session, coord)
            hook.begin()
            await worker.session.clear()
            with pytest.raises(af.errors.FailedPreconditionError) as raised:
                await hook.after_create_session(worker.session, coord)
        assert {"dense", "table", "global_step", "dense/Adam"} <= set(raised.value.actual)


async def test_moving_averages_are_kept_by_the_chief() -> None:
    average = af.train.ExponentialMovingAverage(0.5)

    def build(index: int) -> af.train.SyncReplicasOptimizer:
        (dense,) = (v for v in af.trainable_variables() if v.op.name == "dense")
        return descent(1, variable_averages=average, variables_to_average=[dense])(index)

    async with replicas(1, build) as (worker,):
        await begin([worker])
        for value in (4.0, 8.0):
            async with asyncio.TaskGroup() as tg:
                tg.create_task(worker.compute(value))
                await worker.update()
        shadow = average.average(worker.dense)
        assert (await worker.run(shadow)).tolist() == [-7.0, -7.0]  # (0 - 4) / 2, and (-2 - 12) / 2


# ── building ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_devices_of_optimizer_nodes(graph: af.Graph) -> None:
    with af.device(af.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
        step, v = af.train.get_or_create_global_step(), af.get_variable("v", [2])
        opt = af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(0.1), 2)
        opt.minimize(af.reduce_sum(v * v), step)
    made: dict[str, set[str]] = {}
    for op in graph.get_operations():
        made.setdefault(op.type, set()).add(op.device)
    assert [v.device for v in af.local_variables()] == ["/job:worker/task:1"]
    assert made["ResourceConditionalAccumulator"] == made["ResourceAccumulatorTakeGradient"] == {"/job:ps/task:1"}
    assert made["ResourceAccumulatorApplyGradient"] == made["ResourceApplyGradientDescent"] == {"/job:ps/task:1"}
    assert made["FIFOQueueV2"] == made["QueueDequeueV2"] == {"/job:ps/task:0"}


def test_slots_and_variables_are_those_of_the_inner_optimizer(graph: af.Graph) -> None:
    step, v = af.train.get_or_create_global_step(), af.get_variable("v", [2])
    inner = af.train.MomentumOptimizer(0.1, 0.9)
    opt = af.train.SyncReplicasOptimizer(inner, 2)
    opt.apply_gradients([(v.value(), v), (None, af.get_variable("unused", [1]))], step)
    assert opt.get_slot_names() == ["momentum"]
    assert opt.get_slot(v, "momentum") is inner.get_slot(v, "momentum") is not None
    assert opt.variables() == inner.variables()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas_to_aggregate": 0}, "replicas_to_aggregate"),
        ({"replicas_to_aggregate": 2, "total_num_replicas": 0}, "total_num_replicas"),
        ({"replicas_to_aggregate": 2, "total_num_replicas": 3, "worker_index": 0}, "from every replica"),
        ({"replicas_to_aggregate": 2, "worker_index": 2}, "worker_index"),
        ({"replicas_to_aggregate": 2, "worker_index": -1}, "worker_index"),
    ],
)
def test_invalid_numbers_of_replicas_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(af.errors.InvalidArgumentError, match=message):
        af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(1.0), **arguments)


def test_calls_before_apply_gradients_are_rejected(graph: af.Graph) -> None:
    opt = af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(1.0), 1)
    v = af.get_variable("v", [2])
    for wrong in (
        opt.get_chief_queue_runner,
        opt.get_init_tokens_op,
        opt.make_session_run_hook(is_chief=True).begin,
        opt.make_session_run_hook(is_chief=False).begin,
        lambda: opt.apply_gradients([], af.train.get_or_create_global_step()),
        lambda: opt.apply_gradients([(v.value(), v)]),
    ):
        with pytest.raises(af.errors.InvalidArgumentError):
            wrong()
    with pytest.raises(af.errors.DTypeError):
        af.train.SyncReplicasOptimizer("adam", 1)  # type: ignore[arg-type]


async def test_late_replica_sees_the_end_of_training() -> None:
    """The other replica makes all updates before the first gradient of the late one, and leaves."""
    other_has_gone = asyncio.Event()

    async def late(value: Any) -> Any:
        await other_has_gone.wait()
        return value

    async def replica(index: int, target: str) -> None:
        optimizer = af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(0.1), replicas_to_aggregate=2)
        device = af.train.replica_device_setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{index}")
        with af.Graph().as_default(), af.device(device):
            x = af.placeholder(af.float32, [4])
            w = af.get_variable("w", [4])
            fed = af.py_coroutine(late, [x], af.float32, shapes=[4]) if index == 0 else x
            step = af.train.get_or_create_global_step()
            train = optimizer.minimize(af.reduce_sum(af.square(fed - w)), step)
            hooks = [optimizer.make_session_run_hook(is_chief=index == 0), af.train.StopAtStepHook(last_step=10)]
            async with af.train.MonitoredTrainingSession(target, is_chief=index == 0, hooks=hooks) as session:
                while not session.should_stop():
                    await session.run(train, {x: np.ones(4, np.float32)})
        if index:
            other_has_gone.set()

    async with cluster("ps", "worker", "worker") as (_, *workers), asyncio.timeout(SECONDS), asyncio.TaskGroup() as tg:
        for index, server in enumerate(workers):
            tg.create_task(replica(index, server.target))
