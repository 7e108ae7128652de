"""Which steps may begin on a worker, which run, and how many there have been, without I/O.

A worker that is to end admits no more of them, and waits for those that run.
"""

from __future__ import annotations

import asyncio

from aioflow.errors import OpError, UnavailableError
from aioflow.runtime.step import Step

__all__ = ["Admission"]


class Admission:
    """The steps of one worker, of all its clients. It belongs to the running event loop.

    Attributes:
        running: In the order in which they began.
        begun, failed, refused: How many there have been. Those that were stopped have failed.
    """

    __slots__ = ("_idle", "_open", "_task", "begun", "failed", "refused", "running")

    def __init__(self, task: str) -> None:
        self._task = task
        self._open = True
        self._idle: asyncio.Event | None = None
        self.running: dict[Step, None] = {}
        self.begun = self.failed = self.refused = 0

    def begin(self, step: Step) -> None:
        """A step begins; `end` must follow.

        Raises:
            UnavailableError: no more steps are admitted. Nothing of this one was applied here.
        """
        if not self._open:
            self.refused += 1
            error = UnavailableError(f"{self._task} is about to end, and begins no more steps")
            error.may_have_been_applied = False
            raise error
        self.begun += 1
        self.running[step] = None

    def end(self, step: Step, failed: bool) -> None:
        """It has ended."""
        self.failed += failed
        self.running.pop(step, None)
        if self._idle is not None and not self.running:
            self._idle.set()

    def has_run(self, failed: bool) -> None:
        """A step has begun and ended, at once; `is_open` was asked before."""
        self.begun += 1
        self.failed += failed

    def close(self) -> None:
        """Admit no more."""
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether steps are admitted."""
        return self._open

    def stop(self, error: OpError) -> None:
        """Stop all that run; they end when what is computing has come to a checkpoint."""
        for step in list(self.running):
            step.stop(error)

    async def idle(self) -> None:
        """Wait until none runs."""
        while self.running:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()
