"""Runs of small elementwise nodes as one call of machine code (`kernels.joinable`).

A call of NumPy on a small array takes 0.3 µs, most of it for other things than the elements. One program for each dtype
serves all runs of all graphs: it interprets a table of operations on the rows of a matrix, which is new in each call.
Inputs are copied into rows and outputs from rows, so that no result shares memory with another one. As with chains
(`compiled.blocks`), NumPy computes the nodes until that has cost about as much as compiling, and the code is used only
if its operations reproduce NumPy's results to the last bit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import numpy as np

from aioflow.errors import OpError
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims
from aioflow.kernels.joinable import Joinable, JoinedBody, JoinedMember, Joiner, MemberArgument, given
from aioflow.kernels.math.elementwise import EXACT_C
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.memory.values import Array, NpDType, Shape, Value
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import MachineFunction, programs
from aioflow_numpy.compiled.pieces import HEAD, TYPES
from aioflow_numpy.compiled.wanted import CodeRequest, Spent, numbers, same

_log = logging.getLogger("aioflow.compiled")
_SMALL: Final = 16 * 1024  # bytes of a result from which on the optimizer fuses chains
# A call pays off from this many nodes on, and one more for each input and output, which are copied.
_FEWEST: Final = 32
_SCALARS: Final = 8  # a node on scalars, for which Python has operators, takes an eighth of the time
_MOST_COPIES: Final = 256  # inputs and outputs, which are written out in the text of the strand
_WORTH: Final = 400_000  # nodes: NumPy takes 0.1 to 0.2 s for them, which is the cost of compiling
_TRIALS: Final = 8
_TRIED: Final = 1031  # elements; not a multiple of the vector length

# The operations of the program for a dtype. A run with others has another program.
_USUAL: Final = tuple(
    EXACT_C[name]
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "absolute", "sign", "square"),
        *("sqrt", "reciprocal", "floor", "ceil", "rint"),
    )
)
_TEXT: Final = """\
typedef __PTRDIFF_TYPE__ Index;
void piece0(Index steps, Index size, const __INT32_TYPE__ *step, T *rows)
{
for (; steps > 0; steps--, step += 5) {
T *o = rows + step[1] * size;
const T *a = rows + step[2] * size, *b = rows + step[3] * size, *c = rows + step[4] * size;
switch (step[0]) {
CASES
} } }
"""
_CASE: Final = "case {}: INDEPENDENT for (Index i = 0; i < size; i++) o[i] = {}; break;"


def joinable(kernel: KernelDef, binding: Binding, body: KernelBody) -> KernelBody:
    """Return the body of a kernel, as a `Joinable` if the node is small, elementwise, and of one dtype and shape."""
    if not (kernel.exact_c and kernel.fresh) or isinstance(body, Joinable):
        return body
    dtype, dims = binding.output_dtypes[0], binding.output_dims[0]
    join = _joiner(dtype, dims)
    if join is None or {*binding.input_dtypes} != {dtype} or not {*binding.input_dims} <= {dims, ()}:
        return body
    return Joinable(body, kernel.exact_c, join, is_small=True)


@lru_cache(maxsize=1024)
def _joiner(dtype: DType, dims: Dims) -> Joiner | None:
    """Return the joiner of nodes with such results, the same object for all of them; None if they are not small."""
    shape = tuple(size for size in dims or () if size is not None)
    is_small = shape == dims and 0 < math.prod(shape) * dtype.size < _SMALL and dtype in TYPES
    return partial(_join, dtype, shape) if is_small else None


def _join(
    dtype: DType, shape: Shape, members: Sequence[JoinedMember], inputs: int, outputs: Sequence[int]
) -> JoinedBody | None:
    copies = inputs + len(outputs)
    pays = len(members) >= (_FEWEST + copies) * (1 if shape else _SCALARS) and copies <= _MOST_COPIES
    return _SmallRun(dtype, shape, members, inputs, outputs) if pays else None


class _SmallRun:
    """A run of nodes.

    Args:
        dtype: Dtype of all values.
        shape: Shape of all results. Inputs and constants may also be scalars.
        members: The nodes.
        inputs: Number of inputs.
        outputs: Positions of the members whose results are returned.
    """

    def __init__(
        self, dtype: DType, shape: Shape, members: Sequence[JoinedMember], inputs: int, outputs: Sequence[int]
    ) -> None:
        self._dtype, self._shape, self._size = dtype.np_dtype, shape, math.prod(shape)
        self._members, self._inputs, self._outputs = members, inputs, outputs
        # A member's part is its operation in C.
        self._operations = (*_USUAL, *sorted({each.part for each in members}.difference(_USUAL)))
        self._text = _program(dtype, self._operations)
        self._work = len(members) // (1 if shape else _SCALARS)
        self._wanted = CodeRequest(_spent(self._text))
        self._code: tuple[MachineFunction, _Table] | None = None

    def __call__(self, *inputs: Array) -> Value:
        """Return the outputs, or None if the nodes must be computed one by one."""
        if self._code is None:
            self._wanted.worked(self._work, _WORTH, self.prepare, lambda: self._text)
            return None
        function, table = self._code
        rows = np.empty(table.shape, self._dtype)
        for row, value in enumerate(inputs):
            if value.shape != table.shape[1:] and value.shape:  # not the static shape; NumPy may accept it or fail
                return None
            rows[row] = value
        if table.constants is not None:
            rows[self._inputs : self._inputs + len(table.constants)] = table.constants
        function(table.count, self._size, table.steps, address(rows))
        made = [rows[row] for row in table.outputs]
        if self._shape:  # views; those of scalars are scalars
            made = [view.copy() for view in made]
        return made if len(made) > 1 else made[0]

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        try:
            (function,) = programs().functions(self._text, [2])
        except OpError as error:
            _log.info("not compiling small elementwise nodes: %s", error)
            return
        for operation, member in {each.part: each for each in self._members}.items():
            if not _agrees(function, self._operations.index(operation), member, self._dtype):
                _log.warning("not using compiled small nodes: the results of %r differ from NumPy's", operation)
                return
        self._code = function, self._table()

    def _table(self) -> _Table:
        # Constants by their identity, each with a negative number as its place among the values.
        constants: dict[int, tuple[int, Value]] = {}

        def number(argument: MemberArgument) -> int:
            if isinstance(argument, int):
                return argument
            value = given(argument, ())
            return constants.setdefault(id(value), (~len(constants), value))[0]

        reads = [[number(argument) for argument in member.arguments] for member in self._members]
        first = self._inputs
        last: dict[int, float] = {value: i for i, values in enumerate(reads) for value in values}
        last |= {first + i: math.inf for i in self._outputs}
        row_of = {value: row for row, value in enumerate((*range(first), *(value for value, _ in constants.values())))}
        count, free, steps = len(row_of), list[int](), []
        for i, (member, values) in enumerate(zip(self._members, reads, strict=True), first):
            operands = [row_of[value] for value in values]
            # Freed before the result gets a row, since an operation can work in place.
            free += [row_of[value] for value in dict.fromkeys(values) if last[value] == i - first]
            row_of[i] = free.pop() if free else count
            count = max(count, row_of[i] + 1)
            steps.append([self._operations.index(member.part), row_of[i], *operands, *(0,) * (3 - len(operands))])
        filled = np.empty((len(constants), *self._shape), self._dtype)
        for row, (_, value) in enumerate(constants.values()):
            filled[row] = value
        held = np.array(steps, np.int32)
        outputs = tuple(row_of[first + i] for i in self._outputs)
        return _Table(held, address(held), len(steps), filled if constants else None, (count, *self._shape), outputs)


@dataclass(frozen=True, slots=True)
class _Table:
    """The table of a run.

    Attributes:
        held: For each operation its number, the row of its result, and the rows of three operands.
        steps: The address of `held`.
        count: The number of operations.
        constants: The rows behind those of the inputs, if there are any.
        shape: The shape of the matrix. A row is used again after the last read of its value.
        outputs: The rows of the outputs.
    """

    held: Array
    steps: int
    count: int
    constants: Array | None
    shape: Shape
    outputs: tuple[int, ...]


@lru_cache(maxsize=256)
def _program(dtype: DType, operations: tuple[str, ...]) -> str:
    cases = [_CASE.format(i, each.format("a[i]", "b[i]", "c[i]")) for i, each in enumerate(operations)]
    return f"{HEAD}typedef {TYPES[dtype]} T;\n" + _TEXT.replace("CASES", "\n".join(cases))


@lru_cache(maxsize=256)
def _spent(text: str) -> Spent:
    """Return the cost of all runs with this program so far, the same object for every caller."""
    return Spent()


def _agrees(function: MachineFunction, operation: int, member: JoinedMember, dtype: NpDType) -> bool:
    """Return whether an operation of the program reproduces the results of a member on numbers of every kind."""
    rng, count = np.random.default_rng(0), len(member.arguments)
    step = np.array([operation, count, *range(count), *(0,) * (3 - count)], np.int32)
    with np.errstate(all="ignore"):
        for _ in range(_TRIALS):
            rows = numbers(rng, dtype, (count + 1, _TRIED))
            function(1, _TRIED, address(step), address(rows))
            if not same(member.call(*rows[:count]), rows[count]):
                return False
    return True
