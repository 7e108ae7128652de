"""Stages of values in memory, and stages that select, repeat and join elements."""

from __future__ import annotations

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.data.stages import Components, DatasetValue, Path, Pipeline, Stage, StagePosition, whole
from aioflow.memory.values import Array, Value

# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class RowStage(Stage):
    """Elements that can be had by their number."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def rows(self, start: int, stop: int) -> list[Components]:
        """Return the elements from `start` to `stop`."""
        raise NotImplementedError

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        start = self._next
        self._next = min(self._count, start + want)
        return self.rows(start, self._next) if self._next > start else []

    def state(self) -> StagePosition:
        """Return the number of the next element."""
        return self._next

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._next = whole(state, self._count)

    async def skip(self, count: int) -> int:
        """Skip elements at no cost."""
        start = self._next
        self._next = min(self._count, start + count)
        return self._next - start


class TensorStage(RowStage):
    """One element: all components."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        super().__init__(1)
        self._element = tuple(dataset.args)

    def rows(self, start: int, stop: int) -> list[Components]:
        """Return the element."""
        return [self._element]


class SliceStage(RowStage):
    """The slices of the components along their first axis."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        sizes = {np.shape(array)[0] if np.ndim(array) else None for array in dataset.args}
        if len(sizes) != 1 or None in sizes:
            raise InvalidArgumentError(
                f"the components of {dataset.name!r} must have the same first dimension",
                expected="equal",
                actual=[np.shape(array) for array in dataset.args],
            )
        super().__init__(int(sizes.pop() or 0))
        self._columns = dataset.args

    def rows(self, start: int, stop: int) -> list[Components]:
        """Return the slices from `start` to `stop`."""
        return list(zip(*(split(column[start:stop]) for column in self._columns), strict=True))


class RangeStage(RowStage):
    """A range of integers."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        start, stop, step = (dataset.number(i) for i in range(3))
        if step == 0:
            raise InvalidArgumentError(f"the step of {dataset.name!r} is zero", expected="another", actual=0)
        self._range = range(start, stop, step)
        super().__init__(len(self._range))
        self._type = dataset.dtypes[0].np_dtype

    def rows(self, start: int, stop: int) -> list[Components]:
        """Return the numbers at these indices."""
        made = np.arange(self._range[start], self._range[stop - 1] + self._range.step, self._range.step)
        return [(number,) for number in made[: stop - start].astype(self._type)]


def split(column: Array) -> list[Value]:
    """Return the slices of an array along its first axis."""
    # Iterating over strings yields bytes, where a scalar string is an array.
    if column.dtype == object and column.ndim == 1:
        return [column[i : i + 1].reshape(()) for i in range(len(column))]
    return list(column)


# ── stages with one input ─────────────────────────────────────────────────────────────────────────────────────────────


class TakeStage(Stage):
    """The first elements; all with a negative count."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._up = dataset.inputs[0].open(pipeline, path)
        self._left = dataset.number(0)

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        if self._left < 0:
            return await self._up.fetch(want)
        if not self._left:
            return []
        # Counted even if the input fails: the failed element was one of them.
        try:
            found = await self._up.fetch(min(want, self._left))
        except Exception:
            self._left -= 1
            raise
        self._left -= len(found)
        return found

    async def skip(self, count: int) -> int:
        """Skip elements of the input."""
        done = await self._up.skip(count if self._left < 0 else min(count, self._left))
        self._left -= done if self._left > 0 else 0
        return done

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._left, self._up.state()]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._left, up = state
        await self._up.restore(up)

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()


class SkipStage(Stage):
    """The elements after the first ones; none with a negative count."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._up = dataset.inputs[0].open(pipeline, path)
        self._count = dataset.number(0)
        self._begun = False

    async def _begin(self) -> bool:
        if self._count < 0:
            return False
        if not self._begun:
            self._begun = True
            await self._up.skip(self._count)
        return True

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        return await self._up.fetch(want) if await self._begin() else []

    async def skip(self, count: int) -> int:
        """Skip elements of the input."""
        return await self._up.skip(count) if await self._begin() else 0

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._begun, self._up.state()]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._begun, up = state
        await self._up.restore(up)

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()


