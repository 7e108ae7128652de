"""Several devices in one process under hostile use.

Covers stops at any moment, errors while other devices wait, many concurrent steps, and values with shared memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
import warnings
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import CancelledError, ClosedSessionError, DeadlineExceededError, InvalidArgumentError, UnknownError
from aioflow.runtime.worker import Worker
from tests.session.busy_steps import EXECUTORS, LIMIT, at, busy_step, is_idle, on, outcome
from tests.support.waiting import until_waiting

# -- stopping ----------------------------------------------------------------------------------------------------------


@EXECUTORS
async def test_step_may_be_cancelled_at_any_moment(executor: str) -> None:
    fetches, x = busy_step()
    feeds = {x: np.eye(64, dtype=np.float32)}
    rng = random.Random(1)
    cancelled = 0
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        whole = await session.run(fetches, feeds)
        for _ in range(60):
            async with asyncio.TaskGroup() as tg:
                task = tg.create_task(session.run(fetches, feeds))
                for _ in range(rng.randrange(40)):
                    await asyncio.sleep(0)
                task.cancel()
            cancelled += task.cancelled()
            assert await is_idle(session)
        again = await session.run(fetches, feeds)
    assert cancelled > 10
    np.testing.assert_array_equal(again[0], whole[0])


async def test_cancelled_step_starts_no_further_nodes() -> None:
    with at(0):
        value = x = af.placeholder("float32", [300, 300])
        for _ in range(3):
            value = af.matmul(value, x)
    with at(1):
        behind = af.tanh(value)
    feeds = {x: np.eye(300, dtype=np.float32)}
    for passes in range(12):
        async with asyncio.timeout(LIMIT), on(inline_budget=0.0) as session:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                async with asyncio.TaskGroup() as tg:
                    task = tg.create_task(session.run(behind, feeds))
                    for _ in range(passes):
                        await asyncio.sleep(0)
                    task.cancel()
                    threading.Event().wait(0.01)  # a thread may send meanwhile, of which the loop is notified later
                gc.collect()
            assert [str(w.message) for w in seen] == []
            assert await is_idle(session)


@EXECUTORS
async def test_step_may_time_out_at_any_moment(executor: str) -> None:
    fetches, x = busy_step()
    feeds = {x: np.eye(64, dtype=np.float32)}
    late = 0
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(fetches, feeds)
        for i in range(40):
            try:
                await session.run(fetches, feeds, timeout=i * 2e-4)
            except DeadlineExceededError:
                late += 1
            assert await is_idle(session)
        await session.run(fetches, feeds, timeout=LIMIT)
    assert late > 3


async def test_close_of_a_session_stops_steps_at_any_moment() -> None:
    fetches, x = busy_step()
    feeds = {x: np.eye(64, dtype=np.float32)}
    rng = random.Random(2)
    async with asyncio.timeout(LIMIT):
        for _ in range(15):
            session = on()
            async with asyncio.TaskGroup() as tg:
                tasks = [tg.create_task(outcome(session.run(fetches, feeds))) for _ in range(3)]
                for _ in range(rng.randrange(30)):
                    await asyncio.sleep(0)
                await session.close()
            ends = [task.result() for task in tasks]
            assert all(isinstance(e, list | CancelledError | ClosedSessionError) for e in ends), ends
            assert await is_idle(session)


# -- errors while others wait ------------------------------------------------------------------------------------------


def waits(kind: str, x: Any, begun: asyncio.Event) -> Any:
    """Return a tensor on device 2 that never arrives; a coroutine sets `begun` when it starts."""
    forever = asyncio.Event()

    async def wait(value: Any) -> Any:
        begun.set()
        await forever.wait()
        return value

    with at(2):
        if kind == "queue":
            return af.FIFOQueue(1, [af.float32], shapes=[()]).dequeue() + x
        if kind == "coroutine":
            return af.py_coroutine(wait, [x], af.float32, shapes=[])
    with at(1):
        source = af.py_coroutine(wait, [x], af.float32, shapes=[])
    with at(2):
        return source * 2.0


@EXECUTORS
@pytest.mark.parametrize("kind", ["queue", "coroutine", "recv"])
async def test_error_on_one_device_ends_waits_on_the_others(kind: str, executor: str) -> None:
    x = af.placeholder("float32", [])
    with at(0):
        fine = af.py_func(lambda v: v, [x], af.float32)
        checked = af.check_numerics(fine, "here it is", name="checked")
    waiting = waits(kind, x, asyncio.Event())
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        for _ in range(5):
            with pytest.raises(InvalidArgumentError, match="here it is") as raised:
                await session.run([checked, waiting], {x: np.nan})
            assert raised.value.node == "checked"
            assert await is_idle(session)
        assert await session.run(checked, {x: 1.0}) == 1.0


@EXECUTORS
@pytest.mark.parametrize("is_loop", [False, True], ids=["coroutine", "loop"])
async def test_error_leaves_surrounding_timeouts_unchanged(is_loop: bool, executor: str) -> None:
    async def fail(value: Any) -> Any:
        await asyncio.sleep(0)
        raise ValueError("in a task of the step")

    def body(value: Any) -> Any:
        return af.ensure_shape(af.py_coroutine(fail, [value], af.float32), [])

    x = af.placeholder("float32", [])
    y = x
    for device in range(2):
        with at(device):
            y += af.while_loop(lambda v: v < 9.0, body, [x]) if is_loop else body(x)
    async with on(executor=executor) as session:
        with pytest.raises(TimeoutError):
            await _late(asyncio.timeout(LIMIT), outcome(session.run(y + 1.0, {x: 1.0})))


async def _late(limit: asyncio.Timeout, failing: Awaitable[Any]) -> None:
    async with limit:
        assert isinstance(await failing, UnknownError)
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(LIMIT)


@EXECUTORS
@pytest.mark.parametrize("kind", ["queue", "coroutine", "recv"])
async def test_close_of_a_session_ends_waiting_steps(kind: str, executor: str) -> None:
    x = af.placeholder("float32", [])
    waiting = waits(kind, x, asyncio.Event())
    async with asyncio.timeout(LIMIT):
        session = on(executor=executor)
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(outcome(session.run(waiting, {x: 1.0})))
            await until_waiting(session)
            await session.close()
        assert isinstance(task.result(), CancelledError)
        assert await is_idle(session)


async def test_stuck_report_names_edges_and_their_sources() -> None:
    x = af.placeholder("float32", [])
    begun = asyncio.Event()
    waiting = waits("recv", x, begun)
    async with asyncio.timeout(LIMIT), on() as session:
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(waiting, {x: 1.0}))
            await until_waiting(session, 2)  # the coroutine and the receiver of its result
            (step,) = await session.stuck_report()
            task.cancel()
        assert "Recv of edge" in str(step)
        assert "from /job:localhost/replica:0/task:0/device:CPU:1" in str(step)
        assert await is_idle(session)


# -- many concurrent steps ---------------------------------------------------------------------------------------------


@EXECUTORS
async def test_fifty_concurrent_steps_lose_no_update(executor: str) -> None:
    with at(1):
        v = af.Variable(np.zeros(1000, np.float32), name="v")
    with at(2):
        w = af.Variable(np.zeros(1000, np.float32), name="w")
    x = af.placeholder("float32", [1000])
    with at(0):
        y = x * 2.0
    with at(1):
        add_v = v.assign_add(y)
    with af.control_dependencies([add_v]), at(2):
        add_w = w.assign_add(y + 1.0)
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:
        await session.run(af.global_variables_initializer())
        ones = np.ones(1000, np.float32)
        await asyncio.gather(*(session.run([add_v, add_w], {x: ones}) for _ in range(50)))
        found = await session.run([v, w])
        assert await is_idle(session)
    np.testing.assert_array_equal(found[0], 100 * ones)
    np.testing.assert_array_equal(found[1], 150 * ones)


async def test_concurrent_first_steps_agree_on_the_device_of_a_variable() -> None:
    # A large graph is compiled in threads, so both steps are placed before either plan is known. Without agreement,
    # each plan would put the variable on another device.
    for attempt in range(4):
        with af.Graph().as_default():
            v = af.Variable(np.zeros(3, np.float32), name="v")
            x = af.placeholder("float32", [3])
            others = [af.py_func(lambda a: a, [x], af.float32) for _ in range(300 + attempt)]
            known = af.is_variable_initialized(v)
            start, ask = [*others[:100], v.initializer], [*others[100:], known]
            feeds = {x: np.zeros(3, np.float32)}
            async with asyncio.timeout(LIMIT), on(4, placement="round_robin") as session:
                await asyncio.gather(session.run(start, feeds), session.run(ask, feeds))
                assert (await session.run(ask, feeds))[-1]


async def test_sessions_on_one_worker_share_only_the_devices_of_variables() -> None:
    config = af.SessionConfig(device_count={"CPU": 3})
    worker = Worker(config)
    first, second = af.Graph(), af.Graph()
    with first.as_default():
        with at(1):
            v = af.Variable([1.0], name="v")
            a = af.random_uniform([], seed=1, name="a")
        with at(2):
            b = af.random_uniform([], seed=1, name="b")
    async with af.Session(worker, graph=first, config=config) as session:
        await session.run([v.initializer, a, b])
    with second.as_default():  # with other nodes of these names
        again = af.Variable([2.0], name="v")
        with at(2):
            a = af.random_uniform([], seed=1, name="a")
        with af.colocate_with(a):
            b = af.random_uniform([], seed=1, name="b")
    async with af.Session(worker, graph=second, config=config) as session:
        np.testing.assert_array_equal(await session.run(again), [1.0])
        await session.run([a, b])
        (part,) = session.plan([a, b]).parts.values()
        assert all(device.endswith("CPU:2") for device in part.subgraphs)


async def test_run_sync_from_threads_and_callables() -> None:
    with at(0):
        x = af.placeholder("float32", [])
        a = af.random_uniform([], seed=3) * 0.0 + x
    with at(1):
        y = a + 1.0
    async with asyncio.timeout(LIMIT), on() as session:
        found: dict[int, Any] = {}

        def work(i: int) -> None:
            found[i] = session.run_sync(y, {x: float(i)})

        call = session.make_callable([y, a], [x])
        threads = [asyncio.to_thread(work, i) for i in range(8)]
        results: list[Any] = await asyncio.gather(*threads, *(call(float(i)) for i in range(20)))
        assert found == {i: i + 1.0 for i in range(8)}
        assert [tuple(r) for r in results[8:]] == [(i + 1.0, float(i)) for i in range(20)]


async def test_stream_over_several_devices_with_prefetch() -> None:
    x = af.placeholder("float32", [])
    with at(1):
        a = af.random_uniform([], seed=3) * 0.0 + x
    with at(2):
        y = a * 2.0
    async with asyncio.timeout(LIMIT), on() as session:
        async with session.stream(y, ({x: float(i)} for i in range(30)), prefetch=5) as steps:
            assert [r async for r in steps] == [2.0 * i for i in range(30)]
        async with session.stream(y, ({x: float(i)} for i in range(30)), prefetch=5) as steps:
            async for _ in steps:
                break
        assert await is_idle(session)


# -- partial runs ------------------------------------------------------------------------------------------------------


async def test_partial_run_with_feeds_and_fetches_on_different_devices() -> None:
    with at(0):
        a = af.placeholder("float32", [2])
    with at(1):
        b = af.placeholder("float32", [2])
        r1 = af.tanh(a) + 1.0
    with at(2):
        c = af.placeholder("float32", [2])
        r2 = r1 * b
    with at(0):
        r3 = r2 + c
        r4 = af.cond(a[0] > b[0], lambda: c + 1.0, lambda: r2)
    first = np.tanh(np.array([1, 2], np.float32)) + np.float32(1)
    factors = np.array([3, 4], np.float32)
    async with asyncio.timeout(LIMIT), on() as session:
        for _ in range(3):
            handle = await session.partial_run_setup([r1, r2, r3, r4], [a, b, c])
            with pytest.raises(InvalidArgumentError, match="cannot be computed"):
                await session.partial_run(handle, r2, {a: [1, 2]})
            np.testing.assert_array_equal(await session.partial_run(handle, r1, {a: [1, 2]}), first)
            np.testing.assert_array_equal(await session.partial_run(handle, r2, {b: [3, 4]}), first * factors)
            r3_value, r4_value = await session.partial_run(handle, [r3, r4], {c: [1, 1]})
            np.testing.assert_array_equal(r3_value, first * factors + np.float32(1))
            np.testing.assert_array_equal(r4_value, first * factors)
        assert await is_idle(session)


async def test_partial_run_needs_the_same_feeds_on_two_devices_as_on_one() -> None:
    # In other steps, the large values are requested, one of them only when the other work is done.
    shape = [600, 600]
    a, b = af.placeholder("float32", shape), af.placeholder("float32", shape)
    with at(0):
        large = [af.exp(a * float(i)) for i in range(2)]
    with at(1):
        work = b
        for _ in range(10):
            work = af.matmul(work, b)
        late = af.reduce_sum(work, name="late")
        total = a
        for value in large:
            total = af.matmul(total, a) + value
        early = af.reduce_sum(total)
    zeros = np.zeros(shape, np.float32)
    async with asyncio.timeout(LIMIT), on(2) as session:
        names = [node.name for node in session.plan([early, late], [a, b]).nodes()]
        assert any(name.startswith("request") and "late" in name for name in names)  # otherwise this test shows nothing
        handle = await session.partial_run_setup([early, late], [a, b])
        assert await session.partial_run(handle, early, {a: zeros}) == 600 * 600
        assert await session.partial_run(handle, late, {b: zeros}) == 0


async def test_concurrent_partial_runs_are_compiled_once() -> None:
    a = af.placeholder("float32", [])
    with at(1):
        b = a + 1.0
    with at(2):
        c = b * 2.0
    async with asyncio.timeout(LIMIT), on() as session:
        handles = await asyncio.gather(*(session.partial_run_setup([b, c], [a]) for _ in range(10)))
        results: list[Any] = await asyncio.gather(
            *(session.partial_run(handle, [b, c], {a: float(i)}) for i, handle in enumerate(handles))
        )
        assert [tuple(r) for r in results] == [(i + 1.0, 2 * i + 2.0) for i in range(10)]
        assert (await session.worker.state()).registered == 1


async def test_partial_runs_with_a_small_plan_cache() -> None:
    a = af.placeholder("float32", [])
    tensors = []
    for i in range(4):
        with at(i % 3):
            tensors.append(a + float(i))
    async with asyncio.timeout(LIMIT), on(plan_cache_size=1) as session:
        handles = await asyncio.gather(*(session.partial_run_setup([t], [a]) for t in tensors))
        for i, (handle, t) in enumerate(zip(handles, tensors, strict=True)):
            assert await session.partial_run(handle, t, {a: 1.0}) == 1.0 + i


# -- Python functions --------------------------------------------------------------------------------------------------

CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default="nobody")


@EXECUTORS
async def test_python_functions_see_the_context_of_the_caller_on_every_device(executor: str) -> None:
    seen: list[tuple[str, str, bool]] = []
    main = threading.get_ident()

    def called(x: Any) -> Any:
        seen.append(("func", CALLER.get(), threading.get_ident() == main))
        return x

    async def awaited(x: Any) -> Any:
        await asyncio.sleep(0)
        seen.append(("coroutine", CALLER.get(), threading.get_ident() == main))
        return x

    x = af.placeholder("float32", [])
    value: Any = x
    for device in (0, 1, 2, 0):
        with at(device):
            value = af.py_func(called, [value], af.float32)
            value = af.py_coroutine(awaited, [value], af.float32, shapes=[])
    async with asyncio.timeout(LIMIT), on(executor=executor) as session:

        async def as_caller(name: str) -> Any:
            CALLER.set(name)
            return await session.run(value, {x: 2.0})

        assert list(await asyncio.gather(as_caller("one"), as_caller("two"))) == [2.0, 2.0]
    assert sorted(seen) == sorted(
        (kind, name, kind == "coroutine") for kind in ("func", "coroutine") for name in ("one", "two") for _ in range(4)
    )
