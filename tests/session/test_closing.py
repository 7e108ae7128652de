"""`Session.close` while the session is in use: no step begins after it, and no caller waits forever."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import CancelledError, ClosedSessionError
from aioflow.runtime import cluster
from aioflow.session.streaming import Stream
from aioflow.sync.background import Background
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop

_LIMIT = 60.0  # seconds
_ROW = np.ones((1, 2), np.float32)

Use = Callable[["Counted"], Coroutine[Any, Any, Any]]


class Counted:
    """A session whose steps are counted when they begin.

    Args:
        nodes: Size of the graph; more than some dozens of nodes are compiled in a thread.
        waits: Whether each step waits on the event loop.
        within: Called by each step that waits.
    """

    def __init__(
        self, nodes: int, waits: bool, within: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
    ) -> None:
        self.graph = af.Graph()
        with self.graph.as_default():
            self.x = af.placeholder(af.float32, [None, 2])
            value: Any = self.x
            for _ in range(nodes):
                value = value + 1.0
            value = af.py_func(self.count, [value], af.float32, stateful=True)
            if waits:
                value = af.py_coroutine(self.pause, [value], af.float32)
            self.y = af.ensure_shape(value, [None, 2])
        self.within = within
        self.renew()

    def renew(self) -> None:
        """Start a new session and reset the count."""
        self.begun = 0
        self.session = af.Session(graph=self.graph)

    def count(self, rows: Any) -> Any:
        self.begun += 1
        return rows

    async def pause(self, rows: Any) -> Any:
        await self.within()
        return rows

    def feeds(self) -> dict[Any, Any]:
        return {self.x: _ROW}


async def again(call: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await call()
        await asyncio.sleep(0)


async def runs(counted: Counted) -> None:
    await again(lambda: counted.session.run(counted.y, counted.feeds()))


async def runs_with_a_time_limit(counted: Counted) -> None:
    await again(lambda: counted.session.run(counted.y, counted.feeds(), timeout=_LIMIT))


async def runs_by_a_callable(counted: Counted) -> None:
    call = counted.session.make_callable(counted.y, [counted.x])
    await again(lambda: call(_ROW))


async def runs_in_another_thread(counted: Counted) -> None:
    await again(lambda: asyncio.to_thread(counted.session.run_sync, counted.y, counted.feeds()))


async def partial_runs(counted: Counted) -> None:
    async def once() -> None:
        handle = await counted.session.partial_run_setup([counted.y], [counted.x])
        await counted.session.partial_run(handle, [counted.y], counted.feeds())

    await again(once)


async def batches(counted: Counted) -> None:
    predict = counted.session.batched(
        counted.y, [counted.x], max_batch_size=2, max_concurrent_batches=2, unchecked=True
    )
    calls = [asyncio.get_running_loop().create_task(again(lambda: predict(_ROW))) for _ in range(5)]
    await asyncio.wait(calls)
    for call in calls:
        assert isinstance(call.exception(), ClosedSessionError | CancelledError), call
    await predict(_ROW)


async def warm_ups(counted: Counted) -> None:
    predict = counted.session.batched(counted.y, [counted.x], max_batch_size=2, unchecked=True)
    await again(lambda: counted.session.warmup(predict))


async def streams(counted: Counted) -> None:
    async with counted.session.stream(counted.y, counted.feeds()) as steps:
        await again(lambda: anext(steps))


async def streams_ahead(counted: Counted) -> None:
    async def feeds() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0)
            yield counted.feeds()

    async with counted.session.stream(counted.y, feeds(), prefetch=2) as steps:
        await again(lambda: anext(steps))


USES = [
    runs, runs_with_a_time_limit, runs_by_a_callable, runs_in_another_thread, partial_runs, batches, warm_ups, streams,
    streams_ahead,
]  # fmt: skip


@on_each_loop
@pytest.mark.parametrize("waits", [False, True], ids=["inline", "waits"])
@pytest.mark.parametrize("nodes", [1, 100])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_close_ends_every_use_and_no_step_begins_after_it(use: Use, nodes: int, waits: bool) -> None:
    counted = Counted(nodes, waits)
    for turns in (*range(8), 12, 24, 48):
        counted.renew()
        task = asyncio.get_running_loop().create_task(use(counted))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(_LIMIT):
            await counted.session.close()
            begun = counted.begun
            with pytest.raises((ClosedSessionError, CancelledError)):
                await task
        assert counted.begun == begun, turns


@on_each_loop
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
async def test_close_within_a_step_ends_its_use(use: Use) -> None:
    counted = Counted(1, True, within=lambda: counted.session.close())
    async with asyncio.timeout(_LIMIT):
        with pytest.raises((ClosedSessionError, CancelledError)):
            await use(counted)
        await counted.session.close()


@on_each_loop
@pytest.mark.parametrize("use", [use for use in USES if use is not batches], ids=lambda use: use.__name__)
async def test_use_cancelled_during_the_close_ends_cancelled(use: Use) -> None:
    """A TaskGroup or `asyncio.timeout` around the use relies on that, and on a single cancellation."""

    stages: list[str] = []

    async def cleans_up(use: Coroutine[Any, Any, None]) -> None:
        stages.clear()
        try:
            await use
        finally:
            stages.append("ended")
            await asyncio.sleep(0)
            stages.append("cleaned up")

    counted = Counted(1, True)
    for turns, since in itertools.product((2, 4, 8, 16), range(6)):
        counted.renew()
        task = asyncio.get_running_loop().create_task(cleans_up(use(counted)))
        for _ in range(turns):
            await asyncio.sleep(0)
        close = asyncio.get_running_loop().create_task(counted.session.close())
        for _ in range(since):
            await asyncio.sleep(0)
        is_in_use = not stages
        task.cancel()
        await asyncio.wait([task, close], timeout=_LIMIT)
        if not is_in_use:
            continue  # the close ended the use first
        assert task.cancelled(), (turns, since, task)
        assert stages == ["ended", "cleaned up"], (turns, since)


# -- batched calls ---------------------------------------------------------------------------------------------------


async def test_batched_rejects_calls_after_the_session_has_closed() -> None:
    counted = Counted(1, False)
    predict = counted.session.batched(counted.y, [counted.x], unchecked=True)
    await counted.session.close()
    for _ in range(3):
        async with asyncio.timeout(_LIMIT):
            with pytest.raises(ClosedSessionError):
                await predict(_ROW)


def test_batched_ignores_collected_tasks_of_an_earlier_loop() -> None:
    """The garbage collector ends such tasks by GeneratorExit at any time."""
    counted = Counted(1, True)
    predict = counted.session.batched(counted.y, [counted.x], max_batch_size=1, unchecked=True)
    earlier = asyncio.new_event_loop()
    earlier.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending"
    earlier.run_until_complete(predict(_ROW))
    earlier.close()

    async def later() -> None:
        await predict(_ROW)
        calls = [asyncio.get_running_loop().create_task(predict(_ROW)) for _ in range(3)]
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.gather(*calls)
        await counted.session.close()

    asyncio.run(later())


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
async def test_stream_closed_by_another_task_ends_its_reader(turns: int) -> None:
    counted = Counted(1, True)

    async def read(steps: Stream[Any]) -> None:
        async for _ in steps:
            pass

    async with counted.session:
        steps = counted.session.stream(counted.y, counted.feeds(), prefetch=2)
        task = asyncio.get_running_loop().create_task(read(steps))
        for _ in range(turns):
            await asyncio.sleep(0)
        await steps.aclose()
        async with asyncio.timeout(_LIMIT):
            await task


async def test_close_by_the_feeds_of_a_stream_does_not_wait_for_the_stream() -> None:
    counted = Counted(1, False)

    async def feeds() -> AsyncIterator[Any]:
        yield counted.feeds()
        await counted.session.close()
        yield counted.feeds()

    steps = counted.session.stream(counted.y, feeds(), prefetch=1)
    async with asyncio.timeout(_LIMIT):
        with pytest.raises((ClosedSessionError, CancelledError)):
            await again(lambda: anext(steps))


async def test_second_close_of_background_tasks_waits_for_their_end() -> None:
    background, begun, may_end, ended = Background(), asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        try:
            begun.set()
            await asyncio.sleep(_LIMIT)
        finally:
            await may_end.wait()
            ended = True

    await background.start(work())
    await begun.wait()
    first = asyncio.get_running_loop().create_task(background.close())
    await asyncio.sleep(0)
    second = asyncio.get_running_loop().create_task(background.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done()
    may_end.set()
    await second
    assert ended
    await first


# -- close while a step begins ---------------------------------------------------------------------------------------


async def test_step_that_begins_while_another_thread_closes_the_session_is_rejected() -> None:
    counted = Counted(1, True)
    await counted.session.run(counted.y, counted.feeds())
    begun = counted.begun

    def close_meanwhile() -> int:
        counted.session._refuse_steps()
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted.session._cluster, "next_step", close_meanwhile)
        with pytest.raises(ClosedSessionError):
            await counted.session.run(counted.y, counted.feeds(), timeout=_LIMIT)
    assert counted.begun == begun
    assert not counted.session._steps
    await counted.session.close()


async def test_partial_run_does_not_begin_if_its_session_closes_before_its_first_turn() -> None:
    counted = Counted(1, False)
    with counted.graph.as_default():
        effect = af.py_func(counted.count, [_ROW], af.float32, stateful=True)
    await counted.session.partial_run(
        await counted.session.partial_run_setup([effect]), [effect]
    )  # compiles the partial run
    begun = counted.begun
    await counted.session.partial_run_setup([effect])
    await counted.session.close()
    assert counted.begun == begun


async def test_run_does_not_begin_if_its_session_closes_while_connecting() -> None:
    counted = Counted(1, False)

    async def close_meanwhile() -> None:
        counted.session._cluster.settings = af.SessionConfig()
        await counted.session.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted.session._cluster, "connect", close_meanwhile)
        with pytest.raises(ClosedSessionError):
            await counted.session.run(counted.y, counted.feeds())
    assert not counted.begun


# -- several event loops ---------------------------------------------------------------------------------------------


async def test_step_compiled_by_two_loops_at_once_runs_on_both() -> None:
    counted = Counted(100, False)
    plan, may_go_on = counted.session._planner.plan, threading.Event()

    def slow(*args: Any) -> Any:
        assert may_go_on.wait(_LIMIT)
        return plan(*args)

    found: list[Any] = []

    def run() -> None:
        found.append(asyncio.run(counted.session.run(counted.y, counted.feeds())))

    other = threading.Thread(target=run)  # the end of this thread must not wake an event loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted.session._planner, "plan", slow)
        async with asyncio.timeout(_LIMIT), counted.session:
            other.start()
            while not counted.session._cache._preparing:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            here = asyncio.get_running_loop().create_task(counted.session.run(counted.y, counted.feeds()))
            for _ in range(3):
                await asyncio.sleep(0)
            may_go_on.set()
            np.testing.assert_array_equal(await here, _ROW + 100.0)
            other.join(_LIMIT)
            np.testing.assert_array_equal(found, [_ROW + 100.0])


# -- cancelled at each turn ------------------------------------------------------------------------------------------


async def enters_and_leaves(counted: Counted) -> None:
    async with af.Session(graph=counted.graph) as session:
        await session.run(counted.y, counted.feeds())


async def runs_once(counted: Counted) -> None:
    await counted.session.run(counted.y, counted.feeds())


async def runs_once_within(counted: Counted) -> None:
    await counted.session.run(counted.y, counted.feeds(), timeout=_LIMIT)


async def runs_partially(counted: Counted) -> None:
    handle = await counted.session.partial_run_setup([counted.y], [counted.x])
    await counted.session.partial_run(handle, [counted.y], counted.feeds())


async def opens_a_batch(counted: Counted) -> None:
    async with counted.session.batched(counted.y, [counted.x], max_batch_size=2, unchecked=True) as predict:
        await counted.session.warmup(predict)
        await asyncio.gather(predict(_ROW), predict(_ROW), predict(_ROW, timeout=_LIMIT))


async def opens_a_stream(counted: Counted) -> None:
    async with counted.session.stream(counted.y, [counted.feeds()] * 3, prefetch=2) as steps:
        async for _ in steps:
            pass


async def asks(counted: Counted) -> None:
    await counted.session.health()
    await counted.session.stuck_report()
    await counted.session.clear()


async def closes_in_use(counted: Counted) -> None:
    session = af.Session(graph=counted.graph)
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(session.run(counted.y, counted.feeds())))
        await asyncio.sleep(0)
        await session.close()


async def refused(run: Awaitable[Any]) -> None:
    with pytest.raises((ClosedSessionError, CancelledError)):
        await run


@on_each_loop
@pytest.mark.parametrize("nodes", [1, 100])
@pytest.mark.parametrize(
    "use",
    [enters_and_leaves, runs_once, runs_once_within, opens_a_batch, opens_a_stream, asks, closes_in_use],
    ids=lambda use: use.__name__,
)
async def test_session_cancelled_at_each_turn_leaves_no_tasks_and_stays_usable(use: Use, nodes: int) -> None:
    counted = Counted(nodes, True)
    async with counted.session:
        await cancel_at_each_turn(lambda: use(counted), lambda: runs_once(counted))


@on_each_loop
@pytest.mark.parametrize("nodes", [1, 100])
async def test_partial_run_cancelled_at_each_turn_ends_with_its_session(nodes: int) -> None:
    counted = Counted(nodes, True)

    async def once() -> None:
        counted.renew()
        async with counted.session:
            await runs_partially(counted)

    await cancel_at_each_turn(once)


async def test_run_rejects_a_step_whose_session_closes_during_its_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker has deregistered the part before its handle is used."""
    register = cluster.register

    async def closed_meanwhile(*arguments: Any) -> int:
        handle = await register(*arguments)
        closing.append(group.create_task(session.close()))
        await asyncio.sleep(0)
        return handle

    monkeypatch.setattr(cluster, "register", closed_meanwhile)
    closing: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        session = af.Session()
        with pytest.raises(ClosedSessionError):
            await session.run(af.constant(1.0) + 1.0)
