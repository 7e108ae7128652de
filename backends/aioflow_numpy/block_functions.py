"""What is called for a block of a chain, written out as a function: NumPy's kernels, in as few buffers as they need,
and between them pieces in machine code (`compiled.pieces`), where there are some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, Final

import numpy as np

from aioflow.kernels.fused import Chain, Member
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import Function
from aioflow_numpy.compiled.pieces import Piece
from aioflow_numpy.conv_shapes import Array

__all__ = ["BlockFunction", "CompiledPiece", "block_function", "equal", "line_of", "lined"]

Shape = tuple[int, ...]
_FILENAME: Final = "<aioflow block>"


@dataclass(frozen=True, slots=True)
class BlockFunction:
    """Computes a block.

    Attributes:
        call: Its parameters are the values known beforehand, the lines, the scratch arrays, and where the result goes.
        lined: (member, operand) of the scalars that are read as a line of equal elements.
        scratch: The dtypes of the scratch arrays.
        alone: The piece in machine code that is all of it, if one is.
    """

    call: Callable[..., None]
    lined: tuple[tuple[int, int], ...]
    scratch: tuple[np.dtype[Any], ...]
    alone: CompiledPiece | None = None


@dataclass(frozen=True, slots=True)
class CompiledPiece:
    """A piece with its function.

    Attributes:
        row: Which of what it reads is a row, if one is.
    """

    piece: Piece
    function: Function
    row: int | None

    def call(self, *values: Array, out: Sequence[Array]) -> None:
        """Compute it. The arrays are of the piece's dtypes, aligned and in one piece, of the sizes that fit.

        They are held by the caller, and here, until the function has returned.
        """
        size = out[0].size
        width = size if self.row is None else values[self.row].size
        self.function(size // width, width, *map(address, values), *map(address, out))


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a block.

    Attributes:
        name: Of the callable, in the function that is written.
        call: What is called.
        reads: The values that it is given, in order.
        makes: The values that come of it.
        takes_out: Whether it writes them where it is told. Otherwise it returns the only one.
        lines: Which of what it reads are lines.
    """

    name: str
    call: Callable[..., Any]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    takes_out: bool
    lines: tuple[int, ...] = ()

    def text(self, arguments: Sequence[str], targets: Sequence[str]) -> str:
        """The call as a line of Python."""
        given = ", ".join(arguments)
        if not self.takes_out:
            return f"{targets[0]} = {self.name}({given})"
        out = targets[0] if self.name.startswith("k") else f"({', '.join(targets)},)"
        return f"{self.name}({given}, out={out})"


def block_function(
    chain: Chain,
    order: Sequence[int | CompiledPiece],
    early: Collection[int],
    lined: Sequence[tuple[int, int]],
    line: int,
    place: int | None,
    shape: Shape | None = None,
) -> BlockFunction:
    """The members on one block as a function.

    Args:
        order: The members by their positions, and pieces of several.
        early: Those that are computed beforehand.
        lined: As `BlockFunction.lined`.
        line: Elements of a line.
        place: The result goes into the block of this input, or of none.
        shape: Of a block, if it has always the same; then lines have it, too.
    """
    steps = [_step(chain, each, lined, line, shape, i) for i, each in enumerate(order)]
    inside = {at for each in order if isinstance(each, CompiledPiece) for at in each.piece.members}
    lined = tuple((at, operand) for at, operand in lined if at not in inside)
    names = {i: f"a{i}" for i in (*range(chain.inputs), *(chain.inputs + at for at in early))}
    parameters = [*names.values(), *(f"l{at}_{operand}" for at, operand in lined)]
    last = {value: i for i, step in enumerate(steps) for value in step.reads}
    room, end = _Room(chain.members[-1].dtype.np_dtype, place), chain.inputs + len(chain.members) - 1
    lines: list[str] = []
    for i, step in enumerate(steps):
        arguments = [f"l{step.name[1:]}_{k}" if k in step.lines else names[v] for k, v in enumerate(step.reads)]
        for value in dict.fromkeys(step.reads):
            if last[value] == i:
                room.release(value)
        for value in step.makes:
            if step.takes_out:
                dtype = chain.members[value - chain.inputs].dtype.np_dtype
                names[value] = "out" if value == end else room.hold(value, dtype)
            else:
                names[value] = "out[...]" if value == end else f"v{value}"
        lines.append("    " + step.text(arguments, [names[value] for value in step.makes]))
    parameters += [*(f"s{i}" for i in range(len(room.scratch))), "out"]
    text = "\n".join([f"def block({', '.join(parameters)}):", *lines]) + "\n"
    scope: dict[str, Any] = {step.name: step.call for step in steps}
    exec(_code(text), scope)
    alone = order[0] if len(order) == 1 and not early and isinstance(order[0], CompiledPiece) else None
    return BlockFunction(scope["block"], lined, room.scratch, alone)


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """Compiled once for all chains of the same form."""
    return compile(text, _FILENAME, "exec")


def _step(
    chain: Chain,
    each: int | CompiledPiece,
    lined: Sequence[tuple[int, int]],
    line: int,
    shape: Shape | None,
    position: int,
) -> _Step:
    if isinstance(each, CompiledPiece):
        return _Step(f"p{position}", each.call, each.piece.reads, each.piece.makes, True)
    member = chain.members[each]
    lines = tuple(i for i in range(len(member.operands)) if (each, i) in lined)
    call = _block_call(member, lines, line) if shape is None else _whole_call(member, lines, shape)
    return _Step(f"k{each}", call, member.operands, (chain.inputs + each,), member.kernel.takes_out, lines)


