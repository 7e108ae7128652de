"""A registered part of a plan: the subgraphs of one worker, run side by side, with a rendezvous between them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aioflow.errors import CancelledError, OpError
from aioflow.runtime.executable import Executable
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step, root_cause

__all__ = ["PartExecutable"]


class PartExecutable:
    """The executables of one worker's devices. `run` may be called any number of times at once.

    Args:
        executables: By device.
        fetches: How many fetches the whole step has.
    """

    def __init__(self, executables: Mapping[str, Executable]) -> None:
        self._executables = tuple(executables.values())
        self._devices = frozenset(executables)
        indices = [i for executable in self._executables for i in executable.fetch_indices]
        # Where each fetch, in the order of their indices, is among the results of the executables one after another.
        self._order = sorted(range(len(indices)), key=indices.__getitem__)

    def run_inline(self, feeds: Sequence[Any]) -> list[Any] | None:
        """None: devices work side by side, so there is something to wait for."""
        return None

    async def run(self, feeds: Sequence[Any], step: Step) -> list[Any]:
        """Run one step; returns the part's fetches in the order of their indices in the step.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        if step.rendezvous is None:
            step.rendezvous = Rendezvous(asyncio.get_running_loop(), self._devices)
        rendezvous = step.rendezvous
        try:
            async with asyncio.TaskGroup() as device_group:
                tasks = [device_group.create_task(_run(e, feeds, step)) for e in self._executables]
        except BaseExceptionGroup as group:
            cause = root_cause(group)
            rendezvous.abort(cause if isinstance(cause, OpError) else CancelledError("the step was stopped"))
            raise cause from cause.__cause__
        except asyncio.CancelledError:
            rendezvous.abort(CancelledError("the step was cancelled"))
            raise
        results = [value for task in tasks for value in task.result()]
        return [results[i] for i in self._order]


async def _run(executable: Executable, feeds: Sequence[Any], step: Step) -> list[Any]:
    try:
        return await executable.run(feeds, step)
    except OpError as error:
        step.stop(error)  # the others are told before they are cancelled, so that they end with the same error
        raise
