"""Timers of hooks, which trigger every given number of steps or of seconds, and the lookup of the global step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from aioflow.arguments import check_number
from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.ops.variables.variable import Variable
from aioflow.train.step import get_global_step


def loop_time() -> float:
    """Return the time of the running loop in seconds; outside of a loop, that of the usual loop clock."""
    try:
        # A simulated loop has a clock of its own.
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class HookTimer(Protocol):
    """Interface of timers, which determine the steps at which a hook acts."""

    def reset(self) -> None:
        """Forget earlier triggers."""

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether the timer triggers at this step."""

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger. Return the seconds and steps since the last one, both None for the first."""

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger, or None."""


class SecondOrStepTimer:
    """A timer that triggers at the first step and then at an interval in seconds or steps, at most once per step.

    Args:
        every_secs: Interval in seconds of `clock`.
        every_steps: Interval in steps; exactly one of the two must be given.
        clock: Function that returns seconds; by default the clock of the running event loop.

    Raises:
        InvalidArgumentError: both are given, or neither.
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        *,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        if (every_secs is None) == (every_steps is None):
            given = "neither" if every_secs is None else "both"
            raise InvalidArgumentError(
                "a timer needs an interval in seconds or in steps", expected="every_secs or every_steps", actual=given
            )
        if every_secs is not None:
            check_number(every_secs, "every_secs", "a number of seconds")
        if every_steps is not None:
            check_number(every_steps, "every_steps", "a number of steps")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget earlier triggers."""
        self._last_step: int | None = None
        self._last_time = 0.0

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether the timer triggers at this step."""
        if self._last_step is None:
            return True
        # A step triggers once, even if several runs report it.
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            return self._clock() >= self._last_time + self._every_secs
        return self._every_steps is not None and step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger. Return the seconds and steps since the last one, both None for the first."""
        now = self._clock()
        since = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return since

    def last_triggered_step(self) -> int | None:
        """Return the step of the last trigger, or None."""
        return self._last_step


class NeverTriggerTimer:
    """A timer that never triggers."""

    def reset(self) -> None:
        """Do nothing."""

    def should_trigger_for_step(self, step: int) -> bool:
        """Return False."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Return (None, None)."""
        return None, None

    def last_triggered_step(self) -> int | None:
        """Return None."""
        return None


# ── the global step of a graph ────────────────────────────────────────────────────────────────────────────────────────


def required_global_step(who: object) -> Variable:
    """Return the global step of the default graph.

    Raises:
        FailedPreconditionError: there is no global step; the error names the type of `who`.
    """
    step = get_global_step()
    if step is None:
        raise FailedPreconditionError(
            f"{type(who).__name__} needs a global step",
            expected="train.get_or_create_global_step() before the session is made",
            actual="none",
        )
    return step
