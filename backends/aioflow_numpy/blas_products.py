"""Matrix products by direct calls of a BLAS, without NumPy: the address of the function, and numbers.

NumPy has several ways to compute a product. If it may choose another way than the one here, there are no
`ProductParts`: for vectors, for a matrix and its own transpose or a part of it, and for elements that are not adjacent,
which it copies.

The arguments of the call follow from the memory layout of the matrices, so they are computed once per layout.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_int64, sizeof
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from aioflow.memory.values import Array, NpDType
from aioflow_numpy.addresses import address_of
from aioflow_numpy.blas import loaded_blas, symbol
from aioflow_numpy.compiled.crew import DOUBLE, SINGLE

_Lying: TypeAlias = tuple[NpDType, tuple[int, ...], tuple[int, ...]]  # dtype, shape, strides

_MOST: Final = 2**31 - 1  # elements along a side, or between two rows
_TYPES: Final[Mapping[np.dtype[Any], tuple[str, int]]] = {
    np.dtype(np.float32): ("cblas_sgemm", SINGLE),
    np.dtype(np.float64): ("cblas_dgemm", DOUBLE),
}


@dataclass(frozen=True, slots=True)
class Gemm:
    """A function of any library that multiplies matrices.

    Attributes:
        function: Its address.
        kind: Its calling convention, one of the kinds in `compiled.crew`.
        as_it_is: Its argument for a matrix whose rows are contiguous, by default CblasNoTrans.
        transposed: Its argument for a matrix whose columns are contiguous, by default CblasTrans.
        get_threads, set_threads: The addresses of the functions that control its threads; 0 if it has none.
    """

    function: int
    kind: int
    as_it_is: int = 111
    transposed: int = 112
    get_threads: int = 0
    set_threads: int = 0


@dataclass(frozen=True, slots=True)
class BlasProducts:
    """The functions of a BLAS.

    Attributes:
        integer: Its type of sizes, in C.
        functions: The function for each dtype.
    """

    integer: str
    functions: Mapping[np.dtype[Any], Gemm]


def find_products() -> BlasProducts | None:
    """Return the functions of NumPy's BLAS, or None unless that is OpenBLAS."""
    for blas in loaded_blas()[:1]:
        library = ctypes.CDLL(blas.library)
        found = {dtype: symbol(library, name) for dtype, (name, _) in _TYPES.items()}
        if None not in found.values():
            integer = "__INT64_TYPE__" if "USE64BITINT" in blas.config else "int"
            return BlasProducts(integer, {dtype: Gemm(address_of(found[dtype]), _TYPES[dtype][1]) for dtype in found})
    return None