# -- what NumPy does better in another way -----------------------------------------------------------------------------

_AGAINST_SCALAR: Final[Mapping[str, np.ufunc]] = {"Maximum": np.maximum, "Minimum": np.minimum}
_LIMITS: Final[Mapping[str, tuple[int, ...]]] = {"Relu": (0,), "Relu6": (0, 6)}


def lined(
    chain: Chain, early: Collection[int], known: Sequence[Shape], cut: Collection[int]
) -> Iterator[tuple[int, int]]:
    """The scalars that floats are compared with: NumPy vectorises the maximum of two arrays, not that of an array and
    a number, which takes five times as long.
    """
    for at, member in enumerate(chain.members):
        if at in early or member.op not in _AGAINST_SCALAR or not member.dtype.is_floating:
            continue
        scalars = [i for i, v in enumerate(member.operands) if math.prod(known[v]) == 1 and v not in cut]
        if len(scalars) == 1:
            yield at, scalars[0]


def line_of(number: Array, length: int) -> Array:
    """A line of this number."""
    return _line(number.tobytes(), number.dtype, length)


def equal(number: Array, shape: Shape) -> Array:
    """An array of this number."""
    size = math.prod(shape)
    return line_of(number, 1 << (size - 1).bit_length())[:size].reshape(shape)  # few lines serve all shapes


@lru_cache(maxsize=64)
def _line(number: bytes, dtype: np.dtype[Any], length: int) -> Array:
    return np.full(length, np.frombuffer(number, dtype)[0])


def _block_call(member: Member, lined: Sequence[int], line: int) -> Callable[..., Any]:
    """What a block calls for a member whose operands `lined` are lines."""
    if lined:
        return _by_lines(_AGAINST_SCALAR[member.op], lined[0], line)
    if member.op == "BiasAdd":  # `_bias_shape` has looked at the shapes, which those of a block are not
        return np.add
    limits = _LIMITS.get(member.op)
    if limits is not None and member.dtype.is_floating:
        return _limited(*(np.full(line, limit, member.dtype.np_dtype) for limit in limits))
    return member.call


def _whole_call(member: Member, lined: Sequence[int], shape: Shape) -> Callable[..., Any]:
    """What is called for a member on blocks of one shape."""
    if lined:
        return _AGAINST_SCALAR[member.op]
    limits = _LIMITS.get(member.op)
    if limits is None or not member.dtype.is_floating:
        return _block_call(member, lined, 0)
    low, *others = (equal(np.asarray(limit, member.dtype.np_dtype), shape) for limit in limits)

    def call(x: Array, out: Array) -> None:
        np.maximum(x, low, out=out)
        for high in others:
            np.minimum(out, high, out=out)

    return call


def _by_lines(compare: np.ufunc, which: int, length: int) -> Callable[..., None]:
    """`compare` where operand `which` is a line of equal elements; the order decides between 0 and -0."""

    def call(x: Array, y: Array, out: Array) -> None:
        line, values = (x, y) if which == 0 else (y, x)
        for source, target, width in _in_lines(values, out, length):
            if which == 0:
                compare(line[:width], source, out=target)
            else:
                compare(source, line[:width], out=target)

    return call


def _limited(low: Array, high: Array | None = None) -> Callable[..., None]:
    """At least `low`, and then at most `high`: as Relu and Relu6, for which the order decides between 0 and -0."""

    def call(x: Array, out: Array) -> None:
        for source, target, width in _in_lines(x, out, low.size):
            np.maximum(source, low[:width], out=target)
            if high is not None:
                np.minimum(target, high[:width], out=target)

    return call


def _in_lines(source: Array, target: Array, length: int) -> Iterator[tuple[Array, Array, int]]:
    """Two blocks in C order as matrices of whole lines, and what is left; each with the width of its lines."""
    source, target = source.reshape(-1), target.reshape(-1)
    whole = source.size - source.size % length
    if whole:
        yield source[:whole].reshape(-1, length), target[:whole].reshape(-1, length), length
    if whole != source.size:
        yield source[whole:], target[whole:], source.size - whole


class _Room:
    """Where a block's values lie: the block of the result and scratch arrays, each free or held by a value."""

    def __init__(self, out: np.dtype[Any], held_by: int | None) -> None:
        self._dtypes: dict[str, np.dtype[Any]] = {"out": out}
        self._free = [] if held_by is not None else ["out"]
        self._held = {} if held_by is None else {held_by: "out"}

    @property
    def scratch(self) -> tuple[np.dtype[Any], ...]:
        """The dtypes of the scratch arrays: s0, s1, …"""
        return tuple(self._dtypes.values())[1:]

    def release(self, value: int) -> None:
        """The value is not read any more."""
        if value in self._held:
            self._free.append(self._held.pop(value))

    def hold(self, value: int, dtype: np.dtype[Any]) -> str:
        """A place for the value: the one that was released last, which may be its operand's."""
        found = next((name for name in reversed(self._free) if self._dtypes[name] == dtype), None)
        if found is None:
            found = f"s{len(self._dtypes) - 1}"
            self._dtypes[found] = dtype
        else:
            self._free.remove(found)
        self._held[value] = found
        return found
