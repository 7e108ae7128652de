"""Stages that call a function for each element: map, filter, flat_map and interleave."""

from __future__ import annotations

from collections import deque
from typing import Final

from aioflow.errors import InvalidArgumentError, OpError
from aioflow.kernels.data.functions import CallOutcome, ElementFunction, OpFunction, StackedFunction, located
from aioflow.kernels.data.stages import Components, DatasetValue, Ledger, Path, Pipeline, Stage, StagePosition, whole

_CHUNK: Final = 256  # elements per hop to a thread
_DEFAULT: Final = 4  # concurrent calls, where TensorFlow tunes the number


class MapStage(Stage):
    """The results of a function for each element, in order."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._up = dataset.inputs[0].open(pipeline, path)
        self._ledger = Ledger(self._up)
        self._name = dataset.name
        self._function: ElementFunction = dataset.function
        if len(dataset.inputs) > 1:
            self._function = StackedFunction(dataset.inputs[1].function, dataset.function)
        lanes = dataset.number(0) if dataset.args else 1
        self._lanes = _DEFAULT if lanes < 1 else lanes
        self._outcomes: deque[CallOutcome | None] = deque()
        self._number = 0

    async def fetch(self, want: int) -> list[Components]:
        """Return the next results."""
        while True:
            if not self._outcomes:
                elements = await self._ledger.fetch(min(_CHUNK, max(want, self._lanes)))
                if not elements:
                    return []
                self._outcomes.extend(self.chosen(elements, await self._function.each(elements, self._lanes)))
            if found := self._delivered(want):
                return found

    def chosen(self, elements: list[Components], outcomes: list[CallOutcome]) -> list[CallOutcome | None]:
        """Return what is delivered for each element: None for nothing."""
        return list(outcomes)

    def _delivered(self, want: int) -> list[Components]:
        found: list[Components] = []
        outcomes, count = self._outcomes, 0
        error: OpError | None = None
        while outcomes and len(found) < want:
            outcome = outcomes[0]
            if isinstance(outcome, OpError):
                # It is raised by the call after the one that returns the elements before it.
                error = None if found else located(outcome, self._name, self._number + count)
                if found:
                    break
            outcomes.popleft()
            count += 1
            if error is not None:
                break
            if outcome is not None:
                found.append(outcome)  # type: ignore[arg-type]  # an error has been handled above
        self._ledger.deliver(count)
        self._number += count
        if error is not None:
            raise error
        return found

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._ledger.state(), self._number]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        before, number = state
        self._number = whole(number)
        await self._ledger.restore(before)

    async def skip(self, count: int) -> int:
        """Skip elements of the input, without calling the function."""
        done = 0
        while done < count and self._outcomes:
            self._outcomes.popleft()
            self._ledger.deliver(1)
            done += 1
        done += await self._up.skip(count - done)
        self._number += done
        return done

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()


class FilterStage(MapStage):
    """The elements for which a function returns true."""

    def chosen(self, elements: list[Components], outcomes: list[CallOutcome]) -> list[CallOutcome | None]:
        """Return the elements for which the outcome is true."""
        return [
            outcome if isinstance(outcome, OpError) else element if bool(outcome[0]) else None
            for element, outcome in zip(elements, outcomes, strict=True)
        ]

    async def skip(self, count: int) -> int:
        """Skip elements for which the function returns true."""
        return await Stage.skip(self, count)


class _Slot:
    """A dataset that is being read: the position of the input before its element, and the stage."""

    def __init__(self, before: StagePosition, number: int, stage: Stage) -> None:
        self.before = before
        self.number = number
        self.stage = stage


class InterleaveStage(Stage):
    """The elements of the datasets that a function returns: some at a time, in turn."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._dataset, self._pipeline, self._path = dataset, pipeline, path
        self._up = dataset.inputs[0].open(pipeline, path)
        self._function: OpFunction = dataset.function
        cycle = dataset.number(0)
        self._slots: list[_Slot | None] = [None] * (_DEFAULT if cycle < 1 else cycle)
        self._block = dataset.at_least(1, 1, "the block length")
        self._at = 0
        self._in_block = 0
        self._number = 0
        self._has_ended = False

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements, all from one dataset."""
        while not self._has_ended or any(self._slots):
            slot = self._slots[self._at]
            if slot is not None:
                # With one slot there are no blocks.
                most = want if len(self._slots) == 1 else min(want, self._block - self._in_block)
                if found := await slot.stage.fetch(most):
                    self._in_block += len(found)
                    if self._in_block >= self._block:
                        self._advance()
                    return found
                self._slots[self._at] = None
                await slot.stage.close()
                self._advance()
            elif self._has_ended:
                self._advance()
            else:
                await self._open_next()
        return []

    def _advance(self) -> None:
        self._in_block = 0
        self._at = (self._at + 1) % len(self._slots)

    async def _open_next(self) -> None:
        before = self._up.state()
        elements = await self._up.fetch(1)
        if elements:
            self._number += 1
            self._slots[self._at] = _Slot(before, self._number - 1, await self._opened(elements[0], self._number - 1))
        else:
            self._has_ended = True

    async def _opened(self, element: Components, number: int) -> Stage:
        try:
            (made,) = await self._function.one(element)
        except OpError as error:
            raise located(error, self._dataset.name, number) from error.__cause__
        if not isinstance(made, DatasetValue):
            raise InvalidArgumentError(
                f"the function of {self._dataset.name!r} returned no dataset", expected="a Dataset", actual=repr(made)
            )
        return made.open(self._pipeline, (*self._path, number))

    def state(self) -> StagePosition:
        """Return the position."""
        slots = [None if s is None else [s.before, s.number, s.stage.state()] for s in self._slots]
        return [self._up.state(), self._number, self._has_ended, self._at, self._in_block, slots]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position: open the datasets of the slots again."""
        up, self._number, self._has_ended, self._at, self._in_block, slots = state
        await self._up.restore(up)
        for i, each in enumerate(slots):
            if each is not None:
                self._slots[i] = await self._restored(*each)

    async def _restored(self, before: StagePosition, number: int, state: StagePosition) -> _Slot:
        again = self._dataset.inputs[0].open(self._pipeline, self._path)
        try:
            await again.restore(before)
            (element,) = await again.fetch(1)
        finally:
            await again.close()
        slot = _Slot(before, number, await self._opened(element, number))
        await slot.stage.restore(state)
        return slot

    async def close(self) -> None:
        """Close all that is open."""
        for slot in self._slots:
            if slot is not None:
                await slot.stage.close()
        await self._up.close()
