"""Chains of elementwise kernels, run block by block so that intermediate values stay in a core's cache.

Arrays are split along their first axes. Scalars, and arrays over the last axes alone, are read whole by every block.
Whole arrays go through one kernel after another where blocks are not possible (other broadcasting, arrays not in C
order) and where arrays are small.

Sizes measured with 1 MB of L2 per core and 32 MB of L3, ten operations on 10 MB: blocks of 16 KiB take twice as long as
whole arrays, since a call of a ufunc costs up to 0.4 µs besides its work. From 512 KiB to 2 MiB they take 0.55 to 0.6
of the time. With two threads a block should be larger than with one: each call releases and reacquires the
interpreter's lock, and with blocks of 128 KiB two threads were slower than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import num_elements
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.fused import PRODUCTS, Chain, chain_of, epilogue_of, naming, product_binding
from aioflow.kernels.registry import KERNELS, Binding, KernelBody, binder
from aioflow.memory.values import Array, NpDType, Shape
from aioflow_numpy.at_once import AtOnce, ChainShapes
from aioflow_numpy.block_functions import BlockFunction, block_function, line_of, lined
from aioflow_numpy.compiled.blocks import CompiledBlock
from aioflow_numpy.compiled.pieces import ChainPiece, OperandExtent, pieces_of
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.threads import for_each, thread_count

# Bytes of an array from which on blocks pay off; and from which on one block does, if machine code will follow.
_PAYS: Final = 128 * 1024
_PAYS_IN_CODE: Final = 16 * 1024
_BLOCK: Final = 768 * 1024  # bytes of a block for one thread
_SHARED_BLOCK: Final = 1 << 20  # the same where threads share the blocks
_WORTH_THREADS: Final = 2 << 20  # bytes of the result from which on waking another thread pays off
# Elements of a line, the inner loop where an operand is the same for all rows: NumPy's own buffer size. Shorter inner
# loops cost 1.4 (at 512 elements) to twice as much per element (at 64), so rows are joined to one line where that pays.
_LINE: Final = 8192
_SHORT: Final = 1024  # maximum elements of a row for joining rows
_FEW: Final = 1 << 16  # maximum elements of an array for expanding scalars to arrays of its size
_MANY: Final = 16  # minimum lines of an array for building a line of repeated rows


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of a chain over inputs of certain shapes.

    Attributes:
        shape: Shape of the result.
        rows: Number of rows into which the first axes are flattened.
        tail: Shape of a row; () where all axes are flattened.
        repeat: How many times an operand over the last axis alone is repeated.
        early: Members that are computed first, on whole arrays, because they are smaller than the result.
        cut: Values that are split into blocks; every block reads the others whole.
        dtypes: Dtypes of the inputs and of the `early` members.
        step, shared_step: Rows of a block, for one thread and where threads share the blocks.
        plain: Computes a block by NumPy.
        compiled: The same in machine code, where that is allowed.
        at_once: Fast path where the arrays are a single block.
    """

    shape: Shape
    rows: int
    tail: Shape
    repeat: int
    early: tuple[int, ...]
    cut: frozenset[int]
    dtypes: tuple[NpDType, ...]
    step: int
    shared_step: int
    plain: BlockFunction
    compiled: CompiledBlock | None
    at_once: AtOnce | None


