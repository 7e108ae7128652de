"""The driver of primitive loops: stopping between kernels, leaving the event loop in time, traces of every kernel."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import CancelledError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from benchmarks.primitive_form import primitive_form
from tests.support.waiting import until_waiting

_RAN: list[tuple[int, Any]] = []  # thread and value of each run
_AT: dict[int, Any] = {}  # value -> action when that value arrives

if "TestNoted" not in OPS:
    define_op("TestNoted", "x: T", "y: T", ["T: type"], stateful=True, shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestNoted"):

    @kernel("TestNoted")
    def _noted(x: Any) -> Any:
        _RAN.append((threading.get_ident(), int(x)))
        _AT.get(int(x), lambda: None)()
        return x


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    _RAN.clear()
    _AT.clear()
    with primitive_form():
        yield


def _counting(limit: int) -> Any:
    return af.while_loop(lambda i: i < limit, lambda i: [make("TestNoted", i) + 1], [af.constant(0)])


def _session(budget: float) -> af.Session:
    return af.Session(config=af.SessionConfig(inline_budget=budget))


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@pytest.mark.parametrize("budget", [0.0, 60.0])
async def test_step_stops_between_two_kernels(graph: af.Graph, how: str, budget: float) -> None:
    """Stop a step whose kernel runs in a thread or on the event loop; no kernel may start after the running one."""
    session, reached, may_go_on = _session(budget), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        reached.set()
        if budget:
            (step,) = session._steps
            step.stop(CancelledError("the session was closed: as if"))
        else:
            may_go_on.wait(10)

    _AT[5] = wait
    task = loop.create_task(session.run(_counting(50)))
    await loop.run_in_executor(None, reached.wait, 10)
    if budget == 0 and how == "closed":
        # Two turns of the loop, so that `close` has asked the step to stop before the kernel returns.
        closing = loop.create_task(session.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_go_on.set()
        await closing
    elif budget == 0:
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
    await asyncio.wait([task])
    assert task.cancelled() or "closed" in str(task.exception())
    assert [value for _, value in _RAN] == [0, 1, 2, 3, 4, 5]
    await session.close()


async def test_cancel_while_an_async_node_waits_and_a_kernel_runs(graph: af.Graph) -> None:
    """The kernel's thread stops with an error of its own, but the caller must see only the cancellation."""
    reached, may_go_on = threading.Event(), threading.Event()
    queue = af.FIFOQueue(9, ["int32"], shapes=[[]])

    def wait() -> None:
        reached.set()
        may_go_on.wait(10)

    _AT[1] = wait

    def body(i: Any) -> Any:
        return make("TestNoted", i + queue.dequeue())

    count = af.while_loop(lambda i: i < 9, body, [af.constant(0)])
    async with _session(0.0) as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run([count, queue.dequeue(name="other")]))
        await until_waiting(session, 2)
        await session.run(queue.enqueue(1))
        await session.run(queue.enqueue(1))
        await asyncio.to_thread(reached.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_long_loop_leaves_the_event_loop(graph: af.Graph) -> None:
    async with _session(0.0) as session:
        assert await session.run(_counting(5)) == 5
    here = threading.get_ident()
    assert [thread == here for thread, _ in _RAN][1:] == [False] * 4
    _RAN.clear()
    count = _counting(5)
    async with _session(60.0) as session:
        assert await session.run(count) == 5
        assert [thread == here for thread, _ in _RAN] == [False] * 5, "how long its kernels take is not known yet"
        _RAN.clear()
        assert await session.run(count) == 5
    assert [thread == here for thread, _ in _RAN] == [True] * 5


async def test_trace_counts_every_run_of_a_kernel(graph: af.Graph) -> None:
    """Constants are not in the trace, since they are built in, as in a strand."""
    metadata = af.RunMetadata()
    options = af.RunOptions(trace_level=af.TraceLevel.FULL)
    async with _session(60.0) as session:
        assert await session.run(_counting(3), options=options, run_metadata=metadata) == 3
    counts = Counter(node.op for node in metadata.step_stats[0].nodes)
    assert counts == {"Less": 4, "Identity": 3, "TestNoted": 3, "AddV2": 3}


@pytest.mark.parametrize("budget", [0.0, 60.0])
async def test_fetched_array_is_freed_without_the_garbage_collector(graph: af.Graph, budget: float) -> None:
    x = af.placeholder("float32", [None])
    loop = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2.0), [0, x])[1]
    data = np.ones(1_000_000, np.float32)
    async with _session(budget) as session:
        await session.run(loop, {x: data})
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(6):
                await session.run(loop, {x: data})
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert left < 2.5 * data.nbytes  # a thread may still hold the last array


async def test_node_cancelled_before_its_first_turn_closes_its_coroutine(graph: af.Graph) -> None:
    """An unclosed coroutine would warn that it was never awaited."""
    meeting = asyncio.Event()

    async def hand_on(value: Any) -> Any:
        await meeting.wait()
        return value

    async def fail(value: Any) -> Any:
        await meeting.wait()
        raise ValueError("on purpose")

    async def release(value: Any) -> Any:
        meeting.set()
        return value

    def coroutine(function: Any, value: Any) -> Any:
        return af.py_coroutine(function, [value], af.float32, shapes=[])

    x = af.placeholder("float32", [])
    first = coroutine(hand_on, x)
    second, failed, released = coroutine(hand_on, first), coroutine(fail, x), coroutine(release, x)
    fetches = [af.cond(x > 0.0, lambda: second, lambda: x), failed, released]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with _session(60.0) as session:
            with pytest.raises(af.errors.UnknownError, match="on purpose"):
                await session.run(fetches, {x: 1.0})
        gc.collect()
    assert [str(w.message) for w in seen] == []
