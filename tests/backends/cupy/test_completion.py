"""Tests of completions: how an event of the device resolves a future, also after errors, cancellation and close."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aioflow.errors import CancelledError, InternalError
from aioflow.runtime.step import Step
from aioflow_cupy.completion import Completions
from tests.backends.cupy.fake_driver import FakeDriver, FakeEvent
from tests.backends.cupy.fakes import small_lanes


def an_event(driver: FakeDriver) -> FakeEvent:
    event: FakeEvent = driver.event(0)
    driver.stream(0).record(event)
    return event


async def test_future_is_resolved_on_its_loop_after_the_event() -> None:
    driver, completions = FakeDriver(passes_at_once=False), Completions("-test")
    threads: list[threading.Thread] = []

    def finish() -> str:
        threads.append(threading.current_thread())
        return "done"

    future = completions.future(an_event(driver), finish)
    await asyncio.sleep(0.005)
    assert not future.done()
    driver.advance()
    assert await future == "done"
    assert threads == [threading.current_thread()]
    completions.close()


async def test_events_of_different_streams_are_independent() -> None:
    driver, completions = FakeDriver(passes_at_once=False), Completions("-test")
    slow, fast = an_event(driver), an_event(driver)
    first, second = completions.future(slow), completions.future(fast)
    driver.advance(fast.name.split("#")[0])
    await second
    assert not first.done()
    driver.advance()
    await first
    completions.close()


async def test_device_error_reaches_the_waiter() -> None:
    driver, completions = FakeDriver(passes_at_once=False), Completions("-test")
    event, released = an_event(driver), []
    future = completions.future(event, lambda: released.append(True))
    event.error = RuntimeError("cudaErrorIllegalAddress")
    with pytest.raises(InternalError, match="cudaErrorIllegalAddress"):
        await future
    # Resources of the copy are released even if it failed.
    assert released == [True]
    completions.close()


async def test_error_in_finish_reaches_the_waiter() -> None:
    driver, completions = FakeDriver(), Completions("-test")

    def finish() -> None:
        raise CancelledError("no")

    with pytest.raises(CancelledError, match="no"):
        await completions.future(an_event(driver), finish)
    completions.close()


async def test_close_waits_for_the_last_event_and_then_rejects_calls() -> None:
    driver, completions = FakeDriver(passes_at_once=False), Completions("-test")
    seen: list[Exception | None] = []
    completions.call(an_event(driver), seen.append)
    closing = asyncio.get_running_loop().run_in_executor(None, completions.close)
    await asyncio.sleep(0.005)
    assert not closing.done()
    driver.advance()
    await closing
    assert seen == [None]
    with pytest.raises(InternalError, match="closed"):
        completions.call(an_event(driver), seen.append)


async def test_no_thread_is_started_before_the_first_event() -> None:
    Completions("-never-used").close()
    assert not [thread for thread in threading.enumerate() if "-never-used" in thread.name]


# ── the executor ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_function_runs_in_the_launching_thread_with_the_compute_stream() -> None:
    driver = FakeDriver()
    device = small_lanes(driver)
    found = await device.executor.run(Step(), lambda: (threading.current_thread().name, driver._stream()))
    assert found[0].startswith("aioflow-gpu0")
    assert found[1] is device.streams.compute


async def test_run_returns_when_its_kernels_are_done() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    launched = threading.Semaphore(0)
    async with asyncio.TaskGroup() as tg:
        tasks = [tg.create_task(device.executor.run(Step(), launched.release)) for _ in range(3)]
        for _ in tasks:
            assert await asyncio.to_thread(launched.acquire, timeout=60)
        assert not any(task.done() for task in tasks)  # launched one after another, none of them done
        driver.passes_at_once = True
        driver.advance()


async def test_error_is_raised_only_after_the_device_is_done() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    begun = threading.Event()

    def fails() -> None:
        begun.set()
        raise ValueError("on purpose")

    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(_error(device.executor.run(Step(), fails)))
        assert await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(0.02)
        assert not task.done()
        driver.passes_at_once = True  # also for the event that is recorded only now
        driver.advance()
    assert str(task.result()) == "on purpose"


async def _error(run: Any) -> Exception:
    try:
        await run
    except ValueError as error:
        return error
    raise AssertionError("no error")


async def test_a_cancelled_run_returns_only_when_the_device_is_done() -> None:
    driver = FakeDriver(passes_at_once=False)
    device = small_lanes(driver)
    step, begun = Step(), threading.Event()

    def launches() -> None:
        begun.set()
        while not step.requested:
            pass

    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(device.executor.run(step, launches))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0.02)
        assert step.requested
        assert not task.done()  # the function has ended, its kernels have not
        task.cancel()  # cancelled again: it still waits
        await asyncio.sleep(0.005)
        assert not task.done()
        driver.passes_at_once = True  # also for the event that is recorded only now
        driver.advance()
    assert task.cancelled()