class BlockChain:
    """A chain and the blocks in which it is run; `chain` itself runs on whole arrays.

    Args:
        chain: The chain.
        constants: For each input its value, if it is the same in every call, otherwise None; () if no input is
            constant.

    Attributes:
        chain: The chain.
        least: Bytes of an array from which on `run` pays off.
        dtype: Dtype of the result.
    """

    def __init__(self, chain: Chain, constants: Sequence[Array | None] = ()) -> None:
        self.chain = chain
        has_code = any(isinstance(each, ChainPiece) for each in pieces_of(chain, ()))
        self.least = _PAYS_IN_CODE if has_code else _PAYS
        self._constants = dict(_lying_well(chain, constants))
        self._asked = [i for i in range(chain.inputs) if i not in self._constants]
        self.dtype: NpDType = chain.members[-1].dtype.np_dtype
        self._itemsize = max(member.dtype.size for member in chain.members)
        self._plan = lru_cache(maxsize=16)(self._work_out)
        self._block = lru_cache(maxsize=16)(self._compiled_block)

    def run(self, inputs: Sequence[Array], out: Array | None = None, threads: bool = True) -> Array:
        """Return the result, written to `out` where possible.

        `out` is one of the inputs, or new memory of the result's shape and dtype.

        Raises:
            OpError: a member failed; the error has its node and line.
        """
        place = None if out is None else self._place_of(out, inputs)
        plan = self._plan(tuple([inputs[i].shape for i in self._asked]), place)
        if plan is None:
            return self.chain(inputs)
        if plan.at_once is not None:
            made = plan.at_once.run(inputs, out)
            if made is not None:
                return made
        if not all(inputs[i].flags.c_contiguous for i in plan.cut if i < self.chain.inputs):
            return self.chain(inputs)
        return self._in_blocks(plan, inputs, out, place, threads)

    def _place_of(self, out: Array, inputs: Sequence[Array]) -> int | None:
        for i in self._asked:
            if inputs[i] is out:
                return i
        return None

    def _in_blocks(
        self, plan: _Plan, inputs: Sequence[Array], out: Array | None, place: int | None, threads: bool
    ) -> Array:
        if out is None or (place is None and not self._fits(out, plan.shape)):
            out = np.empty(plan.shape, self.dtype)
        function, values = self._ready(plan, inputs, out)
        target = out.reshape(plan.rows, *plan.tail)
        # A single block needs neither views nor a check for cancellation.
        if plan.rows <= plan.step:
            function.call(*(value for _, value in values), *_room(plan, function, plan.rows), target)
            return out

        def work(start: int) -> None:
            stop = min(start + step, plan.rows)
            views = [value[start:stop] if is_cut else value for is_cut, value in values]
            with np.errstate(all="ignore"):  # the error state is per thread, and this may be a helper
                function.call(*views, *_room(plan, function, stop - start), target[start:stop])

        shared = threads and out.nbytes >= _WORTH_THREADS and thread_count() > 1
        step = plan.shared_step if shared else plan.step
        if shared:
            for_each(work, range(0, plan.rows, step))
        else:
            for start in range(0, plan.rows, step):
                checkpoint()
                work(start)
        return out

    def _ready(
        self, plan: _Plan, inputs: Sequence[Array], out: Array
    ) -> tuple[BlockFunction, list[tuple[bool, Array]]]:
        """Return the function that computes a block, and its operands, each with whether it is split into blocks."""
        compiled = plan.compiled
        function = None if compiled is None else compiled.function
        if function is not None and out.dtype == self.dtype and out.flags.behaved:
            values = self._operands(plan, inputs, function)
            # Not strict: `values` ends with lines, which always fit.
            if all(_is_plain(v, dtype) for (_, v), dtype in zip(values, plan.dtypes, strict=False)):
                return function, values
        elif compiled is not None:
            compiled.worked(out.nbytes)
        return plan.plain, self._operands(plan, inputs, plan.plain)

    def _fits(self, out: Array, shape: Shape) -> bool:
        return out.shape == shape and out.dtype == self.dtype and out.flags.c_contiguous

    def _operands(self, plan: _Plan, inputs: Sequence[Array], function: BlockFunction) -> list[tuple[bool, Array]]:
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
        for at, operand in function.lined:
            found.append((False, line_of(np.asarray(known[members[at].operands[operand]]), _LINE)))
        return found

    def _work_out(self, asked: tuple[Shape, ...], place: int | None) -> _Plan | None:
        """Return the plan for these shapes of the inputs that are not constant; None where whole arrays are needed.

        Args:
            asked: Shapes of the inputs that are not constant.
            place: Number of the input whose memory receives the result, or None.
        """
        chain = self.chain
        by_input = {i: constant.shape for i, constant in self._constants.items()}
        by_input |= dict(zip(self._asked, asked, strict=True))
        known = [by_input[i] for i in range(chain.inputs)]
        for member in chain.members:
            operands = [known[i] for i in member.operands]
            try:
                known.append(broadcast_shape(*operands))
            except InvalidArgumentError:
                return None  # the run over whole arrays reports which member failed
            if OPS.get(member.op).is_of_one_shape and not _one_shape(operands):
                return None  # these ops do not broadcast
            if not _STRICT.get(member.op, _any_shapes)(operands):
                return None
        shape = known[-1]
        count = chain.inputs
        early = tuple(at for at in range(len(chain.members)) if known[count + at] != shape)
        there = {*range(count), *(count + at for at in early)}
        if not all(there.issuperset(chain.members[at].operands) for at in early):
            return None  # an early member reads a value that is not computed early
        cut = frozenset(i for i, s in enumerate(known) if s == shape)
        used = [known[i] for at, m in enumerate(chain.members) if at not in early for i in m.operands if i not in cut]
        # The number of last axes that operands other than the split ones extend over: a row has these axes.
        covered = max((len(_stripped(s)) for s in used), default=0)
        # No axis is left to split, there are no elements, or the input whose memory gets the result is too small.
        if covered >= len(shape) or math.prod(shape) == 0 or (place is not None and place not in cut):
            return None
        rows, tail = math.prod(shape[: len(shape) - covered]), shape[len(shape) - covered :]
        repeat = 1
        if covered == 1 and tail[0] <= min(_SHORT, _LINE) and math.prod(shape) >= _MANY * _LINE:
            # The largest power of two that divides the number of rows and keeps a line within `_LINE`.
            repeat = math.gcd(rows, 1 << (_LINE // tail[0]).bit_length() - 1)
            rows, tail = rows // repeat, (repeat * tail[0],)
        size = math.prod(tail) * self._itemsize
        step, shared_step = (_even(rows, max(1, most // size)) for most in (_BLOCK, _SHARED_BLOCK))
        extents = (
            (i, OperandExtent.ONE if math.prod(s) == 1 else OperandExtent.ROW)
            for i, s in enumerate(known)
            if i not in cut
        )
        by_line = tuple(lined(chain, early, known, cut))
        # The code is cached without the sizes, so arrays of other sizes share it.
        block = self._block(early, tuple(extents), by_line, _LINE, place)
        whole = shape[len(shape) - covered :]  # machine code reads scalars and whole rows, and would read past others
        compiled = block if all(math.prod(s) == 1 or _stripped(s) == _stripped(whole) for s in used) else None
        dtypes = tuple(t.np_dtype for t in (*chain.dtypes, *(chain.members[at].dtype for at in early)))
        at_once = None
        if rows <= step and repeat == 1 and not early and (place is None or chain.dtypes[place].np_dtype == self.dtype):
            at_once = self._at_once(
                ChainShapes(chain, self._constants, known[:count], shape, place), by_line, block, compiled
            )
        return _Plan(shape, rows, tail, repeat, early, cut, dtypes, step, shared_step, block.plain, compiled, at_once)

    def _at_once(
        self,
        shapes: ChainShapes,
        by_line: Sequence[tuple[int, int]],
        block: CompiledBlock,
        compiled: CompiledBlock | None,
    ) -> AtOnce:
        is_whole, plain = math.prod(shapes.result) <= _FEW, block.plain
        if is_whole:
            order = range(len(self.chain.members))
            plain = block_function(self.chain, order, (), by_line, _LINE, shapes.place, shapes.result)
        return AtOnce(shapes, plain, compiled, _LINE, is_whole)

    def _compiled_block(
        self,
        early: tuple[int, ...],
        extents: tuple[tuple[int, OperandExtent], ...],
        by_line: tuple[tuple[int, int], ...],
        line: int,
        place: int | None,
    ) -> CompiledBlock:
        """Return the block function, one for all sizes of the arrays."""
        order = [at for at in range(len(self.chain.members)) if at not in early]
        plain = block_function(self.chain, order, early, by_line, line, place)
        return CompiledBlock(self.chain, early, dict(extents), line, place, plain)


def _lying_well(chain: Chain, constants: Sequence[Array | None]) -> Iterator[tuple[int, Array]]:
    """Yield the constant inputs whose memory layout machine code supports."""
    for i, constant in enumerate(constants):
        if constant is not None:
            value = np.asarray(constant)
            if _is_plain(value, chain.dtypes[i].np_dtype):
                yield i, value


def _room(plan: _Plan, function: BlockFunction, rows: int) -> list[Array]:
    """Return this thread's scratch arrays for a block of `rows` rows."""
    return [scratch(f"chain{i}", (rows, *plan.tail), dtype) for i, dtype in enumerate(function.scratch)]


def _is_plain(value: Array, dtype: NpDType) -> bool:
    """Return True if machine code supports the array's dtype and memory layout."""
    flags = value.flags
    return value.dtype == dtype and flags.c_contiguous and flags.aligned


def _even(total: int, most: int) -> int:
    """Return the size of nearly equal parts of `total`, each at most `most`."""
    return -(-total // -(-total // most))


def _stripped(shape: Shape) -> Shape:
    """Return the shape without leading ones, which do not affect broadcasting."""
    first = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _spread(value: Array, repeat: int) -> Array:
    """Return an operand that every block reads, in the shape of a row."""
    shape = _stripped(value.shape)
    row = np.ascontiguousarray(value).reshape(shape)
    if repeat == 1 or not shape:
        return row
    line = np.empty((repeat, *shape), row.dtype)
    line[...] = row
    return line.reshape(-1)


def _any_shapes(operands: Sequence[Shape]) -> bool:
    return True


def _one_shape(operands: Sequence[Shape]) -> bool:
    return operands.count(operands[0]) == len(operands)


def _bias_shape(operands: Sequence[Shape]) -> bool:
    value, bias = operands
    return len(value) > 1 and bias == value[-1:]


# Ops with requirements on the shapes of their operands beyond broadcasting.
_STRICT: Final[Mapping[str, Callable[[Sequence[Shape]], bool]]] = {"Select": _one_shape, "BiasAdd": _bias_shape}


# ── the fused ops on the CPU: chains and epilogues are run block by block ─────────────────────────────────────────────


@binder("_ElementwiseChain", device="CPU", fresh=True, takes_out=True)
def elementwise_chain(binding: Binding) -> KernelBody:
    """Bind a chain: run small arrays through the members one after another, as in a strand, and others in blocks."""
    blocks = BlockChain(chain_of(binding), binding.constants)
    chain = blocks.chain
    small = blocks.least // max(t.size for t in binding.input_dtypes)
    counts = [num_elements(dims) for dims in binding.input_dims]
    if any(count is not None and count >= small for count in counts):
        return blocks.run
    unknown = [i for i, count in enumerate(counts) if count is None]
    if len(unknown) == 1:
        (only,) = unknown

        def one(inputs: Sequence[Array], out: Array | None = None) -> Array:
            return chain(inputs) if inputs[only].size < small else blocks.run(inputs, out)

        return one

    def body(inputs: Sequence[Array], out: Array | None = None) -> Array:
        for i in unknown:
            if inputs[i].size >= small:
                return blocks.run(inputs, out)
        return chain(inputs)

    return body


@binder("_FusedMatMul", device="CPU", fresh=True)
@binder("_FusedConv2D", device="CPU", fresh=True)
@binder("_FusedDepthwiseConv2dNative", device="CPU", fresh=True)
def fused_product(binding: Binding) -> KernelBody:
    """Bind a product with an epilogue, which runs in the product's own buffer."""
    alone = product_binding(binding, PRODUCTS[binding.op_type])
    product = naming(binding, KERNELS.get(alone.op_type, binding.backend.device_type, alone.attrs).bind(alone))
    epilogue = epilogue_of(binding)
    if epilogue is None:
        return lambda left, right, args: product(left, right)
    # The first input of the epilogue is the product, which is never constant.
    blocks = BlockChain(epilogue, (None, *binding.constants[2:]))

    def body(left: Array, right: Array, args: Sequence[Array]) -> Array:
        made = product(left, right)
        inputs = (made, *args)
        return blocks.run(inputs, made) if made.nbytes >= blocks.least else blocks.chain(inputs)

    return body
