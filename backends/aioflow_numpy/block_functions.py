"""The function of a chain's block, generated as Python source.

It calls NumPy's kernels, in as few buffers as they need, and pieces of machine code (`compiled.pieces`) if there are
any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, Final

import numpy as np

from aioflow.kernels.fused import Chain, FusedMember
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Array, NpDType, Shape
from aioflow_numpy.addresses import address
from aioflow_numpy.compiled.code import MachineFunction
from aioflow_numpy.compiled.pieces import ChainPiece

_FILENAME: Final = "<aioflow block>"


@dataclass(frozen=True, slots=True)
class BlockFunction:
    """The function that computes a block.

    Attributes:
        call: Its parameters are the values known beforehand, the lines, the scratch arrays, and the result array.
        lined: (member, operand) of the scalars that are read as a line of equal elements.
        scratch: The dtypes of the scratch arrays.
        alone: The piece of machine code that computes the whole block, or None.
    """

    call: Callable[..., None]
    lined: tuple[tuple[int, int], ...]
    scratch: tuple[NpDType, ...]
    alone: CompiledPiece | None = None


@dataclass(frozen=True, slots=True)
class CompiledPiece:
    """A piece with its function.

    Attributes:
        piece: The piece.
        function: Its machine code.
        row: The position among its inputs of one that is a row, or None.
    """

    piece: ChainPiece
    function: MachineFunction
    row: int | None

    def call(self, *values: Array, out: Sequence[Array]) -> None:
        """Compute the piece. The arrays have the piece's dtypes and matching sizes, and are aligned and contiguous.

        The caller and this method hold the arrays until the function has returned.
        """
        size = out[0].size
        width = size if self.row is None else values[self.row].size
        self.function(size // width, width, *map(address, values), *map(address, out))


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a block.

    Attributes:
        name: The name of the callable in the generated function.
        call: The callable.
        reads: The values that are its arguments, in order.
        makes: The values that it produces.
        takes_out: Whether it writes them to given arrays. Otherwise it returns the only one.
        lines: The positions of the arguments that are lines.
    """

    name: str
    call: KernelBody
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    takes_out: bool
    lines: tuple[int, ...] = ()

    def text(self, arguments: Sequence[str], targets: Sequence[str]) -> str:
        """Return the call as a line of Python."""
        given = ", ".join(arguments)
        # A piece (p…) may make several values, so it takes a tuple of arrays; a kernel (k…) takes one array.
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
    """Return a function that computes the members on one block.

    Args:
        chain: The chain.
        order: The members by their positions, and pieces of several members.
        early: The members that are computed beforehand.
        lined: As `BlockFunction.lined`.
        line: Elements of a line.
        place: The input whose block receives the result, or None.
        shape: The shape of a block if it is always the same; then lines have it, too.
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
        # Released before the results get their places, so that a call can work in place.
        for value in dict.fromkeys(step.reads):
            if last[value] == i:
                room.release(value)
        for value in step.makes:
            if step.takes_out:
                dtype = chain.members[value - chain.inputs].dtype.np_dtype
                names[value] = "out" if value == end else room.hold(value, dtype)
            else:
                # A kernel that takes no `out` returns a new array, and the last one is copied into the result.
                names[value] = "out[...]" if value == end else f"v{value}"
        lines.append("    " + step.text(arguments, [names[value] for value in step.makes]))
    parameters += [*(f"s{i}" for i in range(len(room.scratch))), "out"]
    text = "\n".join([f"def block({', '.join(parameters)}):", *lines]) + "\n"
    scope: dict[str, Any] = {step.name: step.call for step in steps}
    # The text consists of names and numbers that are made here. No string of a graph gets into it.
    exec(_code(text), scope)
    alone = order[0] if len(order) == 1 and not early and isinstance(order[0], CompiledPiece) else None
    return BlockFunction(scope["block"], lined, room.scratch, alone)


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """Compile the source once for all chains of the same form."""
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


# ── cases in which NumPy is faster in another way ─────────────────────────────────────────────────────────────────────

_AGAINST_SCALAR: Final[Mapping[str, np.ufunc]] = {"Maximum": np.maximum, "Minimum": np.minimum}
_LIMITS: Final[Mapping[str, tuple[int, ...]]] = {"Relu": (0,), "Relu6": (0, 6)}


def lined(
    chain: Chain, early: Collection[int], known: Sequence[Shape], cut: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yield the scalars that floats are compared with, which should be lines.

    NumPy vectorizes the maximum of two arrays, but not that of an array and a number, which takes five times as long.
    """
    for at, member in enumerate(chain.members):
        if at in early or member.op not in _AGAINST_SCALAR or not member.dtype.is_floating:
            continue
        scalars = [i for i, v in enumerate(member.operands) if math.prod(known[v]) == 1 and v not in cut]
        if len(scalars) == 1:
            yield at, scalars[0]


