"""Products of float32 matrices by oneDNN's `dnnl_sgemm`.

The caller keeps using NumPy's BLAS where that is as fast: for few `COLUMNS`, less than `WORTHWHILE` multiplications,
and on processors with short vectors (`are_quicker`). In one thread of a processor with vectors of 512 bits,
`dnnl_sgemm` takes 0.9 to 0.95 of OpenBLAS's time for products of a training step. For few rows it takes half the time,
since it does not copy the right matrix then. A primitive, which costs more to call, takes as long or longer.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from aioflow.memory.values import Array
from aioflow_numpy import products
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.blas_products import Gemm
from aioflow_numpy.compiled.crew import WITH_LETTERS
from aioflow_onednn.library import library

WORTHWHILE: Final = 2**20  # multiplications
COLUMNS: Final = 8  # minimum columns of the product: with two, OpenBLAS takes half the time


def are_quicker() -> bool:
    """Return True if large products are faster than OpenBLAS's.

    On processors without vectors of 512 bits they take as long, or up to half as long again.
    """
    return library().has_wide_vectors


def matmul(a: Array, b: Array) -> Array:
    """Return the product of two float32 matrices that are not empty."""
    return products.in_parts(_regular(a), _regular(b), None, _multiply, _gemm())


@cache
def _gemm() -> Gemm:
    dnnl = library()
    # oneDNN's letters for a matrix as it is, and for a transposed one.
    return Gemm(address_of(dnnl.function("sgemm")), WITH_LETTERS, ord("N"), ord("T"), *dnnl.thread_functions())


def _multiply(a: Array, b: Array, out: Array) -> None:
    (rows, inner), columns = a.shape, b.shape[1]
    left, right = _lying(a), _lying(b)
    sides = left[0], right[0], rows, columns, inner
    library().call("sgemm", *sides, 1.0, address(a), left[1], address(b), right[1], 0.0, address(out), _lying(out)[1])


def _regular(matrix: Array) -> Array:
    """Return the matrix, or a copy, with contiguous rows or contiguous columns that do not overlap."""
    rows, columns = matrix.shape
    down, right = matrix.strides
    by_rows = right == 4 and down >= 4 * columns and down % 4 == 0
    by_columns = down == 4 and right >= 4 * rows and right % 4 == 0
    # float32 has 4 bytes. A leading dimension is a whole number of elements.
    regular = matrix.flags.aligned and (matrix.flags.c_contiguous or by_rows or by_columns)
    return matrix if regular else np.ascontiguousarray(matrix)


def _lying(matrix: Array) -> tuple[bytes, int]:
    """Return BLAS's letter for a regular matrix (transposed or not), and its leading dimension."""
    down, right = matrix.strides
    if matrix.flags.c_contiguous:  # the stride of a single row or column is arbitrary
        return b"N", matrix.shape[1]
    return (b"N", down // 4) if right == 4 else (b"T", right // 4)
