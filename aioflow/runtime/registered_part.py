"""A registered part of a plan: the subgraphs of one worker, run concurrently with a rendezvous between them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence

from aioflow.concurrency.stopping import value_limit
from aioflow.errors import CancelledError, OpError
from aioflow.memory.values import Value
from aioflow.runtime.driver import Driver, TaskRun
from aioflow.runtime.executable import Executable, TasksExecutable
from aioflow.runtime.rendezvous import Rendezvous
from aioflow.runtime.step import Step


class PartExecutable:
    """The executables of one worker's devices. `run` may be called concurrently any number of times.

    Args:
        executables: The executables by device.

    Attributes:
        changes: Whether a run changes state that is visible outside without notifying its step at that moment.
        feeds: Number of feeds of the whole step.
    """

    def __init__(self, executables: Mapping[str, Executable]) -> None:
        self._executables = tuple(executables.values())
        self._devices = frozenset(executables)
        self.changes = any(executable.changes for executable in self._executables)
        self.feeds = max((executable.feeds for executable in self._executables), default=0)
        indices = [i for executable in self._executables for i in executable.fetch_indices]
        # For each fetch, in the order of the step's indices, its position in the executables' concatenated results.
        self._order = sorted(range(len(indices)), key=indices.__getitem__)

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | None:
        """Return None: the devices run concurrently, so their results have to be awaited."""
        return None

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return the part's fetches in the order of their indices in the step.

        Raises:
            OpError: a kernel failed or the step was stopped; the first cause, with its node.
        """
        if step.rendezvous is None:
            step.rendezvous = Rendezvous(asyncio.get_running_loop(), self._devices)
        step.changed = step.changed or self.changes
        results: dict[int, list[Value]] = {}
        runs: dict[int, tuple[TasksExecutable, TaskRun]] = {}
        flows: list[Coroutine[object, object, None]] = []
        for index, executable in enumerate(self._executables):
            if isinstance(executable, TasksExecutable):
                runs[index] = (executable, executable.program.begin(feeds))
            else:
                # Tagged dataflow and the reference executor have no tasks for the driver, and run beside it.
                flows.append(_flow(executable, feeds, step, index, results))
        try:
            # All executables have the limit of the same session settings.
            with value_limit(self._executables[0].limit):
                await Driver(step).run([run for _, run in runs.values()], flows)
        except BaseException as error:
            step.rendezvous.abort(error if isinstance(error, OpError) else CancelledError("the step was stopped"))
            raise
        for index, (executable, run) in runs.items():
            fetches = executable.results(run)
            results[index] = fetches if isinstance(fetches, list) else await fetches.finish(step)
        values = [value for index in range(len(self._executables)) for value in results[index]]
        return [values[i] for i in self._order]


async def _flow(
    executable: Executable, feeds: Sequence[Value], step: Step, index: int, results: dict[int, list[Value]]
) -> None:
    """Run a subgraph that has its own executor."""
    try:
        results[index] = await executable.run(feeds, step)
    except OpError as error:
        step.stop(error)  # before the others are cancelled, so that they end with the same error
        raise
