"""Products of matrices of float32 by oneDNN.

Where NumPy's BLAS is as quick, the caller goes on with that: below `WORTHWHILE` multiplications. A large product is cut
into blocks, as in `aioflow_numpy.products`, and each runs in one of our threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from aioflow_numpy.threads import for_each, thread_count
from aioflow_onednn.codes import Argument, Query
from aioflow_onednn.library import library
from aioflow_onednn.primitives import Array, Finish, Layout, Primitive, address, described

__all__ = ["WORTHWHILE", "matmul"]

WORTHWHILE: Final = 2**20  # multiplications: a call costs as much as 2**18
_BLOCK: Final = 2**24  # multiplications of a block, at least
_KEPT: Final = 1024  # prepared products
_ARGUMENTS: Final = {Argument.SRC: Query.SRC, Argument.WEIGHTS: Query.WEIGHTS, Argument.DST: Query.DST}


def matmul(a: Array, b: Array, bias: Array | None = None, finish: Finish | None = None) -> Array:
    """The product of two matrices of float32, neither of them empty.

    Args:
        bias: One number for each column, contiguous.
        finish: What follows, done with each block of rows while it is in the cache.
    """
    a, b = _regular(a), _regular(b)
    (rows, inner), columns = a.shape, b.shape[1]
    product = np.empty((rows, columns), np.float32)
    blocks = max(1, min(rows * inner * columns // _BLOCK, thread_count()))
    by_rows = rows >= columns or blocks < 2
    size = rows if by_rows else columns

    def multiply(number: int) -> None:
        part = slice(size * number // blocks, size * (number + 1) // blocks)
        if by_rows:
            _multiply(a[part], b, bias, product[part])
            if finish is not None:
                finish(product[part])
        else:
            _multiply(a, b[:, part], None if bias is None else bias[part], product[:, part])

    for_each(multiply, range(blocks))
    if finish is not None and not by_rows:
        finish(product)
    return product


def _multiply(a: Array, b: Array, bias: Array | None, out: Array) -> None:
    prepared = _prepared(_layout(a), _layout(b), _layout(out), bias is not None)
    if bias is None:
        prepared.run(address(a), address(b), address(out))
    else:
        prepared.run(address(a), address(b), address(out), address(bias))


@lru_cache(maxsize=_KEPT)
def _prepared(a: Layout, b: Layout, out: Layout, has_bias: bool) -> Primitive:
    dnnl, arguments = library(), dict(_ARGUMENTS)
    biases = []
    if has_bias:
        arguments[Argument.BIAS] = Query.BIAS
        biases.append(Layout((1, out.dims[1]), (out.dims[1], 1)))
    with described(dnnl, (a, b, out, *biases)) as (left, right, product, *bias):
        made = dnnl.made(
            *("matmul_primitive_desc_create", dnnl.engine, left, right, bias[0] if bias else None, product),
            dnnl.attributes,
        )
    return Primitive(dnnl, made, arguments)


def _regular(matrix: Array) -> Array:
    """The matrix, or a copy, with its rows or its columns in one piece each, one after another."""
    rows, columns = matrix.shape
    down, right = matrix.strides
    by_rows = right == 4 and down >= 4 * columns and down % 4 == 0
    by_columns = down == 4 and right >= 4 * rows and right % 4 == 0
    regular = matrix.flags.aligned and (matrix.flags.c_contiguous or by_rows or by_columns)
    return matrix if regular else np.ascontiguousarray(matrix)


def _layout(matrix: Array) -> Layout:
    rows, columns = matrix.shape
    down, right = matrix.strides
    if matrix.flags.c_contiguous:  # strides of a single row or column say nothing
        return Layout((rows, columns), (columns, 1))
    return Layout((rows, columns), (down // 4, right // 4))
