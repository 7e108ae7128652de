"""The state of a listening server, and its orderly shutdown.

A draining server begins no more steps, waits for running steps, for the delivery of their values and for answers to all
requests, and only then ends the connections.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Final

from aioflow.errors import UnavailableError
from aioflow.net.outbox import Outbox
from aioflow.net.status import Activity, RunningStep, peak_memory
from aioflow.net.task_worker import TaskWorker
from aioflow.net.worker_service import WorkerService
from aioflow.runtime.step import Step

_LOOK_SECONDS: Final = 0.05  # between checks whether values have arrived; peers confirm them a few times a second
_CLOSE_SECONDS: Final = 2.0  # for the last answers, in addition to the time for running steps
_MOST_STEPS: Final = 100  # described one by one
_MOST_WAITS: Final = 20  # described per step
_MOST_QUEUES: Final = 100


class Serving:
    """The components of a listening server.

    Attributes:
        tasks: The server's worker.
    """

    def __init__(self, tasks: TaskWorker, outbox: Outbox, service: WorkerService) -> None:
        self.tasks = tasks
        self._outbox = outbox
        self._service = service

    @property
    def state(self) -> str:
        """State of the server: "serves", or "drains" if no more steps begin."""
        return "serves" if self.tasks.admission.is_open else "drains"

    def activity(self) -> Activity:
        """Return the running steps and the counters."""
        admission = self.tasks.admission
        running = list(admission.running)
        return Activity(
            connections=self._service.connections,
            parts=self.tasks.worker.registered,
            running=len(running),
            begun=admission.begun,
            failed=admission.failed,
            refused=admission.refused,
            early_bytes=self.tasks.steps.early_bytes,
            memory=peak_memory(),
            steps=tuple(map(_described, running[:_MOST_STEPS])),
            queues=tuple(islice(self.tasks.worker.waited_for(), _MOST_QUEUES)),
        )

    async def drain(self, seconds: float) -> None:
        """Begin no more steps, wait for the running ones, and close all connections gracefully.

        Steps that still run after `seconds` are stopped. Then the connections stay open for the caller to end, since a
        graceful close would tell peers that all values have arrived.
        """
        admission = self.tasks.admission
        admission.close()
        in_order = True
        try:
            async with asyncio.timeout(seconds):
                await admission.idle()
                await self._until_quiet()
        except TimeoutError:
            in_order = False
            admission.stop(
                UnavailableError(
                    f"{self.tasks.task} is shutting down, and the step did not finish within {seconds:g} s"
                )
            )
            await admission.idle()
        with suppress(TimeoutError):  # do not wait for peers that do not read
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._service.answered()
                if in_order:  # a graceful close tells peers that all values have arrived
                    await self._service.close_gracefully()

    async def _until_quiet(self) -> None:
        while not (self._outbox.is_empty and self._service.is_quiet):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)


def _described(step: Step) -> RunningStep:
    waits = (f"{wait.node} on {wait.describe()}" for wait in islice(step.waiting, _MOST_WAITS))
    return RunningStep(step.id, step.seconds, tuple(waits))
