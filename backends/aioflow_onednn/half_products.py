"""Products of bfloat16 matrices by oneDNN, on processors that have instructions for them.

Sums are float32 and rounded once, as in the kernel below, which converts the matrices to float32. The instructions
treat denormal numbers as zero. In one thread they compute twice as much as those of float32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from aioflow.graph.dtypes import bfloat16
from aioflow.memory.values import Array
from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import ArgumentRole, DataType, Query
from aioflow_onednn.library import library
from aioflow_onednn.primitives import MemoryLayout, Primitive, address, described, plain

WORTHWHILE: Final = 2**19  # multiplications
_BLOCK: Final = 2**25  # minimum multiplications of a block
_KEPT: Final = 1024  # prepared products
_ARGUMENTS: Final = {ArgumentRole.SRC: Query.SRC, ArgumentRole.WEIGHTS: Query.WEIGHTS, ArgumentRole.DST: Query.DST}


def are_quicker() -> bool:
    """Return True if this processor has instructions for bfloat16."""
    return library().has_bfloat16


def matmul(a: Array, b: Array) -> Array:
    """Return the product of two bfloat16 matrices that are not empty."""
    a, b = _regular(a), _regular(b)
    (rows, inner), columns = a.shape, b.shape[1]
    product = np.empty((rows, columns), bfloat16.np_dtype)
    # Rows or columns are divided, never the inner elements, whose sums would have to be added.
    blocks = max(1, min(rows * inner * columns // _BLOCK, thread_count(), max(rows, columns)))

    def multiply(number: int) -> None:
        if rows >= columns:
            part = slice(rows * number // blocks, rows * (number + 1) // blocks)
            _multiply(a[part], b, product[part])
        else:
            part = slice(columns * number // blocks, columns * (number + 1) // blocks)
            _multiply(a, b[:, part], product[:, part])

    for_each(multiply, range(blocks))
    return product


def _multiply(a: Array, b: Array, out: Array) -> None:
    _prepared(_layout(a), _layout(b), _layout(out)).run(address(a), address(b), address(out))


@lru_cache(maxsize=_KEPT)
def _prepared(a: MemoryLayout, b: MemoryLayout, out: MemoryLayout) -> Primitive:
    dnnl = library()
    with described(dnnl, (a, b, out)) as (left, right, product):
        made = dnnl.made("matmul_primitive_desc_create", dnnl.engine, left, right, None, product, dnnl.attributes)
    return Primitive(dnnl, made, _ARGUMENTS)


def _regular(matrix: Array) -> Array:
    """Return the matrix, or a copy, stored contiguously by rows or by columns."""
    return matrix if matrix.flags.f_contiguous and matrix.flags.aligned else plain(matrix)


def _layout(matrix: Array) -> MemoryLayout:
    """Return the layout of a regular matrix, or of a range of its rows or columns."""
    size, (rows, columns), (down, across) = matrix.itemsize, matrix.shape, matrix.strides
    if matrix.flags.c_contiguous:  # the stride of a single row or column is arbitrary
        return MemoryLayout((rows, columns), (columns, 1), DataType.BF16)
    return MemoryLayout((rows, columns), (down // size, across // size), DataType.BF16)
