"""Products of few rows and many inner elements, as the deep layers of a net are for one picture: the right matrix is
megabytes, each of which is read once, and often from memory.

OpenBLAS copies the right matrix first, in narrow columns, an order in which the processor does not fetch ahead. So such
a product is cut along its inner elements. A part is lines of the right matrix, one after another, and is summed up in
pieces that the code has read in order before it multiplies them; where there is no code, NumPy does the same sums.
Measured with what is in no cache, half of 4608 x 512 in each of two threads: 850 and 475 µs with 9 rows. With 144, half
of 2304 x 256: 1190 and 1030. The products of the parts are added in the end, which must be little beside that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from aioflow.work.stopping import checkpoint
from aioflow_numpy.blas_products import Gemm
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.crew import CREW
from aioflow_numpy.threads import for_each, thread_count, wake_helpers

__all__ = ["Multiply", "bounds_of", "is_deep", "summed_up"]

Multiply: TypeAlias = Callable[[Array, Array, Array], object]  # writes the product of the first two to the third

_FEW_ROWS: Final = 40
_SOME_ROWS: Final = 256
_DEEP: Final = 8  # inner elements for each of these rows
_LARGE: Final = 2**19  # bytes of the right matrix; a smaller one is in a cache as a rule
_PIECE: Final = 2**16  # bytes of the right matrix, for few rows
_LARGER_PIECE: Final = 2**17  # and for some
_SHARE: Final = 2**17  # and of a part, at least
_LEAST: Final = 16  # inner elements of a piece
# And at most, as libraries sum up so many at once: of more they add the first to what is there, and then the others,
# and that has other bits than to add the sum of all. OpenBLAS takes from 128 on, depending on processor and dtype.
_LONGEST: Final = 96
_NARROW: Final = 64  # columns: with fewer, so short pieces take longer than the whole
_LARGEST: Final = 2**18  # bytes of so many lines, at most: half of a small second-level cache
_MOST: Final = 4  # parts, since their products are added by one thread
_WAKES: Final = 2**22  # bytes, from which on a thread is woken for a part
_LONG: Final = 2**24  # multiplications, from which on it is, too


def is_deep(a: Array, b: Array, out: Array | None) -> bool:
    """Whether a product is better cut along its inner elements. What does not fit is not."""
    (rows, inner), columns, (down, across), size = a.shape, b.shape[1], b.strides, b.itemsize
    if not 0 < rows <= _SOME_ROWS or (rows > _FEW_ROWS and (inner < _DEEP * rows or thread_count() > _MOST)):
        return False
    if b.nbytes < _LARGE or columns < _NARROW or columns * size * _LEAST > _LARGEST or inner < 2 * _LEAST:
        return False
    if inner != len(b) or (out is not None and (out.shape != (rows, columns) or out.dtype != b.dtype)):
        return False
    return across == size and down >= columns * size and b.dtype.char in "fd" and a.dtype == b.dtype


def summed_up(a: Array, b: Array, out: Array | None, multiply: Multiply, gemm: Gemm | None) -> Array:
    """The product, in parts that do not depend on who computes them; see `products.in_parts`."""
    (rows, inner), columns, size = a.shape, b.shape[1], b.nbytes
    product = np.empty((rows, columns), np.result_type(a, b)) if out is None else out
    if rows == 1:  # for vectors there are other functions, which take as long for a part as for the whole
        product[:] = summed_up(np.concatenate((a, a)), b, None, multiply, gemm)[:1]
        return product
    count = max(1, min(thread_count(), _MOST, size // _SHARE, inner // _LEAST))
    piece = _PIECE if rows <= _FEW_ROWS else _LARGER_PIECE
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
    np.add(sums[0], sums[1], product)
    for more in sums[2:]:
        product += more
    return product


@lru_cache(maxsize=1024)
def bounds_of(size: int, count: int) -> tuple[int, ...]:
    """Where so many nearly equal parts begin and end."""
    return tuple(size * number // count for number in range(count + 1))


def _sum(a: Array, b: Array, pieces: int, multiply: Multiply, out: Array) -> None:
    """As the code sums up: the product of each piece, added to those before."""
    for first, last in pairwise(bounds_of(len(b), pieces)):
        if first == 0:
            multiply(a[:, :last], b[:last], out)
        else:
            more = scratch("product", out.shape, out.dtype)
            multiply(a[:, first:last], b[first:last], more)
            out += more
