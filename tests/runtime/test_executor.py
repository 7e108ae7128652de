"""The threads of a device: results, errors, cancellation at every moment, and no references left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioflow.runtime.executor import DeviceThreads, shared_threads
from aioflow.runtime.step import Step

_PATIENCE = 5.0  # seconds: the longest wait of a test's thread


class Gate:
    """A function that blocks its thread until `opened` is set."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.left = threading.Event()

    def __call__(self, value: Any = None) -> Any:
        self.entered.set()
        assert self.opened.wait(_PATIENCE)
        self.left.set()
        return value

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, _PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def one() -> DeviceThreads:
    return DeviceThreads("-test", 1)


@pytest.fixture(autouse=True)
def unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Fail on errors in callbacks, which asyncio only logs."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", lambda loop, context: found.append(context))
    yield found
    assert found == []


async def _pass_turns(turns: int = 3) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


# -- work ----------------------------------------------------------------------------------------------------------


async def test_a_result_comes_back_from_another_thread(one: DeviceThreads) -> None:
    here = threading.current_thread().name

    def work(a: int, b: int) -> tuple[int, str]:
        return a + b, threading.current_thread().name

    total, name = await one.run(Step(), work, 1, 2)
    assert total == 3
    assert name.startswith("aioflow-test")
    assert name != here


class Odd(BaseException):
    """A BaseException that is not an Exception."""


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError("inside"), Odd()], ids=repr)
async def test_an_error_of_any_kind_is_raised_unchanged(one: DeviceThreads, error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await one.run(Step(), work)
    if not isinstance(error, asyncio.CancelledError):
        assert caught.value is error
    assert await one.run(Step(), lambda: 5) == 5, "the thread goes on"


async def test_stop_iteration_does_not_hang_the_caller(one: DeviceThreads) -> None:
    """A future rejects StopIteration, and without the conversion the caller would wait forever."""
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await asyncio.wait_for(one.run(Step(), lambda: next(iter(()))), _PATIENCE)
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_threads_start_on_demand_up_to_the_limit() -> None:
    threads = DeviceThreads("-limit", 3)
    names: set[str] = set()
    together = threading.Barrier(3)

    def work() -> None:
        together.wait(_PATIENCE)
        names.add(threading.current_thread().name)

    for _ in range(3):
        await threads.run(Step(), lambda: names.add(threading.current_thread().name))
    assert names == {"aioflow-limit_1"}, "one thread is enough for one at a time"
    async with asyncio.TaskGroup() as group:
        for _ in range(9):
            group.create_task(threads.run(Step(), work))
    assert names == {f"aioflow-limit_{i}" for i in (1, 2, 3)}


async def test_one_thread_runs_calls_in_the_order_of_submission(one: DeviceThreads) -> None:
    order: list[int] = []
    async with asyncio.TaskGroup() as group:
        for i in range(50):
            group.create_task(one.run(Step(), order.append, i))
    assert order == list(range(50))


async def test_concurrent_calls_each_return_their_own_result() -> None:
    threads = DeviceThreads("-many", 4)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(threads.run(Step(), lambda i=i: i * i)) for i in range(500)]
    assert [t.result() for t in tasks] == [i * i for i in range(500)]


def test_several_loops_share_the_threads() -> None:
    threads = DeviceThreads("-loops", 2)
    results: list[list[int]] = []

    async def many(base: int) -> list[int]:
        return list(await asyncio.gather(*(threads.run(Step(), lambda i=i: base + i) for i in range(200))))

    runners = [threading.Thread(target=lambda b=b: results.append(asyncio.run(many(b)))) for b in (0, 1000, 2000)]
    for r in runners:
        r.start()
    for r in runners:
        r.join()
    assert sorted(results) == [[b + i for i in range(200)] for b in (0, 1000, 2000)]


def test_threads_are_shared_by_name_and_number() -> None:
    assert shared_threads("-x", 1) is shared_threads("-x", 1)
    assert shared_threads("-x", 1) is not shared_threads("-x", 2)


def test_call_outlives_its_closed_event_loop(one: DeviceThreads, gate: Gate) -> None:
    loop = asyncio.new_event_loop()
    try:
        started = loop.create_task(one.run(Step(), gate))
        loop.run_until_complete(gate.until_entered())
        started.cancel()  # never awaited afterwards
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        pending = started
        loop.close()
    gate.opened.set()
    assert gate.left.wait(_PATIENCE)
    assert asyncio.run(one.run(Step(), lambda: "still here")) == "still here"
    pending._log_destroy_pending = False  # type: ignore[attr-defined]  # the task is meant to stay pending


# -- cancellation --------------------------------------------------------------------------------------------------


