"""The supervisor, the older form of monitored training: a block with a session, and background services."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, NotFoundError, OutOfRangeError
from aioflow.runtime.worker import Worker
from aioflow.testing.virtual_clock import run_virtual
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import LOOPS, run_on, virtually
from tests.train.monitored.lost_peers import NoSession


def counter() -> tuple[Any, Any]:
    step = af.train.get_or_create_global_step()
    return step, step.assign_add(1, read_value=False)


async def test_supervisor_initializes_saves_and_restores(tmp_path: Path) -> None:
    for first in (0, 4):
        with af.Graph().as_default() as graph:
            step, update = counter()
            supervisor = af.train.Supervisor(logdir=tmp_path, save_model_secs=0)
            assert graph.finalized
            async with supervisor.managed_session() as session:
                assert int(await session.run(step)) == first
                while not supervisor.should_stop():
                    if int(await session.run(step)) == first + 4:
                        supervisor.request_stop()
                        break
                    await session.run(update)
                await supervisor.saver.save(session, supervisor.save_path, supervisor.global_step)
            assert session.closed
            assert supervisor.should_stop()
    assert Path(str(af.train.latest_checkpoint(tmp_path))).name == "model.ckpt-8"
    assert (tmp_path / "graph.pbtxt").exists()


async def test_end_of_the_input_ends_the_block() -> None:
    queue = af.train.range_input_producer(4, num_epochs=1, shuffle=False)
    taken = queue.dequeue()
    seen = []
    supervisor = af.train.Supervisor()
    async with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            seen.append(int(await session.run(taken)))
    assert seen == [0, 1, 2, 3]


async def test_errors_of_the_block_and_of_tasks_are_raised() -> None:
    queue = af.FIFOQueue(2, ["string"], [()])
    af.train.add_queue_runner(af.train.QueueRunner(queue, [queue.enqueue([af.read_file("/nowhere/at/all")])]))
    taken = queue.dequeue()
    supervisor = af.train.Supervisor()

    async def train() -> None:
        async with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                await session.run(taken)

    with pytest.raises(NotFoundError, match="/nowhere/at/all"):
        await train()
    other = af.train.Supervisor(graph=af.Graph())

    async def fail() -> None:
        async with other.managed_session():
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    async with other.managed_session() as session:  # it can be used again after an error
        assert not other.should_stop()
    assert session.closed
    with other.stop_on_exception():
        raise OutOfRangeError("the end")


async def test_worker_waits_for_the_chief() -> None:
    shared = Worker(af.SessionConfig())
    step, update = counter()
    chief, worker = af.train.Supervisor(), af.train.Supervisor(is_chief=False, recovery_wait_secs=0.001)
    entered = asyncio.Event()

    async def work() -> None:
        async with worker.managed_session(shared) as session:
            entered.set()
            await session.run(update)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not entered.is_set()
        async with chief.managed_session(shared) as session:
            await task
            assert int(await session.run(step)) == 1
    with pytest.raises(FailedPreconditionError, match="only the chief"):
        worker.start_standard_services(None)
    assert (worker.save_path, worker.save_model_secs, worker.is_chief) == (None, None, False)


@pytest.mark.parametrize("logdir", [None, ""])
async def test_supervisor_without_a_folder_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logdir: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    _, update = counter()
    supervisor = af.train.Supervisor(logdir=logdir, save_model_secs=0.01)
    async with supervisor.managed_session() as session:
        await session.run(update)
    assert (supervisor.save_path, supervisor.summary_writer) == (None, None)
    assert os.listdir() == []


def read_input() -> tuple[af.train.Supervisor, Any]:
    with af.Graph().as_default():
        counter()
        taken = af.train.input_producer(af.constant([1.0, 2.0]), shuffle=False).dequeue()
        return af.train.Supervisor(), taken


async def test_supervisor_owns_its_tasks_until_stop() -> None:
    for _ in range(2):
        supervisor, taken = read_input()
        present = asyncio.all_tasks()
        for _ in range(2):  # another session can follow `stop`
            session = await supervisor.prepare_or_wait_for_session()
            states = [supervisor.coord.entered]
            calls: list[int] = []
            supervisor.loop(None, lambda calls=calls: calls.append(0))
            assert [await session.run(taken) for _ in range(3)] == [1, 2, 1]
            await supervisor.stop()
            assert calls
            await supervisor.stop()
            await session.close()
            assert [*states, supervisor.coord.entered] == [True, False]
            assert asyncio.all_tasks() == present


async def test_supervisor_raises_the_error_of_a_task_at_stop() -> None:
    supervisor, _ = read_input()
    session = await supervisor.prepare_or_wait_for_session()

    async def fail() -> None:
        raise KeyError("of a loop")

    supervisor.loop(None, fail)
    await supervisor.wait_for_stop()
    with pytest.raises(KeyError, match="of a loop"):
        await supervisor.stop()
    await session.close()


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_cancelled_supervisor_leaves_no_tasks(loop: Any) -> None:
    async def work() -> None:
        supervisor, taken = read_input()
        session = await supervisor.prepare_or_wait_for_session()
        try:
            await session.run(taken)
        finally:
            try:
                await supervisor.stop()
            finally:
                await session.close()

    run_on(loop, cancel_at_each_turn(work, turns=30))


@virtually
async def test_loop_calls_at_its_interval_until_stop() -> None:
    clock = asyncio.get_running_loop().time
    supervisor = af.train.Supervisor()
    times: list[float] = []
    fast: list[int] = []

    async def note(text: str, end: str = "") -> None:
        times.append(clock())
        assert text + end == "ab"

    async with supervisor.coord:
        supervisor.loop(5, note, ["a"], {"end": "b"})
        await asyncio.sleep(17)
        supervisor.loop(None, lambda: fast.append(0) if len(fast) < 50 else supervisor.request_stop())
        await supervisor.wait_for_stop()
        await supervisor.stop()
    assert times == [0, 5, 10, 15]
    assert len(fast) == 50


def test_services_log_the_speed_and_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Growing(NoSession):
        async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
            return np.int64(3 * asyncio.get_running_loop().time())

    class Saves:
        times: list[float] = []  # noqa: RUF012

        async def save(self, session: Any, path: str, step: Any) -> None:
            self.times.append(asyncio.get_running_loop().time())
            assert path == str(tmp_path / "mine")

    async def main() -> None:
        counter()
        saver: Any = Saves()
        supervisor = af.train.Supervisor(
            logdir=tmp_path, saver=saver, checkpoint_basename="mine", save_summaries_secs=10, save_model_secs=15
        )
        async with supervisor.coord:
            assert len(supervisor.start_standard_services(Growing())) == 2
            await asyncio.sleep(31)
            await supervisor.stop()
        assert saver.times == [0, 15, 30]

    caplog.set_level(logging.INFO, "aioflow.train")
    run_virtual(main())
    assert [r.getMessage() for r in caplog.records] == ["global_step/sec: 3"] * 3


async def test_failing_service_ends_the_training(tmp_path: Path) -> None:
    _, update = counter()

    class Fails:
        async def save(self, session: Any, path: str, step: Any) -> None:
            raise FailedPreconditionError("the disk is full")

        async def restore(self, session: Any, path: str) -> None:
            """Do nothing."""

    saver: Any = Fails()
    supervisor = af.train.Supervisor(logdir=tmp_path, saver=saver)

    async def train() -> None:
        async with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                await session.run(update)
                await asyncio.sleep(0)

    with pytest.raises(FailedPreconditionError, match="the disk is full"):
        await train()


async def test_constructor_arguments_are_used(graph: af.Graph) -> None:
    step, _ = counter()
    saver, node = af.train.Saver(), af.no_op()
    supervisor = af.train.Supervisor(
        ready_op=None, init_op=node, local_init_op=None, saver=saver, global_step=None, init_feed_dict={}
    )
    assert (supervisor.ready_op, supervisor.global_step) == (None, None)
    assert (supervisor.init_op, supervisor.saver, supervisor.init_feed_dict) == (node, saver, {})
    assert supervisor.summary_writer is None
    assert supervisor.summary_op is None
    assert supervisor.ready_for_local_init_op is None
    assert supervisor.save_summaries_secs == 120
    assert isinstance(supervisor.session_manager, af.train.SessionManager)
    assert supervisor.coord is not None
    assert step is not None
    with pytest.raises(FailedPreconditionError, match="a summary"):
        await supervisor.summary_computed(None, b"")


def test_older_names_call_the_newer_ones() -> None:
    kind = af.train.Supervisor
    for older, name in (
        ("PrepareSession", "prepare_or_wait_for_session"),
        ("StartQueueRunners", "start_queue_runners"),
        ("StartStandardServices", "start_standard_services"),
        ("Stop", "stop"),
        ("RequestStop", "request_stop"),
        ("Loop", "loop"),
        ("ShouldStop", "should_stop"),
        ("StopOnException", "stop_on_exception"),
        ("WaitForStop", "wait_for_stop"),
        ("SummaryComputed", "summary_computed"),
    ):
        assert getattr(kind, older) is getattr(kind, name)
