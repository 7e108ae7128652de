"""Stages that stack elements to batches, and cut batches up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aioflow.errors import DataLossError, InvalidArgumentError, OpError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import format_dims
from aioflow.kernels.data.sequences import split
from aioflow.kernels.data.stages import (
    Components,
    DatasetValue,
    FollowingStage,
    Path,
    Pipeline,
    Stage,
    StagePosition,
    whole,
)
from aioflow.memory.values import Array


class BatchStage(FollowingStage):
    """Consecutive elements, stacked; `padded` ones to a common shape."""

    is_bulky = True

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path, padded: bool = False) -> None:
        super().__init__(dataset.inputs[0].open(pipeline, path))
        self._dataset = dataset
        self._size = dataset.at_least(0, 1, "the batch size")
        self._drops = bool(dataset.args[1])
        self._error: OpError | None = None
        self._padding: list[tuple[Array, Array]] = []
        if padded:
            args = dataset.args[2:]
            self._padding = list(zip(args[: len(args) // 2], args[len(args) // 2 :], strict=True))

    async def fetch(self, want: int) -> list[Components]:
        """Return the next batches. A batch of which an element fails is dropped as a whole."""
        if self._error is None:
            rows = await self._rows(want * self._size)
            keep = len(rows) - len(rows) % self._size if self._drops or self._error is not None else len(rows)
            if keep or self._error is None:
                return [self._stacked(rows[i : i + self._size]) for i in range(0, keep, self._size)]
        error, self._error = self._error, None
        raise error

    async def _rows(self, most: int) -> list[Components]:
        rows: list[Components] = []
        try:
            while len(rows) < most and (part := await self.up.fetch(most - len(rows))):
                rows = rows + part if rows else part
        except OpError as error:
            # Raised after the batches before it.
            self._error = error
            await self._drop(self._size - len(rows) % self._size - 1)
        return rows

    async def _drop(self, count: int) -> None:
        """Drop the rest of a batch, so that later batches have the elements that they would have without the error."""
        while count:
            try:
                found = await self.up.fetch(count)
            except OpError:
                count -= 1
                continue
            if not found:
                break
            count -= len(found)

    async def skip(self, count: int) -> int:
        """Skip elements of the input."""
        done = await self.up.skip(count * self._size)
        return done // self._size if self._drops else -(-done // self._size)

    def _stacked(self, rows: list[Components]) -> Components:
        columns = zip(*rows, strict=True)
        if self._padding:
            return tuple(
                pad(column, dtype, sizes, value, self._dataset.name)
                for column, dtype, (sizes, value) in zip(columns, self._dataset.dtypes, self._padding, strict=True)
            )
        return tuple(
            stack(column, each, self._dataset.name) for column, each in zip(columns, self._dataset.dtypes, strict=True)
        )


def stack(column: Sequence[Array], dtype: DType, name: str) -> Array:
    """Return the values of a component, stacked along a new first axis."""
    first = np.shape(column[0])
    if dtype.np_dtype.hasobject:
        made = np.empty((len(column), *first), object)
        for i, value in enumerate(column):
            _same(first, np.shape(value), name, i)
            made[i] = value[()] if not first else value
        return made
    if not first:
        for i, value in enumerate(column):
            _same(first, np.shape(value), name, i)
        return np.array(column, dtype.np_dtype)
    try:
        return np.stack(column)
    except ValueError:
        for i, value in enumerate(column):
            _same(first, np.shape(value), name, i)
        raise


def _same(first: tuple[int, ...], shape: tuple[int, ...], name: str, index: int) -> None:
    if shape != first:
        raise InvalidArgumentError(
            f"cannot batch elements of different shapes in {name!r}: element {index} of the batch",
            expected=first,
            actual=shape,
        )


def pad(column: Sequence[Array], dtype: DType, sizes: Array, value: Array, name: str) -> Array:
    """Return the values of a component, padded to a common shape and stacked. A size of -1 is that of the largest."""
    rank = len(sizes)
    for each in column:
        if np.ndim(each) != rank:
            raise InvalidArgumentError(
                f"an element of {name!r} has another rank than its padded shape", expected=rank, actual=np.ndim(each)
            )
    largest = [max(np.shape(each)[axis] for each in column) for axis in range(rank)]
    shape = [most if size < 0 else int(size) for size, most in zip(sizes, largest, strict=True)]
    if any(most > size for size, most in zip(shape, largest, strict=True)):
        raise DataLossError(
            f"an element of {name!r} is larger than the padded shape",
            expected=format_dims(tuple(shape)),
            actual=largest,
        )
    made = np.empty((len(column), *shape), dtype.np_dtype)
    made.fill(np.asarray(value)[()])
    for i, each in enumerate(column):
        corner: tuple[Any, ...] = (i, *(slice(0, size) for size in np.shape(each)))
        made[corner] = each[()] if not rank else each
    return made


class UnbatchStage(Stage):
    """The slices of each element along the first axis."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._dataset = dataset
        self._up = dataset.inputs[0].open(pipeline, path)
        self._before: StagePosition = None
        self._rows: list[Components] = []
        self._next = 0

    async def fetch(self, want: int) -> list[Components]:
        """Return the next slices."""
        while self._next == len(self._rows):
            self._before = self._up.state()
            found = await self._up.fetch(1)
            if not found:
                return []
            self._next = 0
            self._rows = list(zip(*map(self._split, found[0]), strict=True))
        part = self._rows[self._next : self._next + want]
        self._next += len(part)
        return part

    def _split(self, component: Array) -> list[Any]:
        if not np.ndim(component):
            raise InvalidArgumentError(
                f"{self._dataset.name!r} cannot cut up a scalar", expected="rank >= 1", actual="()"
            )
        return split(component)

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._up.state(), 0] if self._next == len(self._rows) else [self._before, self._next]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        up, rows = state
        await self._up.restore(up)
        await self.skip(whole(rows))

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()