@dataclass(frozen=True, slots=True)
class ProductParts:
    """The parts of one piece of work, for any arrays of one memory layout.

    Attributes:
        fields: The values of `compiled.crew.FIELDS` for one part after another.
        count: The number of parts.
        where: The address of the fields.
    """

    fields: ctypes.Array[c_int64]
    count: int
    where: int

    @classmethod
    def of(cls, fields: Sequence[int], count: int) -> ProductParts:
        """Return parts with these fields."""
        held = (c_int64 * len(fields))(*fields)
        return cls(held, count, addressof(held))

    def one(self, number: int) -> ProductParts:
        """Return one part."""
        return ProductParts(self.fields, 1, self.where + number * sizeof(self.fields) // self.count)


def product_parts(
    gemm: Gemm, a: Array, b: Array, out: Array, bounds: tuple[int, ...], by_rows: bool
) -> ProductParts | None:
    """Return the product of two matrices in parts.

    Return None if NumPy may compute the product in another way, or would raise an error.

    Args:
        gemm: The function for the dtype of `a`.
        a: The left matrix.
        b: The right matrix.
        out: The result.
        bounds: The bounds of the parts, along the rows or the columns of `out`.
        by_rows: Whether the parts divide the rows.
    """
    return _parts(gemm, _lying(a), _lying(b), _lying(out), bounds, by_rows) if _are_plain(a, b, out) else None


def inner_parts(
    gemm: Gemm, a: Array, b: Array, sums: Array, bounds: tuple[int, ...], pieces: int
) -> ProductParts | None:
    """Return the product in parts along the inner dimension; the sum of their products is the product.

    Return None where `product_parts` does, and if the rows of `b` are not contiguous.

    Args:
        gemm: The function for the dtype of `a`.
        a: The left matrix.
        b: The right matrix.
        sums: The products [parts, rows, columns].
        bounds: The bounds of the parts.
        pieces: The number of pieces in which each part is summed up.
    """
    if not _are_plain(a, b, sums):
        return None
    return _inner_parts(gemm, _lying(a), _lying(b), _lying(sums[0]), sums.strides[0], bounds, pieces)


def _are_plain(a: Array, b: Array, out: Array) -> bool:
    # NumPy multiplies a matrix by its own transpose with another function of the BLAS (syrk).
    return a.flags.aligned and b.flags.aligned and out.flags.behaved and not np.may_share_memory(a, b)


def _lying(matrix: Array) -> _Lying:
    return matrix.dtype, matrix.shape, matrix.strides


@lru_cache(maxsize=1024)
def _parts(
    gemm: Gemm, a: _Lying, b: _Lying, out: _Lying, bounds: tuple[int, ...], by_rows: bool
) -> ProductParts | None:
    laid = _all_laid(gemm, a, b, out)
    if laid is None:
        return None
    (rows, inner), columns, (left, right, result) = a[1], b[1][1], laid
    down, across = (a[2][0], 0, out[2][0]), (0, b[2][1], out[2][1])  # bytes to the next row, and to the next column
    fields: list[int] = []
    for start, stop in pairwise(bounds):
        m, n = (stop - start, columns) if by_rows else (rows, stop - start)
        at_a, at_b, at_c = (start * step for step in (down if by_rows else across))
        head = gemm.function, gemm.kind, left[0], right[0], m, n, inner
        # In the order of `FIELDS`. There is one piece, so the steps along the inner dimension are not used.
        fields += *head, at_a, left[1], at_b, right[1], at_c, result[1], gemm.get_threads, gemm.set_threads, 1, 0, 0
    return ProductParts.of(fields, len(bounds) - 1)


@lru_cache(maxsize=1024)
def _inner_parts(
    gemm: Gemm, a: _Lying, b: _Lying, out: _Lying, beside: int, bounds: tuple[int, ...], pieces: int
) -> ProductParts | None:
    laid = _all_laid(gemm, a, b, out)
    if laid is None or laid[1][0] != gemm.as_it_is:  # the pieces are whole rows of `b`
        return None
    (rows, _), columns, (left, right, result) = a[1], b[1][1], laid
    across, down = a[2][1], b[2][0]  # bytes to the next inner element
    fields: list[int] = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        fields += gemm.function, gemm.kind, left[0], right[0], rows, columns, stop - start
        fields += start * across, left[1], start * down, right[1], number * beside, result[1]
        fields += gemm.get_threads, gemm.set_threads, pieces, across, down
    return ProductParts.of(fields, len(bounds) - 1)


def _all_laid(gemm: Gemm, a: _Lying, b: _Lying, out: _Lying) -> tuple[tuple[int, int], ...] | None:
    """Return `_laid` of the operands and the result, or None if NumPy may compute the product in another way."""
    (rows, inner), columns = a[1], b[1][1]
    # NumPy multiplies vectors by other functions of the BLAS, hence at least 2 along each side.
    if inner != b[1][0] or out[1] != (rows, columns) or not a[0] == b[0] == out[0] or min(rows, inner, columns) < 2:
        return None
    left, right, result = (_laid(gemm, each) for each in (a, b, out))
    if left is None or right is None or result is None or result[0] != gemm.as_it_is:
        return None
    if max(rows, inner, columns, left[1], right[1], result[1]) > _MOST:
        return None
    return left, right, result


def _laid(gemm: Gemm, matrix: _Lying) -> tuple[int, int] | None:
    """Return the library's argument for a matrix layout, and the leading dimension; None if NumPy would copy it."""
    dtype, (rows, columns), (down, right) = matrix
    size = dtype.itemsize
    # Rows may be further apart than they are long, but may not overlap.
    if right == size and down >= columns * size and down % size == 0:
        return gemm.as_it_is, down // size
    if down == size and right >= rows * size and right % size == 0:
        return gemm.transposed, right // size
    return None
