"""The block function of a chain in machine code: the decisions to compile it and to use it.

A chain runs with NumPy until all chains of its form have cost about as much as compiling would. Then it is compiled in
the background, once for all of them. So the compiler takes about as long as the chains have taken, and no longer. The
code is used only if it reproduces NumPy's results on numbers of every kind, to the last bit except for which NaN it is.
The comparison detects differences of compilers, processors and NumPy versions.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.errors import OpError
from aioflow.kernels.fused import Chain
from aioflow.memory.values import Array
from aioflow_numpy.block_functions import BlockFunction, CompiledPiece, block_function
from aioflow_numpy.compiled.code import programs
from aioflow_numpy.compiled.pieces import ChainPiece, OperandExtent, pieces_of, program
from aioflow_numpy.compiled.wanted import CodeRequest, Spent, numbers, same

_log = logging.getLogger("aioflow.compiled")
# Bytes written by all members together. NumPy takes 0.1 to 0.2 s for them, which is the cost of compiling.
_WORTH: Final = 1 << 30
_CALL: Final = 1 << 13  # the additional cost of a member's call, in bytes
_FORMS: Final = 1024  # forms that are remembered
_TRIALS: Final = 8  # with different scalars
_ROWS, _WIDTH = 3, 1031  # of a trial; not a multiple of a vector's length


@dataclass(slots=True)
class _Form:
    """The cost and verdicts of all chains that differ only in constants and sizes, and so share one program.

    Attributes:
        spent: The bytes that NumPy has written for them.
        verdicts: For each program that was made, whether it may be used.
    """

    spent: Spent = field(default_factory=Spent)
    verdicts: dict[str, bool] = field(default_factory=dict)


@lru_cache(maxsize=_FORMS)
def _form(*key: Hashable) -> _Form:
    """Return the form with this key, the same object for every caller."""
    return _Form()


class CompiledBlock:
    """A block function in machine code, once it is ready.

    Args:
        chain: The chain.
        early: The members that are computed beforehand.
        extents: The extents of the values that every block reads.
        line: Elements of a line.
        place: The input whose memory holds the result, or None.
        plain: The block function with NumPy.

    Attributes:
        plain: As the argument.
        function: The block function in machine code, or None until it is ready.
    """

    def __init__(
        self,
        chain: Chain,
        early: Sequence[int],
        extents: Mapping[int, OperandExtent],
        line: int,
        place: int | None,
        plain: BlockFunction,
    ) -> None:
        self.function: BlockFunction | None = None
        self._chain, self._early, self._extents = chain, early, extents
        self._line, self._place, self.plain = line, place, plain
        members = tuple((member.op, member.operands, member.dtype, member.kernel.exact_c) for member in chain.members)
        self._form = _form(chain.dtypes, members, tuple(early), tuple(extents.items()), line, place, plain.lined)
        self._wanted = CodeRequest(self._form.spent)

    def worked(self, size: int) -> None:
        """Record a run of the chain with NumPy, with a result of `size` bytes."""
        self._wanted.worked((size + _CALL) * len(self._chain.members), _WORTH, self.prepare, self._text)

    def prepare(self) -> None:
        """Compile the code now, in this thread. On failure, log the reason and keep using NumPy."""
        order = pieces_of(self._chain, self._early)
        pieces = [each for each in order if isinstance(each, ChainPiece)]
        if not pieces:
            return
        text, verdicts = self._program(pieces), self._form.verdicts
        # Another chain of this form has tried the program already.
        if not verdicts.get(text, True):
            return
        try:
            functions = programs().functions(text, [len(piece.reads) + len(piece.makes) for piece in pieces])
        except OpError as error:
            verdicts[text] = False
            _log.info("not compiling a chain of ops: %s", error)
            return
        known = iter(functions)
        steps = [
            CompiledPiece(each, next(known), self._row(each)) if isinstance(each, ChainPiece) else each
            for each in order
        ]
        made = block_function(self._chain, steps, self._early, self.plain.lined, self._line, self._place)
        if text not in verdicts:
            verdicts[text] = self._agrees(made)
        if verdicts[text]:
            self.function = made
        else:
            ops = ", ".join(member.op for member in self._chain.members)
            _log.warning("not using the compiled chain of %s: its results differ from NumPy's", ops)

    def _text(self) -> str | None:
        pieces = [each for each in pieces_of(self._chain, self._early) if isinstance(each, ChainPiece)]
        return self._program(pieces) if pieces else None

    def _program(self, pieces: Sequence[ChainPiece]) -> str:
        return program(self._chain, pieces, self._extents)

    def _row(self, piece: ChainPiece) -> int | None:
        rows = [i for i, value in enumerate(piece.reads) if self._extents.get(value) is OperandExtent.ROW]
        return rows[0] if rows else None

    def _agrees(self, made: BlockFunction) -> bool:
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            for _ in range(_TRIALS):
                values = dict(self._trial(rng))
                wanted, found = (self._result(function, values) for function in (self.plain, made))
                if not same(wanted, found):
                    return False
        return True

    def _trial(self, rng: np.random.Generator) -> Iterator[tuple[int, Array]]:
        """Yield a value for each parameter of the block function that is known beforehand."""
        chain = self._chain
        tail = (_WIDTH,) if OperandExtent.ROW in self._extents.values() else ()
        rows = _ROWS if tail else _ROWS * _WIDTH
        dtypes = [*chain.dtypes, *(member.dtype for member in chain.members)]
        shapes = {OperandExtent.ALL: (rows, *tail), OperandExtent.ROW: tail, OperandExtent.ONE: ()}
        for i in (*range(chain.inputs), *(chain.inputs + at for at in self._early)):
            yield i, numbers(rng, dtypes[i].np_dtype, shapes[self._extents.get(i, OperandExtent.ALL)])

    def _result(self, function: BlockFunction, values: Mapping[int, Array]) -> Array:
        chain, shape = self._chain, next(v.shape for i, v in values.items() if i not in self._extents)
        given = dict(values)
        if self._place is None:
            out = np.empty(shape, chain.members[-1].dtype.np_dtype)
        else:
            # The result overwrites this input, which the next function reads again.
            out = given[self._place] = given[self._place].copy()
        lines = [np.full(self._line, values[chain.members[at].operands[i]]) for at, i in function.lined]
        function.call(*given.values(), *lines, *(np.empty(shape, dtype) for dtype in function.scratch), out)
        return out
