"""Hooks that end the training at a step, or start it at one. tests/parity compares the steps with TensorFlow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError, DTypeError, FailedPreconditionError, InvalidArgumentError
from aioflow.testing.virtual_clock import run_virtual
from tests.train.monitored.lost_peers import FlakyCreator, NoSession, Script


async def test_num_steps_counts_from_the_first_session(graph: af.Graph) -> None:
    step = af.train.get_or_create_global_step()
    update = step.assign_add(1, read_value=False)
    script = Script(update, before=(2,))  # training restarts from the initial values, since there is no checkpoint
    hook = af.train.StopAtStepHook(num_steps=4)
    async with af.train.MonitoredSession(FlakyCreator(script), [hook]) as session:
        while not session.should_stop():
            await session.run(update)
    assert script.applied == 2 + 4


@pytest.mark.parametrize("hook", [af.train.StopAtStepHook(num_steps=1), af.train.GlobalStepWaiterHook(1)])
async def test_hooks_require_a_global_step(hook: af.train.SessionRunHook) -> None:
    with pytest.raises(FailedPreconditionError, match=f"{type(hook).__name__} needs a global step"):
        async with af.train.MonitoredSession(hooks=[hook]):
            pytest.fail("there is no global step")


class Counting(NoSession):
    """A session whose global step grows by one each second."""

    async def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        return int(asyncio.get_running_loop().time())


def waiting(hook: af.train.GlobalStepWaiterHook, times: int = 1) -> list[float]:
    async def main() -> list[float]:
        af.train.get_or_create_global_step()
        hook.begin()
        context = af.train.SessionRunContext(af.train.SessionRunArgs(None), Counting())
        found = []
        for _ in range(times):
            await hook.before_run(context)
            found.append(asyncio.get_running_loop().time())
        return found

    return run_virtual(main())


def test_global_step_waiter_waits_once() -> None:
    assert waiting(af.train.GlobalStepWaiterHook(40), times=2) == [40, 40]
    assert waiting(af.train.GlobalStepWaiterHook(0)) == [0]


def test_global_step_waiter_times_out() -> None:
    with pytest.raises(DeadlineExceededError, match="was not 40 in time"):
        waiting(af.train.GlobalStepWaiterHook(40, max_wait_secs=30))


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError):
        af.train.StopAtStepHook()
    with pytest.raises(DTypeError):
        af.train.GlobalStepWaiterHook(1.5)  # type: ignore[arg-type]