async def test_cancel_during_a_call_waits_for_its_end(one: DeviceThreads, gate: Gate) -> None:
    step = Step()
    task = asyncio.get_running_loop().create_task(one.run(step, gate))
    await gate.until_entered()
    task.cancel()
    await _pass_turns()
    assert step.requested, "the kernels are told"
    assert not task.done(), "the function is still running"
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.left.is_set()


async def test_cancel_of_a_queued_call_removes_it(one: DeviceThreads, gate: Gate) -> None:
    """The caller must not wait for the calls ahead, which may take any time, and the call must not run later."""
    ran: list[str] = []
    loop = asyncio.get_running_loop()
    first = loop.create_task(one.run(Step(), gate, "first"))
    await gate.until_entered()
    queued = [loop.create_task(one.run(Step(), ran.append, f"queued {i}")) for i in range(3)]
    await _pass_turns()
    queued[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(queued[1], _PATIENCE)
    assert not first.done()
    gate.opened.set()
    await asyncio.gather(first, queued[0], queued[2])
    assert ran == ["queued 0", "queued 2"]


async def test_cancel_before_submission_runs_nothing(one: DeviceThreads) -> None:
    ran: list[int] = []
    task = asyncio.get_running_loop().create_task(one.run(Step(), ran.append, 1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await one.run(Step(), lambda: None)
    assert ran == []


@pytest.mark.parametrize("times", [2, 5])
@pytest.mark.parametrize("between", [0, 1, 3], ids=lambda n: f"{n} turns between")
async def test_repeated_cancel_still_waits_for_the_end(
    one: DeviceThreads, gate: Gate, times: int, between: int
) -> None:
    task = asyncio.get_running_loop().create_task(one.run(Step(), gate))
    await gate.until_entered()
    for _ in range(times):
        task.cancel()
        await _pass_turns(between)
    assert not task.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.left.is_set()
    assert await one.run(Step(), lambda: 1) == 1


@pytest.mark.parametrize("turns", range(4))
async def test_cancel_in_the_turn_in_which_the_result_arrives(one: DeviceThreads, gate: Gate, turns: int) -> None:
    """The second cancellation comes when the result is already in the loop's queue."""
    task = asyncio.get_running_loop().create_task(one.run(Step(), gate))
    await gate.until_entered()
    task.cancel()
    await _pass_turns(turns)
    gate.opened.set()
    assert gate.left.wait(_PATIENCE)  # blocks the loop, so that the result is not delivered yet
    # Spin instead of `asyncio.sleep`, which would let the loop deliver the result.
    while not one._queue.empty():
        pass
    threading.Event().wait(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _pass_turns()


async def test_an_error_after_a_cancellation_raises_cancelled_error(one: DeviceThreads, gate: Gate) -> None:
    def work() -> None:
        gate()
        raise ValueError

    task = asyncio.get_running_loop().create_task(one.run(Step(), work))
    await gate.until_entered()
    task.cancel()
    await _pass_turns()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_timeout_requests_the_stop_of_a_running_call(one: DeviceThreads) -> None:
    step = Step()

    def work() -> None:
        for _ in range(int(_PATIENCE / 0.005)):
            if step.requested:
                return
            threading.Event().wait(0.005)
        raise AssertionError("nobody asked it to stop")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await one.run(step, work)


async def test_cancelled_calls_release_their_threads() -> None:
    threads = DeviceThreads("-reuse", 2)
    loop = asyncio.get_running_loop()
    for i in range(100):
        task = loop.create_task(threads.run(Step(), lambda: None))
        await _pass_turns(i % 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert threads._busy == 0
    together = threading.Barrier(2)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(threads.run(Step(), together.wait, _PATIENCE))


# -- references left behind ----------------------------------------------------------------------------------------


class Thing:
    """An object that supports weak references."""


async def _leaves_nothing(start: Callable[[Thing], Any]) -> None:
    # Only reference counting may free the values, so the collector is off.
    gc.collect()
    gc.disable()
    try:
        thing = Thing()
        reference = weakref.ref(thing)
        await start(thing)
        del thing
        await _pass_turns()
        late = time.monotonic() + _PATIENCE
        while reference() is not None and time.monotonic() < late:  # until the thread is back at its queue
            threading.Event().wait(0.001)
        assert reference() is None, "only the garbage collector would free the values of this step"
    finally:
        gc.enable()


async def test_a_result_is_not_kept_alive(one: DeviceThreads) -> None:
    async def use(thing: Thing) -> None:
        assert await one.run(Step(), lambda t: t, thing) is thing

    await _leaves_nothing(use)


async def test_a_failed_call_does_not_keep_its_arguments_alive(one: DeviceThreads) -> None:
    def work(thing: Thing) -> None:
        raise ValueError("no")

    async def use(thing: Thing) -> None:
        with pytest.raises(ValueError, match="no"):
            await one.run(Step(), work, thing)

    await _leaves_nothing(use)
