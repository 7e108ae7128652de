"""Matrix products: a small one in one thread, a large one in blocks that threads share.

OpenBLAS's threads wait for one another several times within a product. Where something else wants a core, each time may
cost a slice of the scheduler's: measured on two cores with a load of three, a training step of a small network took 33
to 68 ms, and 7 ms with a BLAS of one thread. Blocks need nothing of each other, and a thread that is free takes the
next one, so what a busy core costs is that core. A product that one thread does in less than half a millisecond is not
worth waking another thread.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow_numpy.conv_shapes import Array
from aioflow_numpy.threads import for_each, one_blas_thread, thread_count

__all__ = ["multiply"]

_UNDIVIDED: Final = 2**18  # multiplications up to which OpenBLAS itself stays in one thread
_BLOCK: Final = 2**23  # multiplications of a block, at least


def multiply(a: Array, b: Array) -> Array:
    """The product of matrices [m, k] and [k, n] of one floating dtype."""
    (rows, inner), columns = a.shape, b.shape[1]
    work = rows * inner * columns
    if work <= _UNDIVIDED:
        whole: Array = np.matmul(a, b)
        return whole
    blocks = min(thread_count(), work // _BLOCK)
    product = np.empty((rows, columns), a.dtype)
    if blocks < 2:
        with one_blas_thread():
            np.matmul(a, b, product)
    elif rows >= columns:
        for_each(lambda part: _multiply_into(product[part], a[part], b), _cut(rows, blocks))
    else:
        for_each(lambda part: _multiply_into(product[:, part], a, b[:, part]), _cut(columns, blocks))
    return product


def _multiply_into(out: Array, a: Array, b: Array) -> None:
    np.matmul(a, b, out)


def _cut(size: int, parts: int) -> list[slice]:
    return [slice(size * i // parts, size * (i + 1) // parts) for i in range(parts)]
