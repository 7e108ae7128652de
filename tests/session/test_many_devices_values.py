"""Values of steps on several devices: shared memory, loops over devices, and memory over many steps."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from tests.session.busy_steps import EXECUTORS, LIMIT, at, busy_step, is_idle, on

# -- fetches and feeds -------------------------------------------------------------------------------------------------


@EXECUTORS
async def test_repeated_fetches_and_intermediate_feeds(executor: str) -> None:
    with at(0):
        x = af.placeholder("float32", [2], name="x")
        a = af.random_uniform([2], seed=1) * 0.0 + x
    with at(1):
        b = af.add(a, 1.0, name="b")
    with at(2):
        c = b * 2.0
        v = af.Variable([0.0, 0.0], name="v")
        update = v.assign_add(c).op
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(v.initializer)
        ones = np.ones(2, np.float32)
        twice = await session.run([b, b, "b:0", {"x": x, "a": a}], {x: ones})
        for value in twice[:3]:
            np.testing.assert_array_equal(value, [2, 2])
        twice[0][:] = 7  # each fetch belongs to the caller
        np.testing.assert_array_equal(twice[1], [2, 2])
        np.testing.assert_array_equal((await session.run([b, c], {b: ones}))[1], [2, 2])
        await session.run(update, {x: ones})
        assert await session.run([update, update], {b: ones}) == [None, None]
        np.testing.assert_array_equal(await session.run(v), [6, 6])
        assert await session.run([]) == []


@EXECUTORS
async def test_fed_array_belongs_to_the_caller_on_every_device(executor: str) -> None:
    x = af.placeholder("float32", [1000])
    with at(0):
        passed = af.identity(x)
    with at(1):
        first = af.Variable(np.zeros(1000, np.float32))
        keep_first = first.assign(af.identity(passed))
    with at(2):
        second = af.Variable(np.zeros(1000, np.float32))
        queue = af.FIFOQueue(4, [af.float32], shapes=[(1000,)])
        keep_second = [second.assign(passed).op, queue.enqueue(passed)]
        dequeue = queue.dequeue()
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(af.global_variables_initializer())
        fed = np.arange(1000, dtype=np.float32)
        fetched, got = await session.run([passed, x, keep_first.op, keep_second], {x: fed}), np.arange(1000)
        fed[:] = -1
        fetched[0][:] = -2
        np.testing.assert_array_equal(await session.run(first), got)
        np.testing.assert_array_equal(await session.run(second), got)
        np.testing.assert_array_equal(await session.run(dequeue), got)


@EXECUTORS
async def test_sent_value_survives_in_place_updates_of_its_receivers(executor: str) -> None:
    x = af.placeholder("float32", [5000])
    with at(0):
        made = af.exp(x)
        v = af.Variable(np.zeros(5000, np.float32), name="v")
        keep_v = v.assign(made).op
    with at(1):
        w = af.Variable(np.zeros(5000, np.float32), name="w")
        keep_w = w.assign(made).op
        held = made + 0.0
    with af.control_dependencies([keep_v, keep_w]):
        add_v = v.assign_add(af.ones([5000]))
    with at(1), af.control_dependencies([keep_w, add_v]):
        add_w = w.assign_add(2.0 * af.ones([5000]))
    with at(2):
        late = af.py_func(lambda a, *_: a + 0, [made, add_w.op.outputs[0] if add_w.op.outputs else add_w], af.float32)
        negative = af.negative(made)
    zeros = np.zeros(5000, np.float32)
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(af.global_variables_initializer())
        found = await session.run([made, held, late, negative, add_v, add_w], {x: zeros})
        for value, expected in zip(found, (1, 1, 1, -1, 2, 3), strict=True):
            np.testing.assert_array_equal(value, zeros + expected)
        found[0][:] = 9
        found[4][:] = 9
        np.testing.assert_array_equal(await session.run(v), zeros + 2)
        np.testing.assert_array_equal(await session.run(w), zeros + 3)


@EXECUTORS
async def test_variable_may_change_while_another_device_reads_it(executor: str) -> None:
    with at(0):
        v = af.Variable(np.zeros(4000, np.float32), name="v")
        before = v.read_value()
    with at(1):
        seen = before + 0.0
        kept = af.identity(before)
    with at(0), af.control_dependencies([before]):
        changed = v.assign_add(np.ones(4000, np.float32), read_value=True)
    with at(1), af.control_dependencies([changed]):
        after = af.identity(kept) + 0.0
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(v.initializer)
        for i in range(5):
            values = await session.run([seen, kept, after, changed])
            for value, expected in zip(values, (i, i, i, i + 1), strict=True):
                np.testing.assert_array_equal(value, np.full(4000, expected, np.float32))


@EXECUTORS
@pytest.mark.parametrize("optimizations", [True, False])
async def test_empty_arrays_strings_and_sparse_tensors_cross_devices(executor: str, optimizations: bool) -> None:
    with at(0):
        x = af.placeholder("float32", [None, 3])
        text = af.placeholder("string", [None])
        sparse = af.sparse_placeholder(af.float32)
        big = af.random_uniform([], seed=1) * 0.0
        rows = x + big
        joined = af.strings.join([text, text]) if hasattr(af, "strings") else af.string_join([text, text])
        scaled = af.SparseTensor(sparse.indices, sparse.values + big, sparse.dense_shape)
    with at(1):
        doubled = af.concat([rows, rows], 0)
        again = af.string_join([joined, text])
        dense = af.sparse_tensor_to_dense(scaled)
    with at(2):
        ends = [doubled * 1.0, af.identity(again), dense + 1.0, scaled]
    async with asyncio.timeout(LIMIT), on(executor=executor, optimizations=optimizations) as session:
        for count in (0, 2):
            fed = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
            words = np.array([f"wörd{i}".encode() for i in range(count)], dtype=object)
            value = af.SparseTensorValue(
                np.array([[i, i] for i in range(count)], np.int64).reshape(count, 2),
                np.arange(1, count + 1, dtype=np.float32),
                np.array([3, 3], np.int64),
            )
            found = await session.run(ends, {x: fed, text: words, sparse: value})
            np.testing.assert_array_equal(found[0], np.concatenate([fed, fed]))
            assert found[0].shape == (2 * count, 3)
            assert found[1].tolist() == [w * 3 for w in words.tolist()]
            expected = np.ones((3, 3), np.float32)
            for i in range(count):
                expected[i, i] += i + 1
            np.testing.assert_array_equal(found[2], expected)
            np.testing.assert_array_equal(found[3].indices, value.indices)


# -- loops and branches ------------------------------------------------------------------------------------------------


@EXECUTORS
async def test_tensor_arrays_and_gradients_of_loops_across_devices(executor: str) -> None:
    x = af.placeholder("float32", [3])

    def body(i: Any, v: Any, array: Any) -> Any:
        with at(1):
            new = af.tanh(v * x)
        with at(2):
            return i + 1, new, array.write(i, new)

    with at(2):
        array = af.TensorArray(af.float32, size=5, element_shape=[3])
    with at(0):
        _, last, array = af.while_loop(lambda i, *_: i < 5, body, [0, x, array])
    stacked = array.stack()
    (gradient,) = af.gradients(af.reduce_sum(stacked) + af.reduce_sum(last), [x])

    def value(v: Any) -> Any:
        total, current = [], v
        for _ in range(5):
            current = np.tanh(current * v)
            total.append(current)
        return np.stack(total)

    point = np.array([0.5, -0.25, 0.75])
    small = 1e-6
    differences = []
    for i in range(3):
        up, down = point.copy(), point.copy()
        up[i] += small
        down[i] -= small
        a, b = value(up), value(down)
        differences.append((a.sum() + a[-1].sum() - b.sum() - b[-1].sum()) / (2 * small))
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        found, slope = await session.run([stacked, gradient], {x: point.astype(np.float32)})
    np.testing.assert_allclose(found, value(point), rtol=1e-5)
    np.testing.assert_allclose(slope, differences, rtol=1e-4)


@EXECUTORS
async def test_dead_fetch_on_another_device_is_an_error(executor: str) -> None:
    p = af.placeholder("bool", [])
    with at(0):
        x = af.random_uniform([], seed=1) * 0.0 + 2.0
        off, live = af.raw_ops.Switch(data=x, pred=p)
    with at(1):
        one, two = off + 1.0, live + 2.0
    with at(2):
        merged = af.raw_ops.Merge(inputs=[one, two])[0] * 10.0
        far = one * 2.0
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        for _ in range(3):
            assert await session.run([merged, far], {p: False}) == [30.0, 6.0]
            assert await session.run([merged, two], {p: True}) == [40.0, 4.0]
            with pytest.raises(InvalidArgumentError, match="branch that was not taken"):
                await session.run([merged, far], {p: True})
            assert await is_idle(session)


@EXECUTORS
async def test_check_finite_and_traces_over_several_devices(executor: str) -> None:
    fetches, x = busy_step()
    with at(2):
        bad = af.log(fetches[1] - fetches[1], name="bad")
    with at(1):
        behind = bad + 1.0
    feeds = {x: np.eye(64, dtype=np.float32)}
    async with asyncio.timeout(LIMIT), on(executor=executor, check_finite=True) as session:
        metadata = af.RunMetadata()
        await session.run(fetches, feeds, options=af.RunOptions(trace_level=af.TraceLevel.FULL), run_metadata=metadata)
        assert len(metadata.step_stats) == 3
        with pytest.raises(InvalidArgumentError) as raised:
            await session.run([*fetches, behind], feeds)
        assert raised.value.node == "bad"
        assert await is_idle(session)


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_small_plan_cache_deregisters_parts_on_all_devices() -> None:
    with at(0):
        x = af.random_uniform([], seed=1) * 0.0
    tensors = []
    for i in range(12):
        with at(i % 3):
            tensors.append(x + float(i))
    async with asyncio.timeout(LIMIT), on(plan_cache_size=3) as session:
        for _ in range(2):
            found = await asyncio.gather(*(session.run(t) for t in tensors))
            assert found == [float(i) for i in range(12)]
        assert (await session.worker.state()).registered <= 4


def looping(count: Any) -> Any:
    def body(i: Any, v: Any) -> Any:
        with at(1):
            w = af.tanh(v)
        with at(2):
            return i + 1, w + 0.5

    with at(0):
        return af.while_loop(lambda i, _: i < count, body, [0, af.zeros([10_000])])[1]


@EXECUTORS
async def test_long_loop_on_several_devices_keeps_no_iterations(executor: str) -> None:
    count = af.placeholder("int32", [])
    out = looping(count)
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(out, {count: 20})

        async def peak(steps: int) -> int:
            gc.collect()
            tracemalloc.start()
            try:
                await session.run(out, {count: steps})
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        short, long = await peak(20), await peak(420)
    assert long < short + 4_000_000  # the values of the 400 iterations take 16 MB and more


@EXECUTORS
async def test_steps_leave_no_objects_behind(executor: str) -> None:
    fetches, x = busy_step()
    feeds = {x: np.eye(64, dtype=np.float32)}
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:

        async def run(times: int) -> int:
            for _ in range(times):
                await session.run(fetches, feeds)
            gc.collect()
            return len(gc.get_objects())

        await run(5)
        before = await run(5)
        assert await run(20) < before + 100
