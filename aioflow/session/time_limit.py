"""The time limit of a run, from its first moment to its last.

It includes connecting, compiling, converting the feeds, waiting, computing, and copying the fetches.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aioflow.arguments import check_seconds
from aioflow.concurrency.threads import AbandonedError
from aioflow.errors import DeadlineExceededError
from aioflow.runtime.step import Step


class TimeLimit:
    """An async context manager that raises DeadlineExceededError if its block takes longer than the limit.

    Args:
        seconds: The limit; None for no limit.

    Attributes:
        doing: The current activity before the step starts, for the error message.
        step: The step, once it has started.
    """

    def __init__(self, seconds: float | None) -> None:
        check_seconds(seconds, "the time limit of a run")
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)
        self.doing = "being compiled"
        self.step: Step | None = None

    async def __aenter__(self) -> Self:
        # `asyncio.timeout` would let the block run up to its first await.
        if self._seconds is not None and self._seconds <= 0:
            raise self._exceeded()
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as expired:
            raise self._exceeded(expired) from expired
        until = self._timeout.when()
        if kind is None and until is not None and asyncio.get_running_loop().time() >= until:
            late = self._exceeded()  # a block that never awaits cannot be interrupted, but is late all the same
            if self.step is not None:
                await self.step.unwind(late)
                self.step.account(late)
            raise late

    @property
    def until(self) -> float | None:
        """The deadline, by the clock of the event loop; None for no limit."""
        return self._timeout.when()

    def _exceeded(self, expired: BaseException | None = None) -> DeadlineExceededError:
        error = DeadlineExceededError(
            f"the step did not finish in time{self._where(expired)}",
            expected=f"at most {self._seconds} s",
            actual="stopped",
        )
        if self.step is None:
            # The step has not begun, so it cannot have changed anything.
            error.may_have_been_applied = False
        else:
            self.step.account(error)
        return error

    def _where(self, expired: BaseException | None) -> str:
        if self.step is None:
            return f"; it was {self.doing}{abandoned(expired)}"
        return self.step.state()


def abandoned(expired: BaseException | None) -> str:
    """Return an ending for the error message if a thread with a call other than a kernel was abandoned, else ""."""
    cancelled = None if expired is None else expired.__cause__
    left = None if cancelled is None else AbandonedError.within(cancelled)
    return "" if left is None else ", in a thread where it is left behind and still running"
