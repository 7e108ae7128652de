"""Plans of runs of nodes: every value has its place in one piece of memory, which all primitives are bound to once.

What is left of a step is a list of calls, nine in ten of them of the library, with arguments that do not change.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.work.stopping import checkpoint
from aioflow_numpy.conv_scratch import aligned
from aioflow_onednn.library import Step, library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import Array, Primitive, address
from aioflow_onednn.team import TEAM

__all__ = ["Call", "Compute", "Drawing", "Plan", "Value"]

_MODERATE: Final = 1e8  # what a number that is looked at may be at least
_ROOM: Final = 1e3  # times what the numbers were when the plan was drawn
_LOOKED_AT: Final = 1e18  # above, a sum of squares may overflow
_LINE: Final = 64  # bytes, of a cache; no vector is longer
_BETWEEN: Final = 8  # steps after which the work may be stopped
_KEPT: Final = 4  # sets of memory, for steps that run at once

Operand: TypeAlias = "int | Array"  # a value by its number, or an array that is the same in every step


@dataclass(slots=True)
class Value:
    """A value of a plan.

    Attributes:
        shape, dtype: Of the array.
        root: The value in whose memory it is; its own number for one with memory of its own.
        norm: The root of the sum of squares, in the step that the plan is drawn from.
        bound: What no number is larger than, the sign left out; no number is NaN if that is finite.
        is_looked_at: Whether each step looks at the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    root: int
    norm: float
    bound: float = math.inf
    is_looked_at: bool = False

    @property
    def nbytes(self) -> int:
        """Of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Compute:
    """A primitive.

    Attributes:
        prepared: Gives it for at most so many threads, and its operands in the order of its arguments.
        reads, writes: The values among them.
        is_shared: Whether more threads than one are worth it.
    """

    prepared: Callable[[int], tuple[Primitive, Sequence[Operand]]]
    reads: tuple[int, ...]
    writes: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Another function.

    Attributes:
        bound: Gives it with its arguments, for arrays of these values. It gives true where the nodes are to be computed
            one by one instead.
        reads, writes: The values that it reads, and that it writes, if any.
    """

    bound: Callable[[Sequence[Array]], Step]
    reads: tuple[int, ...]
    writes: int | None = None


class Drawing:
    """A plan that is being made.

    Attributes:
        values: What nodes read from outside, and then what each of them makes.
        steps: In order.
        is_refused: Whether the nodes are better computed one by one.
    """

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self.steps: list[Compute | Call] = []
        self.is_refused = False

    def add(self, step: Compute | Call) -> None:
        """The next step."""
        self.steps.append(step)

    def are_floats(self, *numbers: int) -> bool:
        """Whether values are what primitives take: an array is not looked at again."""
        return all(self.values[number].dtype == np.float32 for number in numbers)

    def bound(self, number: int) -> float:
        """What no number of a value is larger than, as it will have been looked at if that is not known. Infinite where
        numbers are too large for that.
        """
        value = self.values[number]
        if not value.bound < FAR:
            self.look(number)
        return value.bound

    def look(self, number: int) -> None:
        """Have each step look whether the numbers of a value are about as they were."""
        value = self.values[number]
        limit = max(_MODERATE, _ROOM * value.norm)
        if value.is_looked_at or not limit < _LOOKED_AT or not self.are_floats(number):
            return
        self.add(Call(lambda arrays: (_is_strange, (arrays[number], limit**2)), (number,)))
        value.bound, value.is_looked_at = min(value.bound, limit), True


def _is_strange(array: Array, limit: float) -> bool:
    """Whether the sum of squares is larger, or a number is NaN."""
    return not sum_of_squares(array) < limit


