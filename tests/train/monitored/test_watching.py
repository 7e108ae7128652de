"""Hooks that log, and hooks that stop at a NaN loss. tests/parity compares their steps with TensorFlow's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.testing.virtual_clock import run_virtual
from tests.train.monitored.lost_peers import FlakyCreator, NoSession, Script


class Ticking(NoSession):
    """A session whose step takes two seconds and increments a count."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        if not isinstance(fetches, list):
            return np.int64(self.step)
        await asyncio.sleep(2)
        before, self.step = self.step, self.step + 1
        return [None, *[np.int64(before) if not isinstance(f, dict) else dict.fromkeys(f, before) for f in fetches[1:]]]


class TickingCreator(af.train.SessionCreator):
    def create_session(self) -> Ticking:
        return Ticking()


def logged(
    caplog: pytest.LogCaptureFixture, hooks: Callable[[], list[af.train.SessionRunHook]], runs: int
) -> list[str]:
    async def main() -> None:
        update = af.train.get_or_create_global_step().assign_add(1, read_value=False)
        async with af.train.MonitoredSession(TickingCreator(), hooks()) as session:
            for _ in range(runs):
                await session.run(update)

    caplog.set_level(logging.INFO, "aioflow.train")
    run_virtual(main())
    return [record.getMessage() for record in caplog.records]


def test_step_counter_logs_the_speed_by_the_loop_clock(caplog: pytest.LogCaptureFixture) -> None:
    found = logged(caplog, lambda: [af.train.StepCounterHook(every_n_steps=5)], 12)
    assert found == ["global_step/sec: 0.5"] * 2


def test_step_counter_logs_by_seconds(caplog: pytest.LogCaptureFixture) -> None:
    hook = af.train.StepCounterHook(every_n_steps=None, every_n_secs=7)  # every fourth step
    assert logged(caplog, lambda: [hook], 13) == ["global_step/sec: 0.5"] * 3


def test_logging_hook_logs_by_seconds(caplog: pytest.LogCaptureFixture) -> None:
    def hooks() -> list[af.train.SessionRunHook]:
        return [af.train.LoggingTensorHook({"a": af.constant(1.0, name="a")}, every_n_secs=5)]

    # Runs begin at 0, 2, 4, … seconds. The timer is checked only when a run begins.
    assert logged(caplog, hooks, 9) == ["a = 0", "a = 4 (8.000 sec)", "a = 8 (8.000 sec)"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "does not grow" in r.getMessage()]


def descent(**more: Any) -> af.Operation:
    """Return a training step of a variable "w"."""
    w = af.get_variable("w", [2], initializer=af.zeros_initializer())
    return af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_sum(w), **more)


async def test_warning_if_training_never_increments_the_global_step(caplog: pytest.LogCaptureFixture) -> None:
    af.train.get_or_create_global_step()
    train = descent()
    async with af.train.MonitoredSession(hooks=[af.train.StepCounterHook()]) as session:
        for _ in range(20):
            await session.run(train)
        assert warnings_of(caplog) == []
        await session.run({"train": [train]})
        (text,) = warnings_of(caplog)
        for _ in range(200):
            await session.run([train, train.name])
    for said in (
        "still 0",
        "20 more runs that change w",
        "minimize(loss, global_step=train.get_or_create_global_step())",
    ):
        assert said in text
    assert len(warnings_of(caplog)) == 5


async def test_no_warning_if_the_global_step_grows(caplog: pytest.LogCaptureFixture) -> None:
    """Evaluation, steps that increment it only sometimes, and increments in a branch cause no warning either."""
    step = af.train.get_or_create_global_step()
    often = descent()
    with af.variable_scope("other"):
        counts = descent(global_step=step)
    now = af.placeholder("bool", [])
    with af.control_dependencies([often]):
        sometimes = af.cond(now, lambda: step.assign_add(1).read_value(), step.read_value)
    evaluated = [af.reduce_sum(v) for v in af.trainable_variables()]
    async with af.train.MonitoredSession(hooks=[af.train.StepCounterHook()]) as session:
        for turn in range(60):
            await session.run(counts if turn % 10 == 0 else often)
        for _ in range(60):
            await session.run(evaluated)
        for _ in range(60):
            await session.run(sometimes, {now: False})
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("needed", [2, 40])
async def test_no_warning_for_a_replica_with_dropped_gradients(caplog: pytest.LogCaptureFixture, needed: int) -> None:
    """One replica acts for all of them.

    Each step has tokens for three additional backup workers, whose gradients come too late.
    """
    step = af.train.get_or_create_global_step()
    optimizer = af.train.SyncReplicasOptimizer(af.train.GradientDescentOptimizer(0.1), needed, needed + 3)
    w = af.get_variable("w", [2], initializer=af.zeros_initializer())
    train = optimizer.minimize(af.reduce_sum(w), global_step=step)
    hooks = [optimizer.make_session_run_hook(is_chief=True, num_tokens=needed), af.train.StepCounterHook()]
    stood = 0
    async with asyncio.timeout(60), af.train.MonitoredSession(hooks=hooks) as session:
        while await session.run_step_fn(reading(step)) < 2:
            await session.run(train)
            stood += 1
    assert stood >= 2 * needed
    assert warnings_of(caplog) == []


def reading(step: Any) -> Callable[[Any], Any]:
    async def read(step_context: Any) -> int:
        return int(await step_context.session.run(step))

    return read


async def test_concurrent_runs_log_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aioflow.train")
    one = af.constant(1.0, name="one")
    hook = af.train.LoggingTensorHook([one], every_n_iter=10)

    class Yields(af.train.SessionRunHook):
        """A hook that lets all runs pass `before_run` before the first of them executes."""

        async def before_run(self, run_context: Any) -> None:
            await asyncio.sleep(0)

    async with af.train.MonitoredSession(hooks=[hook, Yields()]) as session:
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(session.run(one))
    assert len([r for r in caplog.records if r.getMessage().startswith("one:0 = 1.0")]) == 2


@pytest.mark.parametrize("name", ["nothing", "nothing:0", "unstacked"])
async def test_logging_hook_rejects_names_that_are_not_tensors(name: str) -> None:
    af.unstack(af.constant([1.0, 2.0]), name="unstacked")
    with pytest.raises(NotFoundError, match=name):
        async with af.train.MonitoredSession(hooks=[af.train.LoggingTensorHook([name], every_n_iter=1)]):
            pytest.fail("there is no such tensor")


async def test_logging_hook_rejects_tensors_of_another_graph() -> None:
    with af.Graph().as_default():
        other = af.constant(1.0)
    with pytest.raises(InvalidArgumentError):
        async with af.train.MonitoredSession(hooks=[af.train.LoggingTensorHook([other], every_n_iter=1)]):
            pytest.fail("it is of another graph")


async def test_nan_loss_is_not_retried() -> None:
    loss = af.placeholder("float32", [2], name="loss")
    script = Script(loss)
    async with af.train.MonitoredSession(FlakyCreator(script), [af.train.NanTensorHook(loss)]) as session:
        with pytest.raises(af.train.NanLossDuringTrainingError, match="NaN loss") as raised:
            await session.run(loss, {loss: [1, np.nan]})
    assert "loss:0" in str(raised.value)
    assert script.created == 1
