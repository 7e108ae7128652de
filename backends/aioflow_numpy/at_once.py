"""Chains over arrays that are one block. The work that `fused_blocks` does per call is done once per shape.

A chain over a small array takes a few microseconds. In that time at most one look at each operand is affordable, and
none at the graph's constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from ctypes import addressof
from dataclasses import dataclass
from typing import Any

import numpy as np

from aioflow.kernels.fused import Chain
from aioflow.memory.values import Array, NpDType, Shape
from aioflow_numpy.addresses import address, first_byte
from aioflow_numpy.block_functions import BlockFunction, CompiledPiece, equal, line_of
from aioflow_numpy.compiled.blocks import CompiledBlock


@dataclass(frozen=True, slots=True)
class ChainShapes:
    """The known facts about the arrays of a chain whose members all have results of the same size as the last one.

    Attributes:
        chain: The chain.
        constants: The inputs that are the same in every call, aligned, contiguous, and of the chain's dtypes.
        inputs: The shapes of all inputs.
        result: The shape of the result.
        place: The input whose memory receives the result, which has its shape and dtype; or None.
    """

    chain: Chain
    constants: Mapping[int, Array]
    inputs: Sequence[Shape]
    result: Shape
    place: int | None

    def varying(self, number: bool) -> list[int]:
        """Return the inputs that are not constants: the scalars or the arrays."""
        return [i for i, shape in enumerate(self.inputs) if i not in self.constants and (shape == ()) == number]


class AtOnce:
    """A chain over inputs of certain shapes.

    Args:
        shapes: The chain and its shapes.
        plain: Computes the chain with NumPy.
        compiled: Computes it in machine code; None if that is not allowed.
        line: Elements of a line, an array of equal elements that stands for a scalar.
        is_whole: Whether the lines of `plain` have the shape of the result instead.
    """

    def __init__(
        self, shapes: ChainShapes, plain: BlockFunction, compiled: CompiledBlock | None, line: int, is_whole: bool
    ) -> None:
        self._shapes, self._shape, self._has_place = shapes, shapes.result, shapes.place is not None
        self._dtype: NpDType = shapes.chain.members[-1].dtype.np_dtype
        self._nbytes = math.prod(shapes.result) * self._dtype.itemsize
        self._arrays = shapes.varying(number=False)
        self._plain, self._compiled = _Calls(shapes, plain, 0 if is_whole else line), compiled
        self._line = line
        self._code: _Code | _Calls | None = None

    def run(self, inputs: Sequence[Array], out: Array | None) -> Array | None:
        """Return the result, in `out` if possible, or None if an array does not have the required memory layout."""
        # With a place, `out` is the memory of that input, which has the shape and dtype of the result.
        if out is None or not (self._has_place or self._fits(out)):
            out = np.empty(self._shape, self._dtype)
        code, compiled = self._code, self._compiled
        if code is None and compiled is not None:
            if compiled.function is None:
                compiled.worked(self._nbytes)
            else:
                code = self._code = self._by(compiled.function)
        if code is not None:
            return out if code.run(inputs, out) else None
        for i in self._arrays:
            if not inputs[i].flags.c_contiguous:
                return None
        self._plain.call(inputs, out)
        return out

    def _fits(self, out: Array) -> bool:
        return out.shape == self._shape and out.dtype == self._dtype and out.flags.c_contiguous

    def _by(self, function: BlockFunction) -> _Code | _Calls:
        if function.alone is not None:
            return _Code(self._shapes, function.alone)
        return _Calls(self._shapes, function, self._line)


class _Calls:
    """A block function with all arguments that are known beforehand."""

    def __init__(self, shapes: ChainShapes, function: BlockFunction, line: int) -> None:
        self._shapes, self._function, self._line = shapes, function, line
        self._numbers, self._arrays = shapes.varying(number=True), shapes.varying(number=False)
        operands = [shapes.chain.members[at].operands[operand] for at, operand in function.lined]
        self._known = [shapes.constants.get(i) for i in (*range(len(shapes.inputs)), *operands)]
        lines = list(enumerate(operands, len(shapes.inputs)))
        for at, operand in lines:
            if operand in shapes.constants:
                self._known[at] = self._line_of(shapes.constants[operand])
        self._lines = [(at, operand) for at, operand in lines if operand not in shapes.constants]
        self._room = function.scratch

    def run(self, inputs: Sequence[Array], out: Array) -> bool:
        """Run the chain. Return False if an array must not be passed to machine code."""
        dtypes = self._shapes.chain.dtypes
        for i in (*self._numbers, *self._arrays):
            value, flags = inputs[i], inputs[i].flags
            if not (value.dtype == dtypes[i].np_dtype and flags.c_contiguous and flags.aligned):
                return False
        self.call(inputs, out)
        return True

    def call(self, inputs: Sequence[Array], out: Array) -> None:
        """Run the chain."""
        values: list[Any] = self._known.copy()
        for i in self._arrays:
            values[i] = inputs[i]
        for i in self._numbers:
            # A NumPy scalar may stand for a 0-d array.
            values[i] = np.asarray(inputs[i])
        for at, operand in self._lines:
            values[at] = self._line_of(values[operand])
        # Fresh memory is more likely to be in a cache than old scratch memory.
        room = [np.empty(self._shapes.result, dtype) for dtype in self._room]
        self._function.call(*values, *room, out)

    def _line_of(self, number: Array) -> Array:
        return line_of(number, self._line) if self._line else equal(number, self._shapes.result)


class _Code:
    """A chain that is one piece of machine code, with all arguments that are known beforehand.

    Memory safety: it holds the constants whose addresses it has; the caller holds the other arrays.
    """

    def __init__(self, shapes: ChainShapes, piece: CompiledPiece) -> None:
        chain, self._constants, reads = shapes.chain, shapes.constants, piece.piece.reads
        size = math.prod(shapes.result)
        width = size if piece.row is None else math.prod(shapes.inputs[reads[piece.row]])
        known = [address(shapes.constants[i]) if i in shapes.constants else 0 for i in reads]
        # The first two arguments are the rows and the elements of a row. An address of 0 is filled in by each call.
        self._function, self._known = piece.function, [size // width, width, *known]
        dtypes = [dtype.np_dtype for dtype in chain.dtypes]
        places = {i: at for at, i in enumerate(reads, 2)}
        self._numbers = [(places[i], i, dtypes[i]) for i in shapes.varying(number=True) if i in places]
        # Alignments are powers of two, so an alignment less one is the mask of the bits that must be 0.
        arrays = [i for i in shapes.varying(number=False) if i in places]
        self._arrays = [(places[i], i, dtypes[i], dtypes[i].alignment - 1) for i in arrays]
        made = chain.members[-1].dtype.np_dtype
        self._made, self._beside = made, made.alignment - 1

    def run(self, inputs: Sequence[Array], out: Array) -> bool:
        """Run the chain. Return False if an array must not be passed to machine code."""
        arguments = self._known.copy()
        try:  # ctypes accepts only contiguous, writable arrays
            for at, i, dtype, beside in self._arrays:
                value = inputs[i]
                begin = addressof(first_byte(value))
                # Identity suffices: another object for the same dtype only costs the fast path.
                if value.dtype is not dtype or begin & beside:
                    return False
                arguments[at] = begin
            begin = addressof(first_byte(out))
        except (TypeError, ValueError):
            return False
        if out.dtype is not self._made or begin & self._beside:
            return False
        if not self._numbers:
            self._function(*arguments, begin)
            return True
        # A scalar of NumPy has no address that may be passed on; the copy has one, and is held until the call returns.
        held = [np.array(inputs[i]) for _, i, _ in self._numbers]
        for (at, _, dtype), number in zip(self._numbers, held, strict=True):
            if number.dtype is not dtype:
                return False
            arguments[at] = address(number)
        self._function(*arguments, begin)
        return True
