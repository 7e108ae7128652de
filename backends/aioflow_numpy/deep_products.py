"""Products of few rows and many inner elements, as in the deep layers of a network for one picture.

The right matrix has megabytes, each of which is read once, and often from memory. OpenBLAS first copies the right
matrix in narrow columns, an order in which the processor does not prefetch. Such a product is therefore split along
its inner elements. A part is a run of lines of the right matrix, and is summed in pieces that the code has read in
order before it multiplies them; without compiled code, NumPy computes the same sums.

Measured with nothing in a cache, half of 4608 x 512 in each of two threads: 850 and 475 µs with 9 rows. With 144 rows,
half of 2304 x 256: 1190 and 1030 µs. The products of the parts are added in the end, which must cost little in
comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from aioflow.concurrency.stopping import checkpoint
from aioflow.memory.values import Array
from aioflow_numpy.blas_products import Gemm
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.crew import CREW
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

Multiply: TypeAlias = Callable[[Array, Array, Array], object]  # writes the product of the first two to the third

_FEW_ROWS: Final = 40
_SOME_ROWS: Final = 256
_DEEP: Final = 8  # minimum ratio of inner elements to rows, above `_FEW_ROWS`
_LARGE: Final = 2**19  # bytes of the right matrix; a smaller one is usually in a cache
_PIECE: Final = 2**16  # bytes of the right matrix in a piece, with at most `_FEW_ROWS`
_LARGER_PIECE: Final = 2**17  # the same with more rows
_SHARE: Final = 2**17  # minimum bytes of the right matrix in a part
_LEAST: Final = 16  # minimum inner elements of a piece
# Maximum inner elements of a piece, since libraries sum only so many at once. With more, they add the sum of the first
# ones to the result and then that of the others, which rounds differently from adding the sum of all. OpenBLAS sums
# 128 or more at once, depending on processor and dtype.
_LONGEST: Final = 96
_NARROW: Final = 64  # columns: with fewer, such short pieces take longer than the whole
_LARGEST: Final = 2**18  # maximum bytes of `_LEAST` lines: half of a small L2 cache
_MOST: Final = 4  # maximum parts, since one thread adds their products
_WAKES: Final = 2**22  # bytes of the right matrix from which on a thread is woken for a part
_LONG: Final = 2**24  # multiplications from which on a thread is woken, too


def is_deep(a: Array, b: Array, out: Array | None) -> bool:
    """Return True if the product is supported here and is faster when split along its inner elements."""
    (rows, inner), columns, (down, across), size = a.shape, b.shape[1], b.strides, b.itemsize
    if not 0 < rows <= _SOME_ROWS or (rows > _FEW_ROWS and (inner < _DEEP * rows or thread_count() > _MOST)):
        return False
    if b.nbytes < _LARGE or columns < _NARROW or columns * size * _LEAST > _LARGEST or inner < 2 * _LEAST:
        return False
    if inner != len(b) or (out is not None and (out.shape != (rows, columns) or out.dtype != b.dtype)):
        return False
    return across == size and down >= columns * size and b.dtype.char in "fd" and a.dtype == b.dtype


def summed_up(a: Array, b: Array, out: Array | None, multiply: Multiply, gemm: Gemm | None) -> Array:
    """Return the product, computed in parts that do not depend on the threads; see `products.in_parts`."""
    (rows, inner), columns, size = a.shape, b.shape[1], b.nbytes
    product = np.empty((rows, columns), np.result_type(a, b)) if out is None else out
    if rows == 1:  # the BLAS's functions for vectors take as long for a part as for the whole
        product[:] = summed_up(np.concatenate((a, a)), b, None, multiply, gemm)[:1]
        return product
    count = max(1, min(thread_count(), _MOST, size // _SHARE, inner // _LEAST))
    piece = _PIECE if rows <= _FEW_ROWS else _LARGER_PIECE
    # Enough pieces that none is longer than `_LONGEST`. Otherwise they have about `piece` bytes, and at least `_LEAST`
    # elements.
    pieces = max(-(-inner // (count * _LONGEST)), min(size // count // piece, inner // count // _LEAST))
    bounds = bounds_of(inner, count)
    sums = product[None] if count == 1 else np.empty((count, rows, columns), product.dtype)
    checkpoint()
    by_code = CREW.sums(a, b, sums, bounds, pieces, gemm)

    def compute(number: int) -> None:
        part = slice(bounds[number], bounds[number + 1])
        if by_code is None or not by_code.compute(number):
            _sum(a[:, part], b[part], pieces, multiply, sums[number])

    if count == 1:
        compute(0)
        return product
    if by_code is None or not by_code.share(wake_helpers):
        if size >= _WAKES or rows * inner * columns >= _LONG:
            for_each(compute, range(count))
        else:
            for number in range(count):
                compute(number)
    # In a fixed order, whichever thread has computed a part.
    np.add(sums[0], sums[1], product)
    for more in sums[2:]:
        product += more
    return product


@lru_cache(maxsize=1024)
def bounds_of(size: int, count: int) -> tuple[int, ...]:
    """Return the bounds of `count` nearly equal parts."""
    return tuple(size * number // count for number in range(count + 1))


def _sum(a: Array, b: Array, pieces: int, multiply: Multiply, out: Array) -> None:
    """Add the products of the pieces in the same order as the compiled code."""
    for first, last in pairwise(bounds_of(len(b), pieces)):
        if first == 0:
            multiply(a[:, :last], b[:last], out)
        else:
            more = scratch("product", out.shape, out.dtype)
            multiply(a[:, first:last], b[first:last], more)
            out += more
