"""Async iterators as sources, and `Session.stream`: order, backpressure, ends, errors, early exit, closing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.errors import FailedPreconditionError
from aioflow.kernels.function.async_source import SourceCore
from tests.support.random_examples import examples


class Numbers:
    """An async iterable that counts its progress and can be paused."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count = count
        self.fail_at = fail_at
        self.read = 0
        self.opened = 0
        self.closed = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> AsyncIterator[Any]:
        self.opened += 1
        try:
            for i in range(self.count):
                await self.gate.wait()
                if i == self.fail_at:
                    raise KeyError(f"no {i}")
                self.read += 1
                yield np.float32(i)
        finally:
            self.closed += 1


def node(source: Any, **options: Any) -> af.Tensor:
    found: af.Tensor = af.from_async_iterator(source, "float32", shapes=[], **options)
    return found


async def pass_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_step_receives_the_next_element() -> None:
    numbers = Numbers(3)
    x = node(numbers)
    y = x * 10.0
    async with af.Session() as session:
        assert [await session.run([x, y]) for _ in range(3)] == [[0, 0], [1, 10], [2, 20]]
        for _ in range(2):
            with pytest.raises(af.errors.OutOfRangeError) as caught:
                await session.run(y)
            assert caught.value.node == x.op.name
    assert (numbers.opened, numbers.closed) == (1, 1)


async def test_source_checks_shape_and_dtype_of_each_component() -> None:
    async def pairs() -> AsyncIterator[Any]:
        yield np.int32(1), [1.0, 2.0]
        yield np.int32(1), [1.0]
        yield np.int64(1), [1.0, 2.0]
        yield np.int32(2), [3.0, 4.0]

    a, b = af.from_async_iterator(pairs, ["int32", "float32"], shapes=[[], [2]])
    async with af.Session() as session:
        first = await session.run([a, b])
        assert first[0] == 1
        assert first[1].tolist() == [1, 2]
        with pytest.raises(af.errors.InvalidArgumentError, match="wrong shape"):
            await session.run(a)
        with pytest.raises(af.errors.DTypeError):
            await session.run(a)
        assert await session.run(a) == 2


@pytest.mark.parametrize("prefetch", [0, 1, 5])
async def test_source_prefetches_exactly_the_configured_depth(prefetch: int) -> None:
    numbers = Numbers(100)
    x = node(numbers, prefetch=prefetch)
    async with af.Session() as session:
        assert numbers.opened == 0
        for i in range(3):
            assert await session.run(x) == i
            await pass_turns()
            assert numbers.read == i + 1 + prefetch
    assert numbers.closed == 1


async def test_source_error_is_raised_in_the_place_of_its_element() -> None:
    x = node(Numbers(5, fail_at=2), prefetch=4)
    async with af.Session() as session:
        assert [await session.run(x) for _ in range(2)] == [0, 1]
        with pytest.raises(af.errors.UnknownError, match="no 2") as caught:
            await session.run(x)
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(af.errors.OutOfRangeError):
            await session.run(x)


async def test_steps_are_served_in_order_and_cancellation_loses_no_element() -> None:
    numbers = Numbers(10)
    numbers.gate.clear()
    x = node(numbers, prefetch=0)
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        tasks = [tg.create_task(session.run(x)) for _ in range(4)]
        await pass_turns()
        tasks[1].cancel()
        await pass_turns()
        numbers.gate.set()
        assert [await tasks[i] for i in (0, 2, 3)] == [0, 1, 2]
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        numbers.gate.clear()
        with pytest.raises(af.errors.DeadlineExceededError):
            await session.run(x, timeout=0.01)
        numbers.gate.set()
        assert await session.run(x) == 3


async def test_closing_the_session_closes_the_iterator_and_wakes_waiters() -> None:
    numbers = Numbers(10)
    numbers.gate.clear()
    x = node(numbers)
    session = af.Session()

    async def stopped() -> None:
        with pytest.raises(af.errors.CancelledError, match="closed"):
            await session.run(x)

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await pass_turns()
        await session.close()
    assert (numbers.opened, numbers.closed) == (1, 1)


async def test_factory_serves_every_session_but_an_iterator_only_one() -> None:
    numbers = Numbers(3)
    x, once = node(numbers), node(numbers())
    async with af.Session() as one, af.Session() as two:
        assert [await one.run(x), await two.run(x), await one.run(x)] == [0, 0, 1]
        assert await one.run(once) == 0
        with pytest.raises(af.errors.FailedPreconditionError, match="another session"):
            await two.run(once)
        assert await one.run(once) == 1
    assert (numbers.opened, numbers.closed) == (3, 3)


