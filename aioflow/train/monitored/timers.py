"""When a hook acts: every so many steps, or every so many seconds of the event loop's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from aioflow.checks.numbers import check_number
from aioflow.errors import InvalidArgumentError

__all__ = ["HookTimer", "NeverTriggerTimer", "SecondOrStepTimer", "loop_time"]


def loop_time() -> float:
    """Seconds by the clock of the running loop; outside of one, by the clock that loops usually have."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class HookTimer(Protocol):
    """Says at which steps a hook acts."""

    def reset(self) -> None:
        """Forget that it has ever acted."""

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it acts at this step."""

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """It acts now. Returns the seconds and the steps since the last time; None for both the first time."""

    def last_triggered_step(self) -> int | None:
        """The step at which it acted last, or None."""


class SecondOrStepTimer:
    """Acts at the first step that it is asked about, and then every so many seconds or steps; once for each step.

    Args:
        every_secs: Seconds by `clock`.
        every_steps: Steps; exactly one of the two is given.
        clock: A function that gives seconds; that of the running event loop by default.

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
                "a timer goes by seconds or by steps", expected="every_secs or every_steps", actual=given
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
        """Forget that it has ever acted."""
        self._last_step: int | None = None
        self._last_time = 0.0

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it acts at this step."""
        if self._last_step is None:
            return True
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            return self._clock() >= self._last_time + self._every_secs
        return self._every_steps is not None and step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """It acts now. Returns the seconds and the steps since the last time; None for both the first time."""
        now = self._clock()
        since = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return since

    def last_triggered_step(self) -> int | None:
        """The step at which it acted last, or None."""
        return self._last_step


class NeverTriggerTimer:
    """Never acts."""

    def reset(self) -> None:
        """Nothing to forget."""

    def should_trigger_for_step(self, step: int) -> bool:
        """It does not."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """None and None."""
        return None, None

    def last_triggered_step(self) -> int | None:
        """None."""
        return None
