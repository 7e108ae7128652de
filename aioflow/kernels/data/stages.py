"""Stages of input pipelines: pull-based iterators. Each one pulls from its inputs and yields elements on demand.

A stage is asked for the number of elements that its consumer certainly needs (`want`), and never pulls more from its
inputs than that requires. So a batch fetches its elements in one call, and its input works on them together, without
running ahead. Only a buffer that the user asked for (`prefetch`, parallel calls) runs ahead, by its size.

`fetch` is a coroutine that need not suspend: if all elements are there, it runs to its end in one go, without the event
loop. `IteratorResource` drives it, and never cancels it before the iterator is closed. So a stage need not expect to
be cancelled in the middle and to continue later.

The position of a stage is plain data (`state`): numbers, strings and lists. It holds no elements. A fresh stage
continues at a position (`restore`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError
from aioflow.formats.allowed_folders import AllowedFolders
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims
from aioflow.memory.values import Array
from aioflow.sync.background import Background

Components: TypeAlias = tuple[Any, ...]
StagePosition: TypeAlias = Any  # what JSON can hold
Path: TypeAlias = tuple[int, ...]  # of the repetitions and branches around a stage

_STEP: Final = 1024  # elements that are skipped at a time


class Pipeline:
    """The objects that all stages of one iterator share.

    Attributes:
        background: Owner of the tasks that run ahead.
        random: Seed of the shuffles without a seed.
        caches: The elements that caches hold, by dataset, and the path of the pass that they are from.
    """

    def __init__(self, background: Background, random: int) -> None:
        self.background = background
        self.random = random
        self.caches: dict[DatasetValue, tuple[Path, list[Components]]] = {}


class DatasetValue:
    """The description of a stage: the value of a dataset node. It may be opened any number of times.

    Attributes:
        name: Name of the node, for messages.
        inputs: The datasets that it pulls from.
        args: Its settings and components.
        dtypes, shapes: Dtypes and static shapes of the components of an element.
        function: The function that it calls, or None.
        folders: The folders in which it may open files.
        depth: Number of stages from the sources to here.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[DatasetValue, Pipeline, Path], Stage],
        inputs: Sequence[DatasetValue],
        args: Sequence[Array],
        dtypes: Sequence[DType],
        shapes: Sequence[Dims],
        function: Any,
        folders: AllowedFolders,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.args = args
        self.dtypes = dtypes
        self.shapes = shapes
        self.function = function
        self.folders = folders
        self.depth: int = 1 + max((each.depth for each in inputs), default=0)
        self._make = make

    def open(self, pipeline: Pipeline, path: Path) -> Stage:
        """Return a new stage, at the beginning."""
        return self._make(self, pipeline, path)

    def number(self, index: int) -> int:
        """Return a setting: an integer."""
        value = np.asarray(self.args[index])
        if value.ndim:
            raise InvalidArgumentError(f"a setting of {self.name!r} must be a scalar", expected=(), actual=value.shape)
        return int(value)

    def at_least(self, index: int, least: int, what: str) -> int:
        """Return a setting, and raise InvalidArgumentError if it is less than `least`."""
        found = self.number(index)
        if found < least:
            raise InvalidArgumentError(
                f"{what} of {self.name!r} is out of range", expected=f"at least {least}", actual=found
            )
        return found


class Stage(ABC):
    """A stage of a pipeline that is being read.

    Attributes:
        is_bulky: An element is made of many elements of the input, so a consumer should request one at a time.
    """

    is_bulky = False

    @abstractmethod
    async def fetch(self, want: int) -> list[Components]:
        """Return between one and `want` elements, the next ones; an empty list at the end.

        Raises:
            OpError: the next element cannot be made. The next call continues after it.
        """

    @abstractmethod
    def state(self) -> StagePosition:
        """Return the position: after the elements that were returned last. Not called while `fetch` runs."""

    @abstractmethod
    async def restore(self, state: StagePosition) -> None:
        """Continue at a position. Called once, before all else."""

    async def skip(self, count: int) -> int:
        """Skip elements and return how many; less than `count` only at the end."""
        left = count
        while left:
            found = await self.fetch(min(left, _STEP))
            if not found:
                break
            left -= len(found)
        return count - left

    async def close(self) -> None:
        """Release files and stop tasks."""
        return None


class FollowingStage(Stage):
    """A stage with one input, at whose position it is."""

    def __init__(self, up: Stage) -> None:
        self.up = up

    def state(self) -> StagePosition:
        """Return the position of the input."""
        return self.up.state()

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        await self.up.restore(state)

    async def close(self) -> None:
        """Close the input."""
        await self.up.close()


class Ledger:
    """The position of a stage that has fetched elements from its input and not yet delivered all of them.

    A group is what one `fetch` of the input returned. The position is the input's before the first group of which
    elements are left, and the number of elements of that group that were delivered.
    """

    def __init__(self, up: Stage) -> None:
        self._up = up
        self._groups: deque[list[Any]] = deque()
        self._before: StagePosition = None
        self._is_fetching = False

    async def fetch(self, want: int) -> list[Components]:
        """Fetch from the input."""
        self._before, self._is_fetching = self._up.state(), True
        try:
            found = await self._up.fetch(want)
            if found:
                self._groups.append([self._before, 0, len(found)])
            return found
        finally:
            self._is_fetching = False

    def failed(self) -> None:
        """Record that an error takes the place of the next element, and is delivered in its turn."""
        self._groups.append([self._before, 0, 1])

    def deliver(self, count: int) -> None:
        """Record that elements were delivered, in order."""
        while count:
            group = self._groups[0]
            step = min(count, group[2] - group[1])
            group[1] += step
            count -= step
            if group[1] == group[2]:
                self._groups.popleft()

    def state(self) -> StagePosition:
        """Return the position."""
        if self._groups:
            before, done, _ = self._groups[0]
            return [before, done]
        return [self._before if self._is_fetching else self._up.state(), 0]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        before, done = state
        await self._up.restore(before)
        await self._up.skip(done)


def whole(state: StagePosition, most: int | None = None) -> int:
    """Return a number of a position, and raise DataLossError if it is not one."""
    if not isinstance(state, int) or isinstance(state, bool) or state < 0 or (most is not None and state > most):
        raise DataLossError(
            "the saved position does not fit the dataset",
            expected="a number" if most is None else f"a number up to {most}",
            actual=repr(state)[:80],
        )
    return state
