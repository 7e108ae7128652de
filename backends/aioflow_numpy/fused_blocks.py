"""Runs a chain of elementwise kernels block by block, so that what is between them stays in a core's cache.

Arrays are cut along their first axes; a scalar, or an array over the last axes alone, is read by every block as it is.
Where that does not go (other broadcasting, arrays not in C order) and where arrays are small, the whole arrays go
through one kernel after another.

Sizes measured with 1 MB of L2 per core and 32 MB of L3, ten operations on 10 MB: blocks of 16 KiB take twice as long as
whole arrays, since a call of a ufunc costs up to 0.4 µs besides its work; from 512 KiB to 2 MiB they take 0.55 to 0.6.
Between two threads a block should be larger than for one: each call gives the interpreter's lock back and asks for it
again, and with blocks of 128 KiB two threads were slower than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.fused import Chain, Member
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.threads import for_each, thread_count

__all__ = ["BLOCKWISE", "BlockChain"]

BLOCKWISE: Final = 128 * 1024  # bytes of an array, from which on blocks pay
_BLOCK: Final = 768 * 1024  # bytes of a block for one thread
_SHARED_BLOCK: Final = 1 << 20  # and where threads share the blocks
_WORTH_THREADS: Final = 2 << 20  # bytes of the result, from which on waking another thread pays
# Elements of a line, the inner loop where an operand is the same for all rows: NumPy's own buffer size. Shorter inner
# loops cost 1.4 (at 512 elements) to twice as much per element (at 64), so rows are joined to one line where that pays.
_LINE: Final = 8192
_SHORT: Final = 1024  # elements of a row that are few enough to join rows
_MANY: Final = 16  # lines of an array that are enough to make one of what is repeated

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a chain runs over inputs of certain shapes.

    Attributes:
        shape: Of the result.
        rows: Into how many rows the first axes are flattened.
        tail: The shape of a row; () where all axes are flattened.
        repeat: How many times an operand over the last axis alone is repeated.
        early: The members that are computed beforehand, on whole arrays: they are smaller than the result.
        cut: Values that are cut into blocks; the others are read by every block.
        lined: (member, operand) of the scalars that are read as a line of equal elements.
        step, shared_step: Rows of a block, for one thread and where threads share the blocks.
        block: Computes a block; see `_block_function`.
        scratch: The dtypes of the scratch arrays that it needs.
    """

    shape: Shape
    rows: int
    tail: Shape
    repeat: int
    early: tuple[int, ...]
    cut: frozenset[int]
    lined: tuple[tuple[int, int], ...]
    step: int
    shared_step: int
    block: Callable[..., None]
    scratch: tuple[np.dtype[Any], ...]