class ShardStage(Stage):
    """Every n-th element."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._up = dataset.inputs[0].open(pipeline, path)
        self._shards, self._index = dataset.at_least(0, 1, "the number of shards"), dataset.number(1)
        if not 0 <= self._index < self._shards:
            raise InvalidArgumentError(
                f"the index of {dataset.name!r} is out of range",
                expected=f"0 <= index < {self._shards}",
                actual=self._index,
            )
        self._seen = 0  # elements of the input, modulo the number of shards

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        while True:
            ahead = (self._index - self._seen) % self._shards
            part = await self._up.fetch(ahead + 1 + (want - 1) * self._shards)
            if not part:
                return []
            self._seen = (self._seen + len(part)) % self._shards
            if found := part[ahead :: self._shards]:
                return found

    async def skip(self, count: int) -> int:
        """Skip elements of the input."""
        if not count:
            return 0
        ahead = (self._index - self._seen) % self._shards
        done = await self._up.skip(ahead + 1 + (count - 1) * self._shards)
        self._seen = (self._seen + done) % self._shards
        return max(0, done - ahead + self._shards - 1) // self._shards

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._seen, self._up.state()]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._seen, up = state
        await self._up.restore(up)

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()


class RepeatStage(Stage):
    """The input several times; without end with a negative count."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._input, self._pipeline, self._path = dataset.inputs[0], pipeline, path
        self._count = dataset.number(0)
        self._epoch = 0
        self._is_empty = True  # no element in this repetition yet
        self._up: Stage | None = None

    def _opened(self) -> Stage:
        if self._up is None:
            self._up = self._input.open(self._pipeline, (*self._path, self._epoch))
        return self._up

    async def _advance(self) -> bool:
        """Begin the next repetition. Return False at the end: also if the input is empty, which would never end."""
        if self._is_empty and self._count < 0:
            return False
        await self._opened().close()
        self._up, self._is_empty = None, True
        self._epoch += 1
        return True

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        while self._count < 0 or self._epoch < self._count:
            found = await self._opened().fetch(want)
            if found:
                self._is_empty = False
                return found
            if not await self._advance():
                break
        return []

    async def skip(self, count: int) -> int:
        """Skip elements of the input."""
        left = count
        while left and (self._count < 0 or self._epoch < self._count):
            done = await self._opened().skip(left)
            self._is_empty = self._is_empty and not done
            left -= done
            if left and not await self._advance():
                break
        return count - left

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._epoch, self._is_empty, None if self._up is None else self._up.state()]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        epoch, self._is_empty, up = state
        self._epoch = whole(epoch)
        if up is not None:
            await self._opened().restore(up)

    async def close(self) -> None:
        """Close the input."""
        if self._up is not None:
            await self._up.close()


class CacheStage(Stage):
    """The input, kept in memory: later repetitions do not read it again."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._pipeline, self._dataset = pipeline, dataset
        # The pass of which the elements are, which may be an earlier one.
        self._path: Path = path
        self._held: list[Components] | None = None
        if dataset in pipeline.caches:
            self._path, self._held = pipeline.caches[dataset]
        self._collected: list[Components] = []
        self._next = 0
        self._up: Stage | None = None

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        if self._held is not None:
            found = self._held[self._next : self._next + want]
        else:
            if self._up is None:
                self._up = self._dataset.inputs[0].open(self._pipeline, self._path)
            found = await self._up.fetch(want)
            self._collected += found
            if not found:
                self._held = self._collected
                self._pipeline.caches.setdefault(self._dataset, (self._path, self._held))
        self._next += len(found)
        return found

    def state(self) -> StagePosition:
        """Return the number of the next element, and the pass of which the elements are."""
        return [self._next, list(self._path)]

    async def restore(self, state: StagePosition) -> None:
        """Read the input again up to a position, and keep its elements."""
        done, path = state
        self._path, self._held = tuple(path), None
        await self.skip(whole(done))

    async def close(self) -> None:
        """Close the input."""
        if self._up is not None:
            await self._up.close()


# ── stages with several inputs ────────────────────────────────────────────────────────────────────────────────────────


class ZipStage(Stage):
    """Elements with the components of one element of each input."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        # The branch is part of the path, so that equal inputs shuffle differently.
        self._ups = [each.open(pipeline, (*path, i)) for i, each in enumerate(dataset.inputs)]

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        columns: list[list[Components]] = []
        for up in self._ups:
            column: list[Components] = []
            while len(column) < want and (part := await up.fetch(want - len(column))):
                column += part
            if not column:
                return []
            columns.append(column)
            # The last inputs are not read further than the first ones.
            want = len(column)
        return [tuple(part for each in row for part in each) for row in zip(*columns, strict=False)]

    async def skip(self, count: int) -> int:
        """Skip elements of all inputs."""
        for up in self._ups:
            count = await up.skip(count)
        return count

    def state(self) -> StagePosition:
        """Return the positions of the inputs."""
        return [up.state() for up in self._ups]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        for up, each in zip(self._ups, state, strict=True):
            await up.restore(each)

    async def close(self) -> None:
        """Close the inputs."""
        for up in self._ups:
            await up.close()


class ConcatenateStage(Stage):
    """The elements of one input after those of the other."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._ups = [each.open(pipeline, (*path, i)) for i, each in enumerate(dataset.inputs)]
        self._at = 0

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        while self._at < len(self._ups):
            if found := await self._ups[self._at].fetch(want):
                return found
            self._at += 1
        return []

    async def skip(self, count: int) -> int:
        """Skip elements of the inputs."""
        left = count
        while left and self._at < len(self._ups):
            left -= await self._ups[self._at].skip(left)
            if left:
                self._at += 1
        return count - left

    def state(self) -> StagePosition:
        """Return the position."""
        return [self._at, self._ups[self._at].state() if self._at < len(self._ups) else None]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position."""
        self._at, up = state
        if self._at < len(self._ups):
            await self._ups[self._at].restore(up)

    async def close(self) -> None:
        """Close the inputs."""
        for up in self._ups:
            await up.close()
