"""Products of batches of float32 matrices by oneDNN.

Each thread multiplies a part of the batch, where NumPy's BLAS shares every matrix between its threads.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import ArgumentRole, Query
from aioflow_onednn.library import library
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described

_BLOCK: Final = 2**24  # minimum multiplications of a block
_LONG: Final = 2**28  # approximate maximum; cancellation is checked after each block
_KEPT: Final = 1024  # prepared products


def batch_matmul(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array | None:
    """Return the products of two batches [..., rows, columns] of one batch shape, each optionally transposed.

    Both batches are contiguous and not empty. Return None where NumPy is as fast: with less than one matrix or one
    block per thread.
    """
    count, threads = math.prod(x.shape[:-2]), thread_count()
    inner, rows = x.shape[-2:] if transpose_x else x.shape[-1:-3:-1]
    columns = y.shape[-2 if transpose_y else -1]
    work = count * rows * inner * columns
    if threads < 2 or count < threads or work < threads * _BLOCK:
        return None
    # At least one block for each thread, and more if blocks would be too long for a check between them.
    blocks = min(count, max(threads, work // _LONG))
    out = np.empty((*x.shape[:-2], rows, columns), np.float32)
    left, right, made = (array.reshape(count, *array.shape[-2:]) for array in (x, y, out))

    def multiply(number: int) -> None:
        part = slice(count * number // blocks, count * (number + 1) // blocks)
        size = part.stop - part.start
        prepared = _prepared((size, rows, inner), (size, inner, columns), transpose_x, transpose_y)
        prepared.run(address(left[part]), address(right[part]), address(made[part]))

    for_each(multiply, range(blocks))
    return out


@lru_cache(maxsize=_KEPT)
def _prepared(x: tuple[int, int, int], y: tuple[int, int, int], transpose_x: bool, transpose_y: bool) -> Primitive:
    dnnl = library()
    layouts = _layout(x, transpose_x), _layout(y, transpose_y), _layout((*x[:2], y[2]), False)
    with described(dnnl, layouts) as (left, right, product):
        made = dnnl.made("matmul_primitive_desc_create", dnnl.engine, left, right, None, product, dnnl.attributes)
    return Primitive(
        dnnl, made, {ArgumentRole.SRC: Query.SRC, ArgumentRole.WEIGHTS: Query.WEIGHTS, ArgumentRole.DST: Query.DST}
    )


def _layout(dims: tuple[int, int, int], transposed: bool) -> MemoryLayout:
    """Return the layout of matrices [batch, rows, columns] that are stored by rows, or by columns if `transposed`."""
    _, rows, columns = dims
    return MemoryLayout(dims, (rows * columns, 1, rows) if transposed else (rows * columns, columns, 1))