class BlockChain:
    """A chain with the blocks that it is run in; the chain itself runs whole arrays."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.dtype: np.dtype[Any] = chain.members[-1].dtype.np_dtype
        self._itemsize = max(member.dtype.size for member in chain.members)
        self._plan = lru_cache(maxsize=16)(self._work_out)

    def run(self, inputs: Sequence[Any], out: Array | None = None, threads: bool = True) -> Any:
        """The result, in `out` where it can be: one of the inputs, or new memory, of the result's shape and dtype.

        Raises:
            OpError: a member failed; the error has its node and line.
        """
        place = next((i for i, value in enumerate(inputs) if value is out), None)
        plan = self._plan(tuple(value.shape for value in inputs), place)
        if plan is None or not all(inputs[i].flags.c_contiguous for i in plan.cut if i < self.chain.inputs):
            return self.chain(inputs)
        if out is None or (place is None and not self._fits(out, plan.shape)):
            out = np.empty(plan.shape, self.dtype)
        values = self._operands(plan, inputs)
        target = out.reshape(plan.rows, *plan.tail)
        if plan.rows <= plan.step:
            plan.block(*(value for _, value in values), *_room(plan, plan.rows), target)
            return out

        def work(start: int) -> None:
            stop = min(start + step, plan.rows)
            views = [value[start:stop] if is_cut else value for is_cut, value in values]
            with np.errstate(all="ignore"):  # of this thread, which may be a helper
                plan.block(*views, *_room(plan, stop - start), target[start:stop])

        shared = threads and out.nbytes >= _WORTH_THREADS and thread_count() > 1
        step = plan.shared_step if shared else plan.step
        if shared:
            for_each(work, range(0, plan.rows, step))
        else:
            for start in range(0, plan.rows, step):
                work(start)
        return out

    def _fits(self, out: Array, shape: Shape) -> bool:
        return out.shape == shape and out.dtype == self.dtype and out.flags.c_contiguous

    def _operands(self, plan: _Plan, inputs: Sequence[Any]) -> list[tuple[bool, Array]]:
        """What the block function reads, each with whether it is cut."""
        members = self.chain.members
        known = [*inputs, *([None] * len(members))]
        for at in plan.early:
            known[len(inputs) + at] = members[at].call(*(known[i] for i in members[at].operands))
        found: list[tuple[bool, Array]] = []
        for i in (*range(len(inputs)), *(len(inputs) + at for at in plan.early)):
            if i in plan.cut:
                found.append((True, known[i].reshape(plan.rows, *plan.tail)))
            else:
                found.append((False, _spread(np.asarray(known[i]), plan.repeat)))
        for at, operand in plan.lined:
            value = np.asarray(known[members[at].operands[operand]])
            found.append((False, _line(value.tobytes(), value.dtype, _LINE)))
        return found

    def _work_out(self, shapes: tuple[Shape, ...], place: int | None) -> _Plan | None:
        """The plan for inputs of these shapes, where the result goes into input number `place`."""
        chain = self.chain
        known = list(shapes)
        for member in chain.members:
            operands = [known[i] for i in member.operands]
            try:
                known.append(broadcast_shape(*operands))
            except InvalidArgumentError:
                return None  # whole arrays will say which member it was
            if not _STRICT.get(member.op, _any_shapes)(operands):
                return None
        shape = known[-1]
        count = chain.inputs
        early = tuple(at for at in range(len(chain.members)) if known[count + at] != shape)
        cut = frozenset(i for i, s in enumerate(known) if s == shape)
        used = [known[i] for at, m in enumerate(chain.members) if at not in early for i in m.operands if i not in cut]
        covered = max((len(_stripped(s)) for s in used), default=0)
        if covered >= len(shape) or math.prod(shape) == 0 or (place is not None and place not in cut):
            return None
        rows, tail = math.prod(shape[: len(shape) - covered]), shape[len(shape) - covered :]
        repeat = 1
        if covered == 1 and tail[0] <= min(_SHORT, _LINE) and math.prod(shape) >= _MANY * _LINE:
            repeat = math.gcd(rows, 1 << (_LINE // tail[0]).bit_length() - 1)
            rows, tail = rows // repeat, (repeat * tail[0],)
        lined = tuple(_lined(chain, early, known, cut))
        block, room = _block_function(chain, early, lined, place)
        size = math.prod(tail) * self._itemsize
        step, shared_step = (_even(rows, max(1, most // size)) for most in (_BLOCK, _SHARED_BLOCK))
        return _Plan(shape, rows, tail, repeat, early, cut, lined, step, shared_step, block, room)


def _room(plan: _Plan, rows: int) -> list[Array]:
    """The scratch arrays of this thread for a block of so many rows."""
    return [scratch(f"chain{i}", (rows, *plan.tail), dtype) for i, dtype in enumerate(plan.scratch)]


def _even(total: int, most: int) -> int:
    """The size of parts of `total`, each at most `most`, that come out nearly equal."""
    return -(-total // -(-total // most))


def _stripped(shape: Shape) -> Shape:
    """Without the leading ones, which say nothing."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _spread(value: Array, repeat: int) -> Array:
    """What every block reads, in the shape of a row."""
    shape = _stripped(value.shape)
    row = value.reshape(shape)
    if repeat == 1 or not shape:
        return row
    line = np.empty((repeat, *shape), row.dtype)
    line[...] = row
    return line.reshape(-1)


@lru_cache(maxsize=64)
def _line(number: bytes, dtype: np.dtype[Any], length: int) -> Array:
    """A line of the number with these bytes."""
    return np.full(length, np.frombuffer(number, dtype)[0])


def _any_shapes(operands: Sequence[Shape]) -> bool:
    return True


def _one_shape(operands: Sequence[Shape]) -> bool:
    return operands.count(operands[0]) == len(operands)


def _bias_shape(operands: Sequence[Shape]) -> bool:
    value, bias = operands
    return len(value) > 1 and bias == value[-1:]


# Ops that want more of their operands than that they broadcast.
_STRICT: Final[Mapping[str, Callable[[Sequence[Shape]], bool]]] = {"Select": _one_shape, "BiasAdd": _bias_shape}


