"""The thread that prepares work for later steps: it runs each job, whichever thread queues it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from aioflow.concurrency.job_thread import JobThread


def made() -> JobThread:
    return JobThread("a test's", lambda: None, daemon=False)


async def test_every_queued_job_runs() -> None:
    """Include jobs that are queued just as the thread runs out of work."""
    thread, called = made(), [0]
    count, threads = 300, 4

    def prepare() -> None:  # no lock: the job thread runs one job at a time
        called[0] += 1

    def queue() -> None:
        for _ in range(count):
            assert thread.begin(prepare)

    async with asyncio.TaskGroup() as tg:
        for _ in range(threads):
            tg.create_task(asyncio.to_thread(queue))
    await asyncio.wait_for(thread.ended(), 60)
    assert called == [count * threads]


async def test_failed_thread_start_keeps_other_jobs_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = made()
    called: list[str] = []

    def refused(_: threading.Thread) -> None:
        thread.begin(lambda: called.append("other"))  # stands for another thread that queues a job at that moment
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert not thread.begin(lambda: called.append("own"))
        await asyncio.wait_for(thread.ended(), 60)
    assert thread.begin(lambda: called.append("next"))
    await asyncio.wait_for(thread.ended(), 60)
    assert called == ["other", "next"]


async def test_failing_job_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    thread, called = made(), list[str]()

    def fail() -> None:
        raise ValueError("of the job")

    for job in (fail, partial(called.append, "next")):
        assert thread.begin(job)
    await asyncio.wait_for(thread.ended(), 60)
    assert called == ["next"]
    assert "of the job" in caplog.text


def test_dropped_jobs_do_not_run() -> None:
    thread, called, goes_on = made(), list[str](), threading.Event()

    def wait() -> None:
        goes_on.wait(60)

    assert thread.begin(wait)
    assert thread.begin(partial(called.append, "dropped"))
    assert not thread.wait(0.0)
    thread.drop()
    goes_on.set()
    assert thread.wait(60)
    assert not called
