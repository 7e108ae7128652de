"""Plans of runs of nodes: each value has a fixed position in one piece of memory, to which all primitives are bound.

A step is then a list of calls with constant arguments, nine in ten of them calls of the library.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.memory.values import Array, NpDType
from aioflow_numpy.conv_scratch import aligned
from aioflow_onednn.library import BoundCall, library
from aioflow_onednn.magnitudes import FAR, sum_of_squares
from aioflow_onednn.primitives import Primitive, address
from aioflow_onednn.team import TEAM

_MODERATE: Final = 1e8  # minimum bound of a checked number
_ROOM: Final = 1e3  # ratio of the bound to the norm when the plan was made
_LOOKED_AT: Final = 1e18  # bound above which a sum of squares may overflow
_LINE: Final = 64  # bytes of a cache line; no vector is longer
_BETWEEN: Final = 8  # steps between two checks for cancellation
_KEPT: Final = 4  # cached sets of memory, for steps that run concurrently

PlanOperand: TypeAlias = "int | Array"  # the number of a value, or an array that is the same in every step


@dataclass(slots=True)
class PlanValue:
    """A value of a plan.

    Attributes:
        shape, dtype: Shape and dtype of the array.
        root: Number of the value whose memory holds this one; its own number if it has its own memory.
        norm: L2 norm, in the step from which the plan was made.
        bound: Upper bound of the absolute values; if it is finite, no number is NaN.
        is_looked_at: Whether each step checks the numbers.
    """

    shape: tuple[int, ...]
    dtype: NpDType
    root: int
    norm: float
    bound: float = math.inf
    is_looked_at: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Compute:
    """A step that runs a primitive.

    Attributes:
        prepared: Returns the primitive for at most this number of threads, and its operands in the order of its
            arguments.
        reads, writes: The values among the operands.
        is_shared: Whether several threads pay off.
    """

    prepared: Callable[[int], tuple[Primitive, Sequence[PlanOperand]]]
    reads: tuple[int, ...]
    writes: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class CallStep:
    """A step that calls another function.

    Attributes:
        bound: Returns the function and its arguments, for arrays of these values. The function returns a true value
            where the nodes must be computed one by one instead.
        reads, writes: The values that the function reads, and the one that it writes, if any.
    """

    bound: Callable[[Sequence[Array]], BoundCall]
    reads: tuple[int, ...]
    writes: int | None = None


class Drawing:
    """A plan under construction.

    Args:
        values: The inputs, and then the result of each node.

    Attributes:
        values: As the argument.
        steps: The steps in order.
        is_refused: Whether the nodes are better computed one by one.
    """

    def __init__(self, values: list[PlanValue]) -> None:
        self.values = values
        self.steps: list[Compute | CallStep] = []
        self.is_refused = False

    def add(self, step: Compute | CallStep) -> None:
        """Append a step."""
        self.steps.append(step)

    def are_floats(self, *numbers: int) -> bool:
        """Return True if all these values are float32, which primitives require. Running a plan does not check that."""
        return all(self.values[number].dtype == np.float32 for number in numbers)

    def bound(self, number: int) -> float:
        """Return the bound of a value, after adding a check of its numbers if the bound is unknown.

        The bound is infinite where the numbers are too large for that check.
        """
        value = self.values[number]
        if not value.bound < FAR:
            self.look(number)
        return value.bound

    def look(self, number: int) -> None:
        """Make each step check that the norm of a value does not exceed its norm at planning time by much."""
        value = self.values[number]
        limit = max(_MODERATE, _ROOM * value.norm)
        if value.is_looked_at or not limit < _LOOKED_AT or not self.are_floats(number):
            return
        # The sum of squares is compared with the square of the limit, which saves the root.
        self.add(CallStep(lambda arrays: (_is_strange, (arrays[number], limit**2)), (number,)))
        value.bound, value.is_looked_at = min(value.bound, limit), True


def _is_strange(array: Array, limit: float) -> bool:
    """Return True if the sum of squares reaches the limit or a number is NaN."""
    return not sum_of_squares(array) < limit


class RunPlan:
    """The plan that computes a run of nodes.

    Args:
        drawing: The values and steps.
        inputs: Number of values that are inputs.
    """

    def __init__(self, drawing: Drawing, inputs: int) -> None:
        self._drawing = drawing
        self._places, self._size = _places(drawing, inputs)
        self._sets = [_Set(drawing, self._places, self._size)]
        self._sets[0].steps(1)  # binds once here, so that errors show up now
        self._computations: dict[int, _Computation] = {}
        self._alone = self._computation(1)
        self._is_shared = any(isinstance(step, Compute) and step.is_shared for step in drawing.steps)

    def run(self, given: Sequence[Array]) -> Array | None:
        """Return the last value, given the inputs; None where the nodes must be computed one by one."""
        alone = self._alone
        try:
            # Atomic, so that concurrent runs use different memory.
            mine = self._sets.pop()
        except IndexError:
            mine = _Set(self._drawing, self._places, self._size)
        try:
            for number, array in enumerate(given):
                mine.arrays[number][...] = array
            threads = TEAM.reserve() if self._is_shared and not TEAM.is_for_one(alone) else 1
            try:
                TEAM.run(self._computation(threads), alone, mine)
            finally:
                if threads > 1:
                    TEAM.back()
            # A copy, since the next run overwrites this memory.
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
    """A run of the plan in this number of OpenMP threads, a `team.Computation`."""

    # Remeasuring in one thread takes up to twice as long, which is noticeable for a whole network.
    most_missed: Final = 512

    def __init__(self, threads: int) -> None:
        self.runs, self.usual, self.missed = 0, math.inf, 0
        self._threads = threads

    def run(self, mine: _Set) -> None:
        """Compute in this memory."""
        # Remains if a step raises an error or stops the plan.
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
        self._held: list[object] = []
        self._steps: dict[int, list[BoundCall]] = {}

    def steps(self, threads: int) -> list[BoundCall]:
        """Return the steps for this number of OpenMP threads."""
        found = self._steps.get(threads)
        if found is None:
            found = self._steps[threads] = self._bound(threads)
        return found

    def _bound(self, threads: int) -> list[BoundCall]:
        dnnl, arrays = library(), self.arrays
        made: list[BoundCall] = []
        now: int | None = None
        computes = {
            number: step.prepared(threads if step.is_shared else 1)
            for number, step in enumerate(self._drawing.steps)
            if isinstance(step, Compute)
        }
        # One for all primitives, which run one after another.
        scratch = aligned(max((primitive.scratch for primitive, _ in computes.values()), default=0))
        self._held.append(scratch)
        for number, step in enumerate(self._drawing.steps):
            if number % _BETWEEN == _BETWEEN - 1:
                made.append((checkpoint, ()))
            if isinstance(step, CallStep):
                made.append(step.bound(arrays))
                continue
            primitive, operands = computes[number]
            if primitive.threads != now:
                made.append(dnnl.step_to(primitive.threads))
                now = primitive.threads
            held = [arrays[each] if isinstance(each, int) else each for each in operands]
            at = [address(each) for each in held] + ([address(scratch)] if primitive.scratch else [])
            handle, frame = primitive.bound(*at)
            # The steps contain bare addresses and handles, so all that these belong to is kept.
            self._held += [primitive, frame, held]
            made.append(dnnl.step(handle, self._stream, len(at), frame.record))
        return made


def _places(drawing: Drawing, inputs: int) -> tuple[list[int], int]:
    """Return the offset of each value in the memory, and the size of the memory.

    Values that are alive at the same time do not overlap.
    """
    values = drawing.values
    first = dict.fromkeys(range(inputs), -1)  # inputs are written before the first step
    last = dict(first)
    for number, step in enumerate(drawing.steps):
        touched = step.reads if step.writes is None else (*step.reads, step.writes)
        for root in (values[each].root for each in touched):
            first.setdefault(root, number)
            last[root] = number
    last[values[-1].root] = len(drawing.steps)
    # First fit in the order of first use: a value goes into the first gap between the values still alive.
    placed: list[tuple[int, int, int, int]] = []  # first and last step, first and last byte
    begins: dict[int, int] = {}
    for root in sorted(last, key=first.__getitem__):
        # Rounded up to cache lines, so that each value begins at one.
        born, size = first[root], -(-values[root].nbytes // _LINE) * _LINE
        begin = 0
        for low, high in sorted((p[2], p[3]) for p in placed if p[1] >= born):
            if begin + size <= low:
                break
            begin = max(begin, high)
        placed.append((born, last[root], begin, begin + size))
        begins[root] = begin
    return [begins.get(value.root, 0) for value in values], max((p[3] for p in placed), default=0)
