"""The shuffle stage. Its position is a number: a restart replays the draws, not the elements."""

from __future__ import annotations

import numpy as np

from aioflow.kernels.data.stages import Components, DatasetValue, Path, Pipeline, Stage, StagePosition, whole
from aioflow.kernels.math.philox import words_at

_AHEAD = 256  # numbers that are drawn at once


class Draws:
    """Random 32-bit numbers from a key, as TensorFlow draws them."""

    def __init__(self, seed: int, seed2: int) -> None:
        # The key is the first seed, and the second the upper half of the counter.
        self._key, self._counter = seed & (1 << 64) - 1, (seed2 & (1 << 64) - 1) << 64
        self._numbers: list[int] = []
        self._next = 0

    def next(self) -> int:
        """Return the next number."""
        if not self._numbers:
            steps = np.arange(self._next, self._next + _AHEAD // 4, dtype=np.uint64)
            self._next += _AHEAD // 4
            self._numbers = words_at(np, self._key, self._counter, steps).T.ravel().tolist()[::-1]
        return self._numbers.pop()


class ShuffleStage(Stage):
    """The elements of a buffer in random order, each replaced by the next of the input."""

    def __init__(self, dataset: DatasetValue, pipeline: Pipeline, path: Path) -> None:
        self._up = dataset.inputs[0].open(pipeline, path)
        self._size = dataset.at_least(0, 1, "the buffer size")
        self._draws = Draws(*_seeds(dataset, pipeline, path))
        self._held: list[Components] = []  # the buffer, and then elements that enter it during this fetch
        self._start = 0  # of the buffer in the list
        self._pulled = 0
        self._drawn = 0
        self._has_ended = False

    async def fetch(self, want: int) -> list[Components]:
        """Return the next elements."""
        # All of these are needed: each draw but the last makes room for another element.
        while not self._has_ended and (room := self._size + want - 1 - len(self._held) + self._start) > 0:
            found = await self._up.fetch(room)
            self._has_ended = not found
            self._pulled += len(found)
            self._held += found
        return [self._draw() for _ in range(min(want, len(self._held) - self._start))]

    def _draw(self) -> Components:
        held, start = self._held, self._start
        chosen = start + self._draws.next() % min(self._size, len(held) - start)
        found, held[chosen] = held[chosen], held[start]
        self._start += 1
        self._drawn += 1
        if self._start >= 1024:
            del held[: self._start]
            self._start = 0
        return found

    def state(self) -> StagePosition:
        """Return the position: the numbers of elements drawn and pulled."""
        return [self._drawn, self._pulled, self._has_ended]

    async def restore(self, state: StagePosition) -> None:
        """Continue at a position: repeat the draws on numbers, and then read the elements that were not drawn."""
        drawn, pulled, self._has_ended = whole(state[0]), whole(state[1]), state[2]
        left = self._replayed(drawn, pulled)
        # The elements in the order of the input, with gaps where elements were drawn.
        found: dict[int, Components] = {}
        for number in sorted(left):
            await self._up.skip(number - self._pulled)
            (found[number],) = await self._up.fetch(1)
            self._pulled = number + 1
        await self._up.skip(pulled - self._pulled)
        self._held, self._pulled = [found[number] for number in left], pulled

    def _replayed(self, drawn: int, pulled: int) -> list[int]:
        """Return the numbers of the elements that the buffer holds after some draws."""
        held = list(range(pulled))
        size, draws = self._size, self._draws
        for start in range(drawn):
            chosen = start + draws.next() % min(size, pulled - start)
            held[chosen] = held[start]
        self._drawn = drawn
        return held[drawn:]

    async def close(self) -> None:
        """Close the input."""
        await self._up.close()


def _seeds(dataset: DatasetValue, pipeline: Pipeline, path: Path) -> tuple[int, int]:
    """Return the seeds of one pass over the input; of each repetition its own, if it is to be shuffled anew."""
    seed, seed2, again = dataset.number(1), dataset.number(2), bool(dataset.args[3])
    if not (seed or seed2):
        # The depth tells shuffles of one pipeline apart.
        mixed = np.random.SeedSequence([pipeline.random, dataset.depth]).generate_state(2)
        seed, seed2 = (int(number) for number in mixed)
    if not again:
        return seed, seed2
    # TensorFlow draws the seeds of each repetition from a generator with the dataset's seeds.
    draws = Draws(seed, seed2)
    for number in path or (0,):
        for _ in range(number):
            draws.next(), draws.next()
        seed, seed2 = draws.next(), draws.next()
        draws = Draws(seed, seed2)
    return seed, seed2