class Plan:
    """What computes a run of nodes.

    Args:
        inputs: How many of the values are read from outside.
    """

    def __init__(self, drawing: Drawing, inputs: int) -> None:
        self._drawing = drawing
        self._places, self._size = _places(drawing, inputs)
        self._sets = [_Set(drawing, self._places, self._size)]
        self._sets[0].steps(1)  # what cannot be bound is found out now
        self._computations: dict[int, _Computation] = {}
        self._alone = self._computation(1)
        self._is_shared = any(isinstance(step, Compute) and step.is_shared for step in drawing.steps)

    def run(self, given: Sequence[Array]) -> Array | None:
        """The last value, given those from outside; None where the nodes are to be computed one by one."""
        alone = self._alone
        try:
            mine = self._sets.pop()
        except IndexError:
            mine = _Set(self._drawing, self._places, self._size)
        try:
            for number, array in enumerate(given):
                mine.arrays[number][...] = array
            threads = TEAM.lend() if self._is_shared and not TEAM.is_for_one(alone) else 1
            try:
                TEAM.run(self._computation(threads), alone, mine)
            finally:
                if threads > 1:
                    TEAM.back()
            return mine.arrays[-1].copy() if mine.is_done else None
        finally:
            if len(self._sets) < _KEPT:
                self._sets.append(mine)

    def _computation(self, threads: int) -> _Computation:
        found = self._computations.get(threads)
        if found is None:
            found = self._computations[threads] = _Computation(threads)
        return found


class _Computation:
    """By so many threads of OpenMP, as `team.Computation`."""

    most_missed: Final = 512  # one thread takes up to twice as long, and of a whole net that is seen

    def __init__(self, threads: int) -> None:
        self.runs, self.usual, self.missed = 0, math.inf, 0
        self._threads = threads

    def run(self, mine: _Set) -> None:
        """Compute in this memory."""
        mine.is_done = False
        mine.is_done = library().execute_all(mine.steps(self._threads))


class _Set:
    """Memory for one step at a time, and the steps that are bound to it."""

    def __init__(self, drawing: Drawing, places: Sequence[int], size: int) -> None:
        self.is_done = False
        self._drawing = drawing
        self._memory = aligned(size)
        self.arrays = [
            self._memory[place : place + value.nbytes].view(value.dtype).reshape(value.shape)
            for place, value in zip(places, drawing.values, strict=True)
        ]
        self._stream = library().new_stream()
        weakref.finalize(self, library().call, "stream_destroy", self._stream).atexit = False
        self._held: list[Any] = []
        self._steps: dict[int, list[Step]] = {}

    def steps(self, threads: int) -> list[Step]:
        """The steps for so many threads of OpenMP."""
        found = self._steps.get(threads)
        if found is None:
            found = self._steps[threads] = self._bound(threads)
        return found

    def _bound(self, threads: int) -> list[Step]:
        dnnl, arrays = library(), self.arrays
        made: list[Step] = []
        now: int | None = None
        computes = {
            number: step.prepared(threads if step.is_shared else 1)
            for number, step in enumerate(self._drawing.steps)
            if isinstance(step, Compute)
        }
        scratch = aligned(max((primitive.scratch for primitive, _ in computes.values()), default=0))
        self._held.append(scratch)
        for number, step in enumerate(self._drawing.steps):
            if number % _BETWEEN == _BETWEEN - 1:
                made.append((checkpoint, ()))
            if isinstance(step, Call):
                made.append(step.bound(arrays))
                continue
            primitive, operands = computes[number]
            if primitive.threads != now:
                made.append(dnnl.step_to(primitive.threads))
                now = primitive.threads
            held = [arrays[each] if isinstance(each, int) else each for each in operands]
            at = [address(each) for each in held] + ([address(scratch)] if primitive.scratch else [])
            handle, frame = primitive.bound(*at)
            self._held += [primitive, frame, held]
            made.append(dnnl.step(handle, self._stream, len(at), frame.record))
        return made


def _places(drawing: Drawing, inputs: int) -> tuple[list[int], int]:
    """Where each value begins in the memory, and how much that is. Values that are needed at one time do not meet."""
    values = drawing.values
    first = dict.fromkeys(range(inputs), -1)  # they are there before the first step
    last = dict(first)
    for number, step in enumerate(drawing.steps):
        touched = step.reads if step.writes is None else (*step.reads, step.writes)
        for root in (values[each].root for each in touched):
            first.setdefault(root, number)
            last[root] = number
    last[values[-1].root] = len(drawing.steps)
    placed: list[tuple[int, int, int, int]] = []  # first and last step, begin and end
    begins: dict[int, int] = {}
    for root in sorted(last, key=first.__getitem__):
        born, size = first[root], -(-values[root].nbytes // _LINE) * _LINE
        begin = 0
        for low, high in sorted((p[2], p[3]) for p in placed if p[1] >= born):
            if begin + size <= low:
                break
            begin = max(begin, high)
        placed.append((born, last[root], begin, begin + size))
        begins[root] = begin
    return [begins.get(value.root, 0) for value in values], max((p[3] for p in placed), default=0)
