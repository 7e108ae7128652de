"""A step with parts on several workers.

Parts that can begin without awaiting are started one after the other in one turn of the event loop, and one future
waits for them all. An asyncio task for each would cost more than its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from aioflow.compiler.ir import Part
from aioflow.concurrency.threads import to_its_end
from aioflow.errors import OpError
from aioflow.memory.values import Value
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Begun, WorkerAPI

_Part: TypeAlias = tuple[WorkerAPI, Part, int]


class StepOfParts:
    """A plan whose parts are registered with their workers. `run` may be called concurrently any number of times.

    Args:
        parts: Each worker with its part and the handle that the worker returned for it. Workers in other processes come
            first, so that their messages are in transit while the others compute.
        unanswered: The cluster tasks whose parts have always ended when the other parts have
            (`compiler.messages.unanswered`).
    """

    def __init__(self, parts: Sequence[_Part], unanswered: Collection[str] = ()) -> None:
        self._parts = tuple(parts)
        self._is_quiet = tuple(part.task in unanswered for _, part, _ in parts)
        indices = [i for _, part, _ in parts for i in part.fetches]
        # For each fetch of the step, its position in the concatenated results of the workers.
        self._order = sorted(range(len(indices)), key=indices.__getitem__)
        self._is_in_order = self._order == list(range(len(indices)))

    def run_inline(self, feeds: Sequence[Value]) -> list[Value] | None:
        """Return None: workers have to be awaited."""
        return None

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step on all workers and return the fetches in order.

        Raises:
            OpError: a worker failed; the first cause. By then the others have stopped or are unreachable.
        """
        if not self._parts:
            return []  # the step has no fetches and no targets
        if step.requested:
            step.halt()
        volley = _FanOut(step)
        try:
            found = await self._results(volley, feeds, step)
        except BaseException as error:
            if isinstance(error, OpError):
                step.stop(error)
            # Before the error is raised: afterwards no kernel of the step runs at a reachable worker.
            await volley.stop()
            # The reason of the stop request came first; `error` may be its consequence.
            if step.error is None or step.error is error:
                raise
            raise step.error from step.error.__cause__
        finally:
            volley.close()
        values = found[0] if len(found) == 1 else [value for results in found for value in results]
        return values if self._is_in_order else [values[i] for i in self._order]

    async def _results(self, volley: _FanOut, feeds: Sequence[Value], step: Step) -> list[list[Value]]:
        found: list[Any] = [
            volley.begin(part, feeds, quietly) for part, quietly in zip(self._parts, self._is_quiet, strict=True)
        ]
        rest = [index for index, begun in enumerate(found) if begun is None]
        # A single part is awaited in the caller's task, which saves an asyncio task.
        if len(rest) == 1:
            worker, part, handle = self._parts[rest[0]]
            found[rest[0]] = await _run_reported(worker, part, handle, feeds, step)
        elif rest:
            outcomes = await _all([self._parts[index] for index in rest], feeds, step)
            for index, results in zip(rest, outcomes, strict=True):
                found[index] = results
        await volley.ended()
        return [results if isinstance(results, list) else results.results() for results in found]

    async def deregister(self) -> None:
        """Remove the parts from the workers. Running steps continue."""
        for worker, _, handle in self._parts:
            await worker.deregister(handle)


async def _all(parts: Sequence[_Part], feeds: Sequence[Value], step: Step) -> list[list[Value]]:
    """Return the results of workers that have to be awaited. Raises the first cause."""
    try:
        async with asyncio.TaskGroup() as worker_group:
            tasks = [worker_group.create_task(_run(*part, feeds, step)) for part in parts[1:]]
            first = await _run(*parts[0], feeds, step)  # awaiting it here saves a task
            await asyncio.wait(tasks)  # within the block; see Driver._beside_tasks
    except BaseExceptionGroup as group:
        cause = step.end(group)
        raise cause from cause.__cause__
    return [first, *(task.result() for task in tasks)]


async def _run(worker: WorkerAPI, part: Part, handle: int, feeds: Sequence[Value], step: Step) -> list[Value]:
    try:
        return await _run_reported(worker, part, handle, feeds, step)
    except OpError as error:
        step.stop(error)  # stops the other workers before their runs are cancelled, so that they report the first cause
        raise


async def _run_reported(worker: WorkerAPI, part: Part, handle: int, feeds: Sequence[Value], step: Step) -> list[Value]:
    if step.spans is None:
        return await worker.run(handle, feeds, step)
    with step.spans.part(part.task):
        return await worker.run(handle, feeds, step)


class _FanOut:
    """The pending calls of one step: parts that were started without being awaited."""

    __slots__ = ("_begun", "_left", "_step", "_waiter")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._begun: list[Begun] = []
        self._left = 0
        self._waiter: asyncio.Future[None] | None = None
        step.watchers.append(self._on_stop)

    def begin(self, part: _Part, feeds: Sequence[Value], quietly: bool) -> Begun | None:
        """Start a part, or return None if it has to be awaited, as every part does when spans are reported.

        Raises:
            OpError: the part cannot be started.
        """
        if self._step.spans is not None:
            return None
        worker, _, handle = part
        begun = worker.begin(handle, feeds, self._step, self._ended, quietly)
        if begun is not None:
            # A quiet part is not counted: it calls back only if it fails, which ends the step.
            self._left += not quietly
            self._begun.append(begun)
        return begun

    def _ended(self, error: OpError | None) -> None:
        """Count a part as ended, or stop the step if it failed. A quiet part reports only failure."""
        self._left -= 1
        if error is not None:
            self._step.stop(error)
        elif not self._left:
            self._wake()

    def _on_stop(self) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def ended(self) -> None:
        """Wait until all parts that report their end have ended. Raises OpError if the step was stopped."""
        if self._left and not self._step.requested:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._step.requested:
            self._step.halt()

    async def stop(self) -> None:
        """Abort the parts still running and wait for every reachable worker, even if the caller is cancelled."""
        # Cancellation must not cut the wait short: elements that the step has taken would be lost.
        if left := [begun for begun in self._begun if not begun.done()]:
            await to_its_end(self._stop(left))

    async def _stop(self, left: Sequence[Begun]) -> None:
        async with asyncio.TaskGroup() as stop_group:  # its tasks raise nothing
            for begun in left[1:]:
                stop_group.create_task(begun.stop())
            await left[0].stop()

    def close(self) -> None:
        """Release the pending calls; no further callbacks are made."""
        self._step.watchers.remove(self._on_stop)
        for begun in self._begun:
            begun.close()