async def test_source_rejects_values_that_are_not_async_iterables() -> None:
    with pytest.raises(af.errors.DTypeError):
        node([1, 2])
    with pytest.raises(af.errors.InvalidArgumentError):
        node(Numbers(1), prefetch=-1)
    async with af.Session() as session:
        x = node(lambda: [1.0])
        with pytest.raises(af.errors.DTypeError, match="factory"):
            await session.run(x)


async def test_step_on_another_loop_reads_the_source() -> None:
    numbers = Numbers(50)
    x = node(numbers)
    outcome: list[Any] = []
    async with af.Session() as session:
        assert await session.run(x) == 0
        await asyncio.to_thread(lambda: outcome.extend(asyncio.run(_several(session, x))))
        assert outcome == [1, 2, 3, 4]
        assert await session.run(x) == 5


async def test_step_on_another_loop_fails_if_the_reader_loop_is_closed() -> None:
    numbers = Numbers(50)
    x = node(numbers)
    async with af.Session() as session:
        assert await session.run(x) == 0
        numbers.gate.clear()
        await pass_turns()
        # Closed without cancelling its tasks, as `loop.close()` does.
        loop = asyncio.get_running_loop()
        with patch.object(loop, "call_soon_threadsafe", side_effect=RuntimeError("closed")), ThreadPoolExecutor(1) as t:
            error = t.submit(asyncio.run, _failure(session, x)).result(60)
        assert "no longer read" in error.message
        with pytest.raises(FailedPreconditionError, match="no longer read"):
            await session.run(x)


async def _failure(session: af.Session, x: af.Tensor) -> FailedPreconditionError:
    with pytest.raises(FailedPreconditionError) as raised:
        _ = [await session.run(x, timeout=30.0) for _ in range(3)]  # some elements have been prefetched
    return raised.value


async def _several(session: af.Session, x: af.Tensor) -> list[Any]:
    return [await session.run(x) for _ in range(4)]


def test_run_sync_reads_a_source_and_closes_it() -> None:
    closed: list[bool] = []

    async def count() -> AsyncIterator[Any]:
        try:
            for i in range(10):
                yield float(i)
        finally:
            closed.append(True)

    x = node(count)
    with af.Session() as session:
        assert [session.run_sync(x) for _ in range(3)] == [0, 1, 2]
    assert closed == [True]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 3), st.lists(st.sampled_from(["ask", "read", "leave", "leave late"]), max_size=40))
def test_source_core_neither_loses_nor_duplicates_items(depth: int, events: list[str]) -> None:
    core: SourceCore[int, int] = SourceCore(depth)
    waiting: list[int] = []
    taken: list[int] = []
    given_back: list[int] = []
    read = asked = 0
    for event in events:
        if event == "ask":
            item = core.ask(asked)
            if item is None:
                waiting.append(asked)
            else:
                taken.append(item)
            asked += 1
        elif event == "read" and core.wants_more:
            waiter = core.put(read + 1)
            read += 1
            if waiter is not None:
                assert waiter == waiting.pop(0)
                taken.append(read)
        elif event == "leave" and waiting:
            core.withdraw(waiting.pop())
        elif event == "leave late" and taken and not core.items:
            waiter = core.put_back(taken.pop())
            if waiter is not None:
                assert waiter == waiting.pop(0)
                given_back.append(waiter)
                taken.append(read)
        assert list(core.waiters) == waiting
        assert not (core.items and core.waiters)
        assert len(core.items) <= depth + 1
        assert sorted([*taken, *core.items]) == list(range(1, read + 1))
    assert core.end() == waiting


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prefetch", [0, 1, 4, 20])
async def test_stream_runs_until_the_data_ends(prefetch: int) -> None:
    y = node(Numbers(10)) * 2.0
    async with af.Session() as session, session.stream({"y": y}, prefetch=prefetch) as steps:
        assert [r async for r in steps] == [{"y": 2 * i} for i in range(10)]
        assert [r async for r in steps] == []


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("kind", ["list", "generator", "async"])
async def test_stream_accepts_feeds_from_lists_generators_and_async_iterators(prefetch: int, kind: str) -> None:
    x = af.placeholder("float32", [])

    def plain() -> Iterator[Any]:
        yield from ({x: float(i)} for i in range(7))

    async def slow() -> AsyncIterator[Any]:
        for feeds in plain():
            await asyncio.sleep(0)
            yield feeds

    feeds: Any = {"list": list(plain()), "generator": plain(), "async": slow()}[kind]
    async with af.Session() as session:
        assert [r async for r in session.stream(x + 1.0, feeds, prefetch=prefetch)] == list(range(1, 8))


async def test_stream_feeds_one_dictionary_to_every_step() -> None:
    x = af.placeholder("float32", [])
    y = node(Numbers(3)) + x
    async with af.Session() as session:
        assert [r async for r in session.stream(y, {x: 5.0})] == [5, 6, 7]
        with pytest.raises(af.errors.DTypeError):
            session.stream(y, 5)  # type: ignore[call-overload]
        with pytest.raises(af.errors.InvalidArgumentError):
            session.stream(y, prefetch=-1)
    with pytest.raises(af.errors.ClosedSessionError):
        session.stream(y)


