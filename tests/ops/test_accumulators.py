"""Conditional accumulators through sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from tests.support.waiting import time_runs_out, until_waiting


async def test_take_grad_waits_for_enough_gradients_and_returns_their_mean(graph: af.Graph) -> None:
    gradients = af.ConditionalAccumulator("float32", shape=[2], name="grads")
    value = af.placeholder("float32", [2])
    add, count, taken = gradients.apply_grad(value), gradients.num_accumulated(), gradients.take_grad(2)
    assert taken.shape == (2,)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(taken))
        await session.run(add, {value: [1.0, 2.0]})
        (waiting,) = await until_waiting(session)
        assert "accumulator 'grads' (1 of 2 gradients, step 0)" in waiting
        assert not task.done()
        await session.run(add, {value: [3.0, 4.0]})
        assert (await task).tolist() == [2.0, 3.0]
        assert await session.run(count) == 0


async def test_stale_gradients_are_dropped(graph: af.Graph) -> None:
    gradients = af.ConditionalAccumulator("float32", shape=[], reduction_type="SUM")
    count = gradients.num_accumulated()
    async with af.Session() as session:
        await session.run(gradients.set_global_step(2))
        await session.run(gradients.set_global_step(1))
        await session.run(gradients.apply_grad(1.0, local_step=1))
        assert await session.run(count) == 0
        for step in (2, 3):
            await session.run(gradients.apply_grad(5.0, local_step=step))
        assert await session.run(gradients.take_grad(1)) == 10.0
        await session.run(gradients.apply_grad(1.0, local_step=2))
        assert await session.run(count) == 0


async def test_cancelled_take_grad_leaves_the_accumulator_unchanged(graph: af.Graph) -> None:
    gradients = af.ConditionalAccumulator("float32", shape=[])
    async with af.Session() as session:
        error = await time_runs_out(session, session.run(gradients.take_grad(1), timeout=60))
        assert "accumulator" in str(error)
        await session.run(gradients.apply_grad(3.0))
        assert await session.run(gradients.num_accumulated()) == 1
        assert await session.run(gradients.take_grad(1)) == 3.0


@pytest.mark.parametrize("kind", [af.ConditionalAccumulator, af.SparseConditionalAccumulator])
async def test_close_cancels_waiters_and_restart_reopens(graph: af.Graph, kind: Any) -> None:
    gradients = kind("float32", [1])
    rows = [] if kind is af.ConditionalAccumulator else [[0]]
    add = [gradients.apply_grad(*rows, [2.0], local_step=step) for step in (0, 1)]
    taken, close, back = gradients.take_grad(1), gradients.close(), gradients.restart(0)

    async def refused() -> None:
        with pytest.raises(errors.CancelledError, match="closed"):
            await session.run(taken)

    async with af.Session() as session, asyncio.TaskGroup() as tg:
        await session.run(gradients.set_global_step(1))
        waits = tg.create_task(refused())
        await until_waiting(session)
        await session.run(close)
        await waits
        await refused()
        await session.run(add[0])
        assert await session.run(gradients.num_accumulated()) == 0, "stale"
        await session.run(back)
        await session.run(add[1])
        assert await session.run(gradients.num_accumulated()) == 0, "undone"
        await session.run(add[0])
        await session.run(taken)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "variable"])
async def test_accumulator_takes_steps_of_any_integer_dtype(graph: af.Graph, sparse: bool, dtype: str) -> None:
    gradients: Any = (af.SparseConditionalAccumulator if sparse else af.ConditionalAccumulator)("float32", shape=[1])
    step = af.Variable(1, name="step") if dtype == "variable" else af.constant(1, dtype)
    value: tuple[Any, ...] = (af.constant([0]), [1.0], af.constant([1])) if sparse else ([1.0],)
    late, early = gradients.apply_grad(*value, local_step=step), gradients.apply_grad(*value, local_step=np.int32(0))
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        await session.run(gradients.set_global_step(step))
        await session.run([late, early])
        assert await session.run(gradients.num_accumulated()) == 1
        await session.run(gradients.restart(step))
        await session.run(gradients.go_back(step))
        await session.run(early)
        assert await session.run(gradients.num_accumulated()) == 1
    for refuse in (gradients.set_global_step, gradients.restart, gradients.go_back):
        for wrong in (1.5, af.constant(1.5), "1"):
            with pytest.raises(errors.DTypeError):
                refuse(wrong)


async def test_dense_gradients_that_do_not_fit_are_refused(graph: af.Graph) -> None:
    gradients = af.ConditionalAccumulator("float32", shape=[2])
    value = af.placeholder("float32")
    with pytest.raises(errors.InvalidArgumentError):
        gradients.apply_grad([1.0])
    wrong: list[tuple[Any, Any]] = [(gradients.apply_grad(value), {value: [1.0]}), (gradients.take_grad(0), None)]
    wrong.append((gradients.limit(0), None))
    async with af.Session() as session:
        for fetch, feeds in wrong:
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(fetch, feeds)


async def test_mean_of_a_row_counts_only_gradients_with_that_row(graph: af.Graph) -> None:
    gradients = af.SparseConditionalAccumulator("float32", shape=[4, 2], name="rows")
    taken = gradients.take_grad(2)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(taken))
        await session.run(gradients.apply_grad([2, 0, 2], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        (waiting,) = await until_waiting(session)
        assert "accumulator 'rows' (1 of 2 gradients, step 0)" in waiting
        await session.run(gradients.apply_grad([3, 2], [[1.0, 1.0], [2.0, 2.0]], grad_shape=[4, 2]))
        found = await task
        assert found.indices.tolist() == [0, 2, 3]
        assert found.values.tolist() == [[3.0, 4.0], [4.0, 5.0], [1.0, 1.0]]
        assert found.shape.tolist() == [4, 2]
        assert await session.stuck_report() == []


async def test_rows_of_more_than_32_dimensions_are_summed(graph: af.Graph) -> None:
    # NumPy's `ufunc.at` crashes the process at a rank of 33.
    row = np.ones((1,) * 39, np.float32)
    total = af.SparseConditionalAccumulator("float32", reduction_type="SUM")
    taken = total.take_grad(1)
    async with af.Session() as session:
        await session.run(total.apply_grad([2, 0, 2], np.stack([row, 2 * row, 3 * row])))
        found = await session.run(taken)
    assert found.indices.tolist() == [0, 2]
    np.testing.assert_array_equal(found.values, np.stack([2 * row, 4 * row]))


async def test_indexed_slices_can_be_applied_and_taken(graph: af.Graph) -> None:
    table = af.get_variable("table", initializer=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    (gradient,) = af.gradients(af.gather(table, [2, 0, 2]), [table])
    assert isinstance(gradient, af.IndexedSlices)
    total = af.SparseConditionalAccumulator("float32", reduction_type="SUM")
    taken = total.take_indexed_slices_grad(1)
    async with af.Session() as session:
        await session.run(table.initializer)
        for _ in range(2):
            await session.run(total.apply_indexed_slices_grad(gradient))
        indices, values = await session.run([taken.indices, taken.values])
        assert indices.tolist() == [0, 2]
        assert values.tolist() == [[2.0, 2.0], [4.0, 4.0]]
        await session.run(total.apply_grad([1], [[1.0, 1.0]], local_step=0))
        assert await session.run(total.num_accumulated()) == 0, "stale"


async def test_sparse_gradients_that_do_not_fit_are_refused(graph: af.Graph) -> None:
    gradients = af.SparseConditionalAccumulator("float32", shape=[3, 2])
    indices, values = af.placeholder("int64"), af.placeholder("float32")
    add = gradients.apply_grad(indices, values)
    free = af.SparseConditionalAccumulator("float32", shared_name="free")
    row = [1.0, 2.0]
    wrong: list[tuple[Any, Any]] = [
        (add, {indices: [3], values: [row]}),
        (add, {indices: [-1], values: [row]}),
        (add, {indices: [0, 1], values: [row]}),
        (add, {indices: [[0]], values: [row]}),
        (add, {indices: [0], values: [[1.0]]}),
        (gradients.apply_grad([0], [row], grad_shape=[4, 2]), None),
        (gradients.take_grad(0), None),
        (af.ConditionalAccumulator("float32", shared_name="free").num_accumulated(), None),
    ]
    async with af.Session() as session:
        await session.run(free.apply_grad([0], [row]))
        wrong.append((free.apply_grad([0], [[1.0]]), None))
        for fetch, feeds in wrong:
            with pytest.raises(errors.InvalidArgumentError):
                await session.run(fetch, feeds)
        assert await session.run([gradients.num_accumulated(), free.num_accumulated()]) == [0, 1]


async def test_cancelled_sparse_take_grad_leaves_the_accumulator_unchanged(graph: af.Graph) -> None:
    gradients = af.SparseConditionalAccumulator("float32")
    async with af.Session() as session:
        error = await time_runs_out(session, session.run(gradients.take_grad(1), timeout=60))
        assert "accumulator" in str(error)
        await session.run(gradients.apply_grad([7], [3.0]))
        assert (await session.run(gradients.take_grad(1))).values.tolist() == [3.0]
