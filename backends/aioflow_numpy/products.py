"""The single entry point to the BLAS: all products of the CPU's kernels, and all of linear algebra.

Kernels find these functions in their array namespace, in place of NumPy's own (`namespace.py`). NumPy computes small
products. A larger one runs with a BLAS of one thread (`blas_threads`), and a large one in blocks that aioflow's
threads share.

OpenBLAS's own threads wait for one another several times within a product. Where another program uses a core, each
wait may cost a time slice. Measured on two cores with a load of three, a training step of a small network took 33 to
68 ms, and 7 ms with a BLAS of one thread. Blocks are independent, and a free thread takes the next one, so a busy core
slows only its own block.

Waking a thread does not pay off for a product that one thread computes in less than half a millisecond. A spinning
thread (`crew`) takes its part of smaller ones, too. The number of parts depends on the shape of a product and the
number of threads alone, so results do not depend on the threads that compute them.

Limits of "small": OpenBLAS (0.3.27 to 0.3.31, which NumPy 2 ships with) stays in one thread up to 2**18
multiplications of two matrices and 58,000 of complex ones. Like its older versions it does so up to 9,215 of a matrix
and a vector (complex: 4,095). In linear algebra, complex matrices of 18 rows are the smallest for which it starts
threads.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.registry import KernelBody
from aioflow.memory.values import Array, Value
from aioflow_numpy.blas_products import Gemm
from aioflow_numpy.blas_threads import alone
from aioflow_numpy.crew import CREW
from aioflow_numpy.deep_products import Multiply, bounds_of, is_deep, summed_up
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

# Multiplications of two matrices, and of a matrix and a vector; for any dtype, and for dtypes that are not complex.
_SMALL: Final = 2**15
_SMALL_REAL: Final = 2**18
_SMALL_BY_VECTOR: Final = 2**11
_SMALL_REAL_BY_VECTOR: Final = 2**13
_SMALL_SYSTEM: Final = 128  # elements of each operand in linear algebra
_BLOCK: Final = 2**23  # minimum multiplications of a block for which a thread must be woken
_PART: Final = 2**20  # the same for a part for a thread that is awake
_FEW: Final = 4  # maximum number of such parts: with more, one thread takes longer for all of them than for the whole
_LONG: Final = 2**28  # multiplications that take a few milliseconds, between two checks for cancellation
_EVEN: Final = 4  # minimum stack entries per block, so that blocks are nearly equal


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """Like `numpy.matmul`, for operands of one dtype; several threads share a large product.

    `out` is supported for two matrices only.
    """
    if a.ndim != 2 or b.ndim != 2:
        return _stacked(a, b)
    (rows, inner), columns = a.shape, b.shape[1]
    if _is_small(rows, inner, columns, a):
        product: Array = np.matmul(a, b, out)
        return product
    return in_parts(a, b, out, partial(alone, np.matmul))


def matmul_here(a: Array, b: Array, out: Array) -> Array:
    """Return the product of two matrices, computed in this thread alone: for the blocks of a kernel."""
    (rows, inner), columns = a.shape, b.shape[1]
    multiply = np.matmul if _is_small(rows, inner, columns, a) else partial(alone, np.matmul)
    product: Array = multiply(a, b, out)
    return product


def dot(a: Array, b: Array) -> Any:
    """Like `numpy.dot`, for vectors and matrices of one dtype."""
    if a.ndim == 1:
        work = b.size
    elif b.ndim == 1:
        work = a.size
    else:
        return matmul(a, b)
    if work <= _SMALL_BY_VECTOR or (work <= _SMALL_REAL_BY_VECTOR and a.dtype.kind != "c"):
        return np.dot(a, b)
    return alone(np.dot, a, b)


def einsum(*operands: Any, optimize: Any = False, **options: Any) -> Array:
    """Like `numpy.einsum`, with the BLAS in one thread; NumPy calls it only if `optimize` lets it choose the order."""
    if optimize is False:
        summed: Array = np.einsum(*operands, **options)
        return summed
    made: Array = alone(np.einsum, *operands, optimize=optimize, **options)
    return made


def in_one_thread(function: KernelBody) -> KernelBody:
    """Wrap a function so that the BLAS uses one thread, unless all operands are small."""

    def call(*args: Any, **options: object) -> Value:
        for arg in args:
            if isinstance(arg, np.ndarray) and arg.size > _SMALL_SYSTEM:
                return alone(function, *args, **options)
        return function(*args, **options)

    return call


def _is_small(rows: int, inner: int, columns: int, operand: Array) -> bool:
    """Return True if the BLAS computes the product in one thread by itself."""
    work = rows * inner * columns
    # Products with a vector have limits of their own.
    if rows > 1 and columns > 1:
        return work <= _SMALL or (work <= _SMALL_REAL and operand.dtype.kind != "c")
    return work <= _SMALL_BY_VECTOR or (work <= _SMALL_REAL_BY_VECTOR and operand.dtype.kind != "c")


def _stacked(a: Array, b: Array) -> Array:
    """Return the products of stacks of matrices, or of vectors."""
    if a.ndim < 2 or b.ndim < 2:
        return dot(a, b) if max(a.ndim, b.ndim) < 3 else alone(np.matmul, a, b)
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    stack = a.shape[:-2]
    if stack != b.shape[:-2]:
        stack = broadcast_shape(stack, b.shape[:-2])
    work = math.prod(stack) * rows * inner * columns
    if work < 2 * _BLOCK and _is_small(rows, inner, columns, a):
        product: Array = np.matmul(a, b)
        return product
    return _large(a, b, stack, work)


def in_parts(a: Array, b: Array, out: Array | None, multiply: Multiply, gemm: Gemm | None = None) -> Array:
    """Return the product of two matrices, computed in parts that do not depend on the threads.

    Args:
        a: Left matrix.
        b: Right matrix.
        out: Result, or None to allocate it.
        multiply: Multiplies in this thread alone.
        gemm: A function for the crew with the same results to the last bit; None for the BLAS's.
    """
    (rows, inner), columns = a.shape, b.shape[1]
    if is_deep(a, b, out):
        return summed_up(a, b, out, multiply, gemm)
    work, size = rows * inner * columns, max(rows, columns)
    count = max(work // _BLOCK, min(work // _PART, _FEW))
    count = min(count, size // 2)  # the BLAS multiplies a single row by another routine, with other rounding
    if count > 1:
        count = min(count, thread_count())
    product = np.empty((rows, columns), np.result_type(a, b)) if out is None else out
    if count < 2:
        multiply(a, b, product)
        return product
    by_rows = rows >= columns
    bounds = bounds_of(size, count)
    checkpoint()
    is_large = work >= 2 * _BLOCK
    if CREW.multiply(a, b, product, bounds, by_rows, count - 1 if is_large else 1, wake_helpers, gemm):
        return product

    def compute(number: int) -> None:
        part = slice(bounds[number], bounds[number + 1])
        if by_rows:
            multiply(a[part], b, product[part])
        else:
            multiply(a, b[:, part], product[:, part])

    if is_large:
        for_each(compute, range(count))
    else:
        for number in range(count):
            compute(number)
    return product


def _large(a: Array, b: Array, stack: tuple[int, ...], work: int) -> Array:
    blocks = work // _BLOCK
    if blocks > 1:
        blocks = min(blocks, thread_count())
    if blocks < 2:
        whole: Array = alone(np.matmul, a, b)
        return whole
    product = np.empty((*stack, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    axis = _axis_to_cut(product.shape, blocks)
    size = product.shape[axis]
    # The entries of a stack can be split further, into blocks after each of which a cancellation is noticed.
    if axis < -2:
        blocks = max(blocks, min(size, work // _LONG))

    def multiply(number: int) -> None:
        part = slice(size * number // blocks, size * (number + 1) // blocks)
        left, right = a if axis == -1 else _part(a, axis, part), b if axis == -2 else _part(b, axis, part)
        alone(np.matmul, left, right, _part(product, axis, part))

    for_each(multiply, range(blocks))
    return product


def _axis_to_cut(shape: tuple[int, ...], blocks: int) -> int:
    """Return the axis along which to split a product, counted from its end.

    That is the longest axis of the stack, or the longer side of the matrices if the stack is too short.
    """
    longest = max(range(-len(shape), -2), key=lambda axis: shape[axis], default=0)
    if longest and shape[longest] >= _EVEN * blocks:
        return longest
    return -2 if shape[-2] >= shape[-1] else -1


def _part(x: Array, axis: int, part: slice) -> Array:
    """Return a part along an axis counted from the end; the whole operand if it is broadcast along that axis."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    where: Any = (..., part, *(slice(None),) * (-axis - 1))
    cut: Array = x[where]
    return cut
