"""Stages that run ahead of their consumer, by a bounded number of elements: prefetching, concurrent coroutines."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from aioflow.errors import CancelledError, OpError
from aioflow.kernels.data.functions import CallOutcome, CoroutineFunction, located, own_task
from aioflow.kernels.data.stages import Components, DatasetValue, Ledger, Path, Pipeline, Stage, StagePosition, whole

_AUTOTUNE: Final = -1
_DEFAULT: Final = 4  # elements, where TensorFlow tunes the number


class AheadStage(Stage):
    """A stage whose task fetches elements until a buffer is full.

    Args:
        up: The input.
        pipeline: Owner of the task.
        size: Size of the buffer.
    """

    def __init__(self, up: Stage, pipeline: Pipeline, size: int) -> None:
        self._up = up
        self._ledger = Ledger(up)
        self._pipeline = pipeline
        self._size = size
        self._items: deque[Any] = deque()
        self._room = asyncio.Event()
        self._filled = asyncio.Event()
        self._has_ended = False
        self._feeder: asyncio.Task[None] | None = None

    async def begin(self, element: Components) -> Any:
        """Return the item of the buffer for an element."""
        return element

    def ready(self, item: Any) -> CallOutcome | None:
        """Return the outcome of an item, or None if it is not known yet."""
        outcome: CallOutcome = item
        return outcome

    async def outcome(self, item: Any) -> CallOutcome:
        """Wait for the outcome of an item."""
        return self.ready(item) or CancelledError("the pipeline is closed")

    async def fetch(self, want: int) -> list[Components]:
        """Return elements of the buffer."""
        if self._feeder is None:
            self._feeder = await self._pipeline.background.start(self._feed())
        while not self._items:
            if self._has_ended:
                return []
            self._filled.clear()
            await self._filled.wait()
        if self.ready(self._items[0]) is None:
            await own_task()
            await self.outcome(self._items[0])
        found: list[Components] = []
        while self._items and len(found) < want:
            outcome = self.ready(self._items[0])
            # An error is raised by the call after the one that returns the elements before it.
            if outcome is None or (found and isinstance(outcome, Exception)):
                break
            self._items.popleft()
            self._ledger.deliver(1)
            self.delivered()
            self._room.set()
            if isinstance(outcome, Exception):
                raise outcome
            found.append(outcome)
        return found

    def delivered(self) -> None:
        """Note that an item was delivered."""

    async def _feed(self) -> None:
        try:
            while True:
                while len(self._items) >= self._size:
                    self._room.clear()
                    await self._room.wait()
                try:
                    found = await self._ledger.fetch(1 if self._up.is_bulky else self._size - len(self._items))
                except OpError as error:
                    self._ledger.failed()
                    self._items.append(await self.failed(error))
                else:
                    if not found:
                        break
                    for element in found:
                        self._items.append(await self.begin(element))
                self._filled.set()
        finally:
            self._has_ended = True
            self._filled.set()

    async def failed(self, error: OpError) -> Any:
        """Return the item of the buffer for an error of the input."""
        return error

    def state(self) -> StagePosition:
        """Return the position."""
        return self._ledger.state()

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        await self._ledger.restore(state)

    async def close(self) -> None:
        """Stop the task, and close the input."""
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
        await self._up.close()


class PrefetchStage(AheadStage):
    """A buffer of elements that are fetched ahead."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        size = dataset.at_least(0, _AUTOTUNE, "the buffer size")
        super().__init__(dataset.inputs[0].open(pipeline, path), pipeline, _DEFAULT if size == _AUTOTUNE else size)

    async def fetch(self, want: int) -> list[Components]:
        """Return elements of the buffer."""
        return await (super().fetch(want) if self._size else self._up.fetch(want))


class CoroutineMapStage(AheadStage):
    """The results of a coroutine function, in the order of the elements; several calls are in flight."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        calls = dataset.number(0)
        super().__init__(dataset.inputs[0].open(pipeline, path), pipeline, _DEFAULT if calls == _AUTOTUNE else calls)
        self._name = dataset.name
        self._function: CoroutineFunction = dataset.function
        self._number = 0

    async def begin(self, element: Components) -> Any:
        """Start the call for an element."""
        outcomes: list[CallOutcome] = []

        async def call() -> None:
            outcomes.append(await self._function.outcome(element))

        return await self._pipeline.background.start(call()), outcomes

    def ready(self, item: Any) -> CallOutcome | None:
        """Return the outcome of a call, or None if it still runs."""
        if isinstance(item, Exception):
            return item  # type: ignore[return-value]  # only errors of the engine are items
        task, outcomes = item
        if not task.done():
            return None
        found: CallOutcome = outcomes[0] if outcomes else CancelledError("the session is closed")
        return located(found, self._name, self._number) if isinstance(found, OpError) else found

    async def outcome(self, item: Any) -> CallOutcome:
        """Wait for the outcome of a call."""
        await asyncio.wait([item[0]])
        return await super().outcome(item)

    def delivered(self) -> None:
        """Count the element."""
        self._number += 1

    def state(self) -> StagePosition:
        """Return the position."""
        return [super().state(), self._number]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        before, number = state
        self._number = whole(number)
        await super().restore(before)

    async def close(self) -> None:
        """Stop the calls, and close the input."""
        tasks = [item[0] for item in self._items if not isinstance(item, Exception)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await super().close()