async def test_stream_returns_results_in_order_of_feeds() -> None:
    events = [asyncio.Event() for _ in range(5)]
    done: list[int] = []

    async def wait(i: Any) -> Any:
        await events[int(i)].wait()
        done.append(int(i))
        return i

    x = af.placeholder("float32", [])
    y = af.py_coroutine(wait, [x], "float32", shapes=[])
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        steps = session.stream(y, [{x: float(i)} for i in range(5)], prefetch=4)
        task = tg.create_task(anext(steps))
        await pass_turns()
        for event in reversed(events):
            event.set()
            await pass_turns()
        assert await task == 0
        assert [r async for r in steps] == [1, 2, 3, 4]
    assert done == [4, 3, 2, 1, 0]


async def test_stream_keeps_prefetch_plus_one_steps_in_flight() -> None:
    flying: set[int] = set()
    gate = asyncio.Event()

    async def wait(i: Any) -> Any:
        flying.add(int(i))
        await gate.wait()
        return i

    x = af.placeholder("float32", [])
    y = af.py_coroutine(wait, [x], "float32", shapes=[])
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        steps = session.stream(y, ({x: float(i)} for i in range(100)), prefetch=3)
        task = tg.create_task(anext(steps))
        await pass_turns()
        assert flying == {0, 1, 2, 3}
        gate.set()
        assert await task == 0
        await steps.aclose()


@pytest.mark.parametrize("way", ["block", "break", "close"])
async def test_leaving_a_stream_early_cancels_prefetched_steps(way: str) -> None:
    running = 0

    async def work(i: Any) -> Any:
        nonlocal running
        running += 1
        try:
            if i:
                await asyncio.Event().wait()
            return i
        finally:
            running -= 1

    x = af.placeholder("float32", [])
    y = af.py_coroutine(work, [x], "float32", shapes=[])
    feeds = [{x: float(i)} for i in range(100)]
    async with af.Session() as session:
        if way == "block":
            async with session.stream(y, feeds, prefetch=3) as steps:
                assert await anext(steps) == 0
                await pass_turns()
                assert running == 3
            assert running == 0
        elif way == "break":
            async for result in session.stream(y, feeds, prefetch=3):
                assert result == 0
                await pass_turns()
                assert running == 3
                break
            gc.collect()
            await pass_turns()
            assert running == 0
        else:
            steps = session.stream(y, feeds, prefetch=3)
            assert await anext(steps) == 0
            await pass_turns()
            assert running == 3
    assert running == 0


@pytest.mark.parametrize("prefetch", [0, 2])
async def test_step_error_is_raised_in_order_and_ends_the_stream(prefetch: int) -> None:
    x = af.placeholder("int32", [])
    feeds = [{x: v} for v in (2, 1, 0, 1)]
    async with af.Session() as session:
        steps = session.stream(af.floordiv(2, x), feeds, prefetch=prefetch)
        assert [await anext(steps), await anext(steps)] == [1, 2]
        with pytest.raises(af.errors.InvalidArgumentError):
            await anext(steps)
        assert [r async for r in steps] == []


@pytest.mark.parametrize("prefetch", [0, 2])
async def test_stream_applies_the_timeout_to_each_step(prefetch: int) -> None:
    numbers = Numbers(3)
    x = node(numbers, prefetch=0)
    async with af.Session() as session:
        numbers.gate.clear()
        with pytest.raises(af.errors.DeadlineExceededError):
            await anext(session.stream(x, prefetch=prefetch, timeout=0.01))
        numbers.gate.set()
        assert [r async for r in session.stream(x)] == [0, 1, 2]


async def test_closing_the_session_ends_a_stream() -> None:
    numbers = Numbers(3)
    numbers.gate.clear()
    x = node(numbers)
    session = af.Session()

    async def stopped() -> None:
        with pytest.raises(af.errors.CancelledError):
            await anext(session.stream(x, prefetch=2))

    async with asyncio.TaskGroup() as tg:
        tg.create_task(stopped())
        await pass_turns()
        await session.close()
    assert (await session.worker.state()).running == 0


async def test_stream_rejects_a_second_concurrent_reader() -> None:
    numbers = Numbers(3)
    numbers.gate.clear()
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        steps = session.stream(node(numbers), prefetch=1)
        task = tg.create_task(anext(steps))
        await pass_turns()
        with pytest.raises(af.errors.FailedPreconditionError, match="being read"):
            await anext(steps)
        numbers.gate.set()
        assert await task == 0
        await steps.aclose()
