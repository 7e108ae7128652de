"""Recovery of a monitored session from lost peers: one new session for all runs, from the checkpoint, with back-off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    UnavailableError,
)
from aioflow.runtime.worker import Worker
from tests.support.loops import virtually
from tests.train.monitored.lost_peers import FlakyCreator, Log, NoSession, NoSessionCreator, Script


class Model:
    """A counter that every step increases by one."""

    def __init__(self) -> None:
        self.step = af.train.get_or_create_global_step()
        self.total = af.Variable(0.0, name="total")
        self.train = af.group(self.step.assign_add(1), self.total.assign_add(1.0))


def saving(folder: Path, script: Script, every: int = 2) -> tuple[FlakyCreator, af.train.CheckpointSaverHook]:
    scaffold = af.train.Scaffold()
    creator = FlakyCreator(script, af.train.ChiefSessionCreator(scaffold, checkpoint_dir=folder))
    return creator, af.train.CheckpointSaverHook(folder, save_steps=every, scaffold=scaffold)


@pytest.mark.parametrize("kind", [UnavailableError, AbortedError])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_lost_step_is_retried_from_the_checkpoint(tmp_path: Path, kind: type[Exception], when: str) -> None:
    model = Model()
    script = Script(model.train, **{when: (5,)})
    script.kind = kind
    creator, saver = saving(tmp_path, script)
    seen = []
    async with af.train.MonitoredSession(creator, [saver, af.train.StopAtStepHook(last_step=8)]) as session:
        while not session.should_stop():
            seen.append(int((await session.run([model.train, model.step]))[1]))
    assert script.created == 2
    # The 6th step is lost after 5 completed steps. The checkpoint is of step 4.
    assert script.runs == 5 + 1 + 4
    reader = af.train.load_checkpoint(tmp_path)
    assert (int(reader.read("global_step")), float(reader.read("total"))) == (8, 8.0)


async def test_checkpoint_is_restored_once_after_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored = []
    restore = af.train.Saver.restore

    async def noted(self: af.train.Saver, sess: Any, save_path: Any) -> None:
        restored.append(Path(save_path).name)
        await restore(self, sess, save_path)

    monkeypatch.setattr(af.train.Saver, "restore", noted)
    model = Model()
    creator, saver = saving(tmp_path, Script(model.train, before=(5,)))
    async with af.train.MonitoredSession(creator, [saver]) as session:
        for _ in range(12):
            await session.run(model.train)
    assert restored == ["model.ckpt-4"]


async def test_loss_at_the_end_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """The block ends between a loss and the next run, so the hooks end in a new session."""
    model = Model()
    script = Script(model.train)

    class LosesBeside(af.train.SessionRunHook):
        """A hook whose own task notices the loss."""

        def after_create_session(self, session: Any, coord: af.train.Coordinator) -> None:
            if script.created == 1:
                coord.start(self._lose())

        async def _lose(self) -> None:
            await model_ran.wait()
            raise UnavailableError("the peer is gone")

    model_ran = asyncio.Event()
    creator, saver = saving(tmp_path, script)
    log = Log()
    async with af.train.MonitoredSession(creator, [saver, LosesBeside(), log]) as session:
        for _ in range(3):
            await session.run(model.train)
        model_ran.set()
        async with asyncio.timeout(60):
            while script.created == 1 and session._life is not None:
                session.should_stop()
                await asyncio.sleep(0)
    assert log.calls[-1] == "end"
    assert script.created == 2
    assert int(af.train.load_variable(tmp_path, "global_step")) == 2


async def test_hooks_are_called_for_the_new_session_and_the_repeated_run() -> None:
    model = Model()
    log = Log()
    async with af.train.MonitoredSession(FlakyCreator(Script(model.train, before=(1,))), [log]) as session:
        await session.run(model.train)
        await session.run(model.train)
    assert log.calls == [
        *("begin", "after_create_session", "before_run", "after_run"),
        *("before_run", "after_create_session", "before_run", "after_run", "end"),
    ]


async def test_concurrent_failures_create_one_new_session() -> None:
    model = Model()
    script = Script(model.train, before=(0, 1, 2, 3))
    async with af.train.MonitoredSession(FlakyCreator(script)) as session, asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(session.run(model.train))
    assert (script.created, script.applied) == (2, 4)


async def test_waiting_run_is_repeated_in_the_new_session() -> None:
    """The run waits in a queue when another run loses the peer."""
    model = Model()
    queue = af.FIFOQueue(3, ["float32"], [()])
    put, take = queue.enqueue([7.0]), queue.dequeue()
    script = Script(model.train, before=(0,))
    async with af.train.MonitoredSession(FlakyCreator(script)) as session, asyncio.TaskGroup() as group:
        waiting = group.create_task(session.run(take))
        await asyncio.sleep(0)
        await session.run(model.train)
        assert script.created == 2
        assert not waiting.done()
        await session.run(put)
        assert await waiting == 7.0


async def test_cancelled_run_does_not_stop_the_recovery_of_others() -> None:
    model = Model()
    script = Script(model.train, before=(0, 1))
    creator = FlakyCreator(script)
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(af.train.SessionRunHook):
        async def after_create_session(self, session: Any, coord: Any) -> None:
            if script.created == 2:
                begun.set()
                await go.wait()

    async with af.train.MonitoredSession(creator, [Slow()]) as session, asyncio.TaskGroup() as group:
        first = group.create_task(session.run(model.train))
        second = group.create_task(session.run(model.train))
        await begun.wait()
        first.cancel()
        await asyncio.wait([first])
        go.set()
        await second
        assert (script.created, script.applied) == (2, 1)


async def test_other_errors_are_raised_without_recovery() -> None:
    model = Model()
    bad = af.check_numerics(af.constant(np.nan), "bad")
    script = Script(model.train)
    async with af.train.MonitoredSession(FlakyCreator(script)) as session:
        with pytest.raises(InvalidArgumentError):
            await session.run(bad)
        await session.run(model.train)
    assert (script.created, script.applied) == (1, 1)


async def test_singular_session_does_not_recover() -> None:
    model = Model()

    class Lost(af.train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            raise UnavailableError("the peer is gone")

    with pytest.raises(UnavailableError):
        async with af.train.SingularMonitoredSession([Lost()]) as session:
            await session.run(model.train)


class Kept(FlakyCreator):
    """A creator whose new sessions keep the values of variables, as those of a worker do."""

    rolls_back = False


async def initialized() -> tuple[Worker, Model]:
    """Return a worker on which the chief has initialized the variables, and their model."""
    shared, model = Worker(af.SessionConfig()), Model()
    async with af.train.MonitoredTrainingSession(shared):
        pass
    return shared, model


@pytest.mark.parametrize("at_most_once", [True, False])
async def test_at_most_once_does_not_repeat_possibly_applied_steps(at_most_once: bool) -> None:
    shared, model = await initialized()
    script = Script(model.train, after=(1,))
    creator = Kept(script, af.train.WorkerSessionCreator(master=shared))
    failed = 0
    async with af.train.MonitoredSession(creator, at_most_once=at_most_once) as session:
        for _ in range(4):
            try:
                await session.run(model.train)
            except UnavailableError:
                failed += 1
        total = int(await session.run(model.step))
    assert script.created == 2
    assert (failed, total) == ((1, 4) if at_most_once else (0, 5))


async def test_at_most_once_repeats_steps_certainly_not_applied() -> None:
    shared, model = await initialized()

    class Certain(af.train.SessionRunHook):
        lost = 0

        def before_run(self, run_context: Any) -> None:
            self.lost += 1
            if self.lost == 2:
                error = UnavailableError("the peer is gone")
                error.may_have_been_applied = False
                raise error

    async with af.train.MonitoredTrainingSession(shared, False, hooks=[Certain()], at_most_once=True) as session:
        for _ in range(4):
            await session.run(model.train)
        assert await session.run(model.step) == 4


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def away(script: Script) -> FlakyCreator:
    return FlakyCreator(script, NoSessionCreator())


@virtually
async def test_pauses_between_attempts_grow() -> None:
    step = af.no_op()
    clock = asyncio.get_running_loop().time
    times = []

    class Timed(FlakyCreator):
        async def create_session(self) -> Any:
            times.append(clock())
            return await super().create_session()

    script = Script(step, before=(0,), refused=tuple(range(1, 8)))
    async with af.train.MonitoredSession(Timed(script, NoSessionCreator())) as session:
        await session.run(step)
    assert script.created == 2
    pauses = np.diff(times[1:])  # the second attempt follows immediately
    assert times[1] == times[0]
    assert (pauses[1:] > pauses[:-1]).all()
    assert 0.5 < times[-1] < 5


@virtually
async def test_completed_step_resets_the_recovery_time() -> None:
    step = af.no_op()
    script = Script(step, before=(0, 2, 4))
    async with af.train.MonitoredSession(away(script), max_recovery_secs=30) as session:
        for _ in range(3):
            await session.run(step)
            await asyncio.sleep(100)
    assert script.created == 4


@virtually
async def test_waiting_runs_share_the_attempts_to_create_a_session() -> None:
    step = af.no_op()
    script = Script(step, before=(0, 1, 2, 3), refused=(1, 2))
    async with af.train.MonitoredSession(away(script)) as session, asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(session.run(step))
    assert (script.attempts, script.created, script.applied) == (4, 2, 4)


@virtually
async def test_old_session_is_closed_before_the_new_one_is_created() -> None:
    log: list[str] = []

    class Slow(NoSession):
        async def close(self) -> None:
            await asyncio.sleep(5)
            log.append("closed")

    class Makes(af.train.SessionCreator):
        def create_session(self) -> NoSession:
            log.append("made")
            return Slow()

    step = af.no_op()
    script = Script(step, before=(0,))
    async with af.train.MonitoredSession(FlakyCreator(script, Makes())) as session:
        await session.run(step)
    assert log == ["made", "closed", "made", "closed"]


@virtually
async def test_recovery_fails_after_the_maximum_time() -> None:
    step = af.no_op()
    script = Script(step, before=(0,), refused=tuple(range(1, 10_000)))
    clock = asyncio.get_running_loop().time
    with pytest.raises(DeadlineExceededError, match="a working session") as raised:
        async with af.train.MonitoredSession(away(script), max_recovery_secs=60) as session:
            await session.run(step)
    assert "nobody answers" in str(raised.value)
    assert isinstance(raised.value.__cause__, UnavailableError)
    assert 60 <= clock() <= 75


@virtually
async def test_steps_that_always_fail_end_the_recovery() -> None:
    """Sessions can be created, but none of them completes a step."""
    step = af.no_op()
    script = Script(step, before=tuple(range(10_000)))
    with pytest.raises(DeadlineExceededError):
        async with af.train.MonitoredSession(away(script), max_recovery_secs=30) as session:
            await session.run(step)
    assert script.created < 100


async def test_creation_of_the_first_session_is_retried() -> None:
    model = Model()
    script = Script(model.train, refused=(0, 1))
    async with af.train.MonitoredSession(FlakyCreator(script)) as session:
        await session.run(model.train)
    assert (script.attempts, script.created) == (3, 1)


# ── queue runners ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_session_recovers_from_a_loss_in_a_queue_runner() -> None:
    lost = [UnavailableError("the peer is gone")]

    def number() -> Any:
        if lost:
            raise lost.pop()
        return np.float32(3)

    queue = af.FIFOQueue(2, ["float32"], [()])
    value = af.py_func(number, [], af.float32)
    value.set_shape([])
    af.train.add_queue_runner(af.train.QueueRunner(queue, [queue.enqueue([value])]))
    taken = queue.dequeue()
    async with af.train.MonitoredSession() as session:
        assert await session.run(taken) == 3
        assert not session.should_stop()
    assert not lost


async def test_other_error_of_a_queue_runner_reaches_the_caller() -> None:
    queue = af.FIFOQueue(2, ["string"], [()])
    af.train.add_queue_runner(af.train.QueueRunner(queue, [queue.enqueue([af.read_file("/nowhere/at/all")])]))
    taken = queue.dequeue()

    async def train() -> None:
        async with af.train.MonitoredSession() as session:
            while not session.should_stop():
                await session.run(taken)

    with pytest.raises(NotFoundError, match="/nowhere/at/all"):
        await train()


async def test_end_of_a_queue_ends_the_training() -> None:
    queue = af.train.range_input_producer(5, num_epochs=1, shuffle=False)
    taken = queue.dequeue()
    seen = []
    async with af.train.MonitoredSession() as session:
        while not session.should_stop():
            seen.append(int(await session.run(taken)))
    assert seen == [0, 1, 2, 3, 4]
    with pytest.raises(FailedPreconditionError):
        await session.run(taken)


async def test_no_tasks_remain_after_the_block() -> None:
    queue = af.train.range_input_producer(5)
    taken = queue.dequeue()
    before = asyncio.all_tasks()
    async with af.train.MonitoredSession() as session:
        await session.run(taken)
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_end_of_input_of_an_old_session_is_ignored() -> None:
    """Waiting runs of a closed session fail with OutOfRangeError, since its queues are closed."""
    model = Model()
    value = af.constant(3.0)
    begun, lost = asyncio.Event(), asyncio.Event()

    class Waits(af.train.SessionRunHook):
        """A hook that ends the first run of `value` as a closed queue would, once another run has lost the peer."""

        async def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.original_args.fetches is value and not begun.is_set():
                begun.set()
                await lost.wait()
                raise OutOfRangeError("the queue is closed")

    script = Script(model.train, before=(0,))
    async with af.train.MonitoredSession(FlakyCreator(script), [Waits()]) as session, asyncio.TaskGroup() as group:
        waiting = group.create_task(session.run(value))
        await begun.wait()
        await session.run(model.train)
        lost.set()
        assert await waiting == 3
    assert script.created == 2
