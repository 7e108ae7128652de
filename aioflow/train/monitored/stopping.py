"""Hooks that end the training at a step, or delay its start until a step."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aioflow.arguments import check_number, check_whole
from aioflow.errors import DeadlineExceededError, InvalidArgumentError
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from aioflow.train.monitored.step_of_graph import required_global_step

_LOGGER: Final = logging.getLogger("aioflow.train")
_LOOK: Final = 0.5  # seconds between two polls of the global step


class StopAtStepHook(SessionRunHook):
    """A hook that ends the training after a number of steps, or at a global step.

    Args:
        num_steps: Number of steps from the first session on; steps repeated after a failure count once.
        last_step: The global step; exactly one of the two must be given.

    Raises:
        InvalidArgumentError: both are given, or neither.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            given = "neither" if num_steps is None else "both"
            raise InvalidArgumentError(
                "the end is a number of steps or a step", expected="num_steps or last_step", actual=given
            )
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        """Find the global step."""
        self._step = required_global_step(self)

    async def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Compute the last step in the first session."""
        # Only once: after a failure the goal stays the same, so that repeated steps count once.
        if self._last_step is None and self._num_steps is not None:
            self._last_step = int(await session.run(self._step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Request a stop at the last step."""
        last = self._last_step
        # The fetched value may be from before or after the update: near the end, read the step again.
        if last is not None and run_values.results + 1 >= last and await run_context.session.run(self._step) >= last:
            run_context.request_stop()


class GlobalStepWaiterHook(SessionRunHook):
    """A hook that delays the first run until the global step, advanced by other tasks, has reached a value.

    Args:
        wait_until_step: The step.
        max_wait_secs: Maximum seconds to wait.
    """

    def __init__(self, wait_until_step: int, *, max_wait_secs: float = 7200) -> None:
        check_whole(wait_until_step, "wait_until_step", -(1 << 63))
        check_number(max_wait_secs, "max_wait_secs", "a number of seconds")
        self._wait_until_step = wait_until_step
        self._max_wait_secs = max_wait_secs

    def begin(self) -> None:
        """Find the global step."""
        self._started = self._wait_until_step <= 0
        self._step = required_global_step(self)

    async def before_run(self, run_context: SessionRunContext) -> None:
        """Wait before the first run.

        Raises:
            DeadlineExceededError: `max_wait_secs` have passed.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._max_wait_secs
        while not self._started:
            step = int(await run_context.session.run(self._step))
            if step >= self._wait_until_step:
                self._started = True
                break
            # Checked after the look, so that a step reached in the last interval still counts.
            if clock() >= until:
                raise DeadlineExceededError(
                    f"the global step was not {self._wait_until_step} in time",
                    expected=f"within {self._max_wait_secs:g} s",
                    actual=f"step {step}",
                )
            _LOGGER.debug("waiting for global step %d, it is %d", self._wait_until_step, step)
            await asyncio.sleep(_LOOK)