def line_of(number: Array, length: int) -> Array:
    """Return a line of this number."""
    return _line(number.tobytes(), number.dtype, length)


def equal(number: Array, shape: Shape) -> Array:
    """Return an array of this number."""
    size = math.prod(shape)
    # Rounded up to a power of two, so that few cached lines serve all shapes.
    return line_of(number, 1 << (size - 1).bit_length())[:size].reshape(shape)


@lru_cache(maxsize=64)
def _line(number: bytes, dtype: NpDType, length: int) -> Array:
    return np.full(length, np.frombuffer(number, dtype)[0])


def _block_call(member: FusedMember, lined: Sequence[int], line: int) -> KernelBody:
    """Return the callable in a block for a member whose operands `lined` are lines."""
    if lined:
        return _by_lines(_AGAINST_SCALAR[member.op], lined[0], line)
    # Not the member's own call: it checks the whole shapes (`_bias_shape`), which a block does not have.
    if member.op == "BiasAdd":
        return np.add
    limits = _LIMITS.get(member.op)
    if limits is not None and member.dtype.is_floating:
        return _limited(*(np.full(line, limit, member.dtype.np_dtype) for limit in limits))
    return member.call


def _whole_call(member: FusedMember, lined: Sequence[int], shape: Shape) -> KernelBody:
    """Return the callable for a member on blocks of one shape."""
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
    """Return `compare` for an operand `which` that is a line of equal elements.

    The order of the operands decides between 0 and -0.
    """

    def call(x: Array, y: Array, out: Array) -> None:
        line, values = (x, y) if which == 0 else (y, x)
        for source, target, width in _in_lines(values, out, length):
            if which == 0:
                compare(line[:width], source, out=target)
            else:
                compare(source, line[:width], out=target)

    return call


def _limited(low: Array, high: Array | None = None) -> Callable[..., None]:
    """Return a function that limits values to at least `low`, then to at most `high`, for Relu and Relu6.

    The order of the operands decides between 0 and -0.
    """

    def call(x: Array, out: Array) -> None:
        for source, target, width in _in_lines(x, out, low.size):
            np.maximum(source, low[:width], out=target)
            if high is not None:
                np.minimum(target, high[:width], out=target)

    return call


def _in_lines(source: Array, target: Array, length: int) -> Iterator[tuple[Array, Array, int]]:
    """Yield two blocks in C order as matrices of whole lines, then the remainder, each with the width of its lines."""
    source, target = source.reshape(-1), target.reshape(-1)
    whole = source.size - source.size % length
    if whole:
        yield source[:whole].reshape(-1, length), target[:whole].reshape(-1, length), length
    if whole != source.size:
        yield source[whole:], target[whole:], source.size - whole


class _Room:
    """The places of a block's values: the block of the result and scratch arrays, each free or held by a value."""

    def __init__(self, out: NpDType, held_by: int | None) -> None:
        self._dtypes: dict[str, np.dtype[Any]] = {"out": out}
        # If the result gets an input's memory, that memory is free only after the last read of the input.
        self._free = [] if held_by is not None else ["out"]
        self._held = {} if held_by is None else {held_by: "out"}

    @property
    def scratch(self) -> tuple[NpDType, ...]:
        """The dtypes of the scratch arrays s0, s1 and so on."""
        return tuple(self._dtypes.values())[1:]

    def release(self, value: int) -> None:
        """Free the place of a value that is not read any more."""
        if value in self._held:
            self._free.append(self._held.pop(value))

    def hold(self, value: int, dtype: NpDType) -> str:
        """Return a place for the value: the one released last, which may be its operand's."""
        found = next((name for name in reversed(self._free) if self._dtypes[name] == dtype), None)
        if found is None:
            found = f"s{len(self._dtypes) - 1}"
            self._dtypes[found] = dtype
        else:
            self._free.remove(found)
        self._held[value] = found
        return found
