"""Admission control for the steps of a worker: which may start, which run, and counts, without I/O.

A worker that shuts down admits no new steps and waits for those that run.
"""

from __future__ import annotations

import asyncio

from aioflow.errors import OpError, UnavailableError
from aioflow.runtime.step import Step


class StepAdmission:
    """The steps of one worker, of all its clients. Bound to the running event loop.

    Attributes:
        running: Running steps, in the order in which they started.
        begun: Number of steps started.
        failed: Number of steps that failed, including stopped ones.
        refused: Number of steps rejected.
    """

    __slots__ = ("_idle", "_open", "_task", "begun", "failed", "refused", "running")

    def __init__(self, task: str) -> None:
        self._task = task
        self._open = True
        self._idle: asyncio.Event | None = None
        self.running: dict[Step, None] = {}
        self.begun = self.failed = self.refused = 0

    def begin(self, step: Step) -> None:
        """Count a step as started; `end` must follow.

        Raises:
            UnavailableError: no more steps are admitted. This step was not applied here.
        """
        if not self._open:
            self.refused += 1
            error = UnavailableError(f"{self._task} is shutting down and accepts no more steps")
            error.may_have_been_applied = False
            raise error
        self.begun += 1
        self.running[step] = None

    def end(self, step: Step, failed: bool) -> None:
        """Count a step as ended."""
        self.failed += failed
        self.running.pop(step, None)
        if self._idle is not None and not self.running:
            self._idle.set()

    def has_run(self, failed: bool) -> None:
        """Count a step that has already run to its end. The caller must have checked `is_open` before it ran."""
        self.begun += 1
        self.failed += failed

    def close(self) -> None:
        """Admit no more steps."""
        self._open = False

    @property
    def is_open(self) -> bool:
        """True if steps are admitted."""
        return self._open

    def stop(self, error: OpError) -> None:
        """Stop all running steps. They end at the next checkpoint of their kernels."""
        # A copy, since a step that is stopped may end at once.
        for step in list(self.running):
            step.stop(error)

    async def idle(self) -> None:
        """Wait until no step runs."""
        while self.running:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()
