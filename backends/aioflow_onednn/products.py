"""Products of matrices of float32 by oneDNN's `dnnl_sgemm`.

Where NumPy's BLAS is as quick, the caller goes on with that: for few `COLUMNS` or less than `WORTHWHILE`
multiplications, and where vectors are short (`are_quicker`). In one thread of a processor with vectors of 512 bits it
takes 0.9 to 0.95 of OpenBLAS's time for products of a training step, and half of it for few rows, since it does not
copy the right matrix then; a primitive, which costs more to call, takes as long as it or longer.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from aioflow_numpy import products
from aioflow_numpy.addresses import address, address_of
from aioflow_numpy.blas_products import Gemm
from aioflow_numpy.compiled.crew import WITH_LETTERS
from aioflow_onednn.library import library
from aioflow_onednn.primitives import Array

__all__ = ["COLUMNS", "WORTHWHILE", "are_quicker", "matmul"]

WORTHWHILE: Final = 2**20  # multiplications
COLUMNS: Final = 8  # of the product: with two, OpenBLAS takes half the time


def are_quicker() -> bool:
    """Whether large products are quicker than OpenBLAS's. On processors without vectors of 512 bits they take as long,
    or up to a half longer.
    """
    return library().has_wide_vectors


def matmul(a: Array, b: Array) -> Array:
    """The product of two matrices of float32, neither of them empty."""
    return products.in_parts(_regular(a), _regular(b), None, _multiply, _gemm())


@cache
def _gemm() -> Gemm:
    dnnl = library()
    return Gemm(address_of(dnnl.function("sgemm")), WITH_LETTERS, ord("N"), ord("T"), *dnnl.thread_functions())


def _multiply(a: Array, b: Array, out: Array) -> None:
    (rows, inner), columns = a.shape, b.shape[1]
    left, right = _lying(a), _lying(b)
    sides = left[0], right[0], rows, columns, inner
    library().call("sgemm", *sides, 1.0, address(a), left[1], address(b), right[1], 0.0, address(out), _lying(out)[1])


def _regular(matrix: Array) -> Array:
    """The matrix, or a copy, with its rows or its columns in one piece each, one after another."""
    rows, columns = matrix.shape
    down, right = matrix.strides
    by_rows = right == 4 and down >= 4 * columns and down % 4 == 0
    by_columns = down == 4 and right >= 4 * rows and right % 4 == 0
    regular = matrix.flags.aligned and (matrix.flags.c_contiguous or by_rows or by_columns)
    return matrix if regular else np.ascontiguousarray(matrix)


def _lying(matrix: Array) -> tuple[bytes, int]:
    """How a regular matrix lies: whether it is read transposed, and the elements between two of its rows or columns."""
    down, right = matrix.strides
    if matrix.flags.c_contiguous:  # strides of a single row or column say nothing
        return b"N", matrix.shape[1]
    return (b"N", down // 4) if right == 4 else (b"T", right // 4)