# -- the block function ------------------------------------------------------------------------------------------------

_AGAINST_SCALAR: Final[Mapping[str, np.ufunc]] = {"Maximum": np.maximum, "Minimum": np.minimum}
_LIMITS: Final[Mapping[str, tuple[int, ...]]] = {"Relu": (0,), "Relu6": (0, 6)}


def _lined(
    chain: Chain, early: Sequence[int], known: Sequence[Shape], cut: frozenset[int]
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


def _block_call(member: Member, lined: Sequence[int]) -> Callable[..., Any]:
    """What a block calls for a member whose operands `lined` are lines."""
    if lined:
        return _by_lines(_AGAINST_SCALAR[member.op], lined[0])
    if member.op == "BiasAdd":  # `_bias_shape` has looked at the shapes, which those of a block are not
        return np.add
    limits = _LIMITS.get(member.op)
    if limits is not None and member.dtype.is_floating:
        return _limited(*(np.full(_LINE, limit, member.dtype.np_dtype) for limit in limits))
    return member.call


def _by_lines(compare: np.ufunc, which: int) -> Callable[..., None]:
    """`compare` where operand `which` is a line of equal elements; the order decides between 0 and -0."""

    def call(x: Array, y: Array, out: Array) -> None:
        line, values = (x, y) if which == 0 else (y, x)
        for source, target, width in _in_lines(values, out):
            if which == 0:
                compare(line[:width], source, out=target)
            else:
                compare(source, line[:width], out=target)

    return call


def _limited(low: Array, high: Array | None = None) -> Callable[..., None]:
    """At least `low`, and then at most `high`: as Relu and Relu6, for which the order decides between 0 and -0."""

    def call(x: Array, out: Array) -> None:
        for source, target, width in _in_lines(x, out):
            np.maximum(source, low[:width], out=target)
            if high is not None:
                np.minimum(target, high[:width], out=target)

    return call


def _in_lines(source: Array, target: Array) -> Iterator[tuple[Array, Array, int]]:
    """Two blocks in C order as matrices of whole lines, and what is left; each with the width of its lines."""
    source, target = source.reshape(-1), target.reshape(-1)
    whole = source.size - source.size % _LINE
    if whole:
        yield source[:whole].reshape(-1, _LINE), target[:whole].reshape(-1, _LINE), _LINE
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


def _block_function(
    chain: Chain, early: Sequence[int], lined: Sequence[tuple[int, int]], place: int | None
) -> tuple[Callable[..., None], tuple[np.dtype[Any], ...]]:
    """The members on one block as a function, and the dtypes of the scratch arrays that it takes.

    Its parameters are the values known beforehand, the lines, the scratch arrays, and where the result goes, which is
    the block of input number `place`, or of no input.
    """
    names = {i: f"a{i}" for i in (*range(chain.inputs), *(chain.inputs + at for at in early))}
    parameters = [*names.values(), *(f"l{at}_{operand}" for at, operand in lined)]
    last, room = chain.last_uses(), _Room(chain.members[-1].dtype.np_dtype, place)
    scope: dict[str, Any] = {}
    lines: list[str] = []
    for at, member in enumerate(chain.members):
        if at in early:
            continue
        value = chain.inputs + at
        by_line = [i for i in range(len(member.operands)) if (at, i) in lined]
        scope[f"k{at}"] = _block_call(member, by_line)
        arguments = [f"l{at}_{i}" if i in by_line else names[v] for i, v in enumerate(member.operands)]
        for operand in dict.fromkeys(member.operands):
            if last[operand] == at:
                room.release(operand)
        final = at == len(chain.members) - 1
        if member.kernel.takes_out:
            names[value] = "out" if final else room.hold(value, member.dtype.np_dtype)
            lines.append(f"    k{at}({', '.join(arguments)}, out={names[value]})")
        else:
            names[value] = "out[...]" if final else f"v{at}"
            lines.append(f"    {names[value]} = k{at}({', '.join(arguments)})")
    parameters += [*(f"s{i}" for i in range(len(room.scratch))), "out"]
    text = "\n".join([f"def block({', '.join(parameters)}):", *lines]) + "\n"
    exec(compile(text, "<aioflow block>", "exec"), scope)
    function: Callable[..., None] = scope["block"]
    return function, room.scratch
