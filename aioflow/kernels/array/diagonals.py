"""Kernels of diagonals and bands."""

from __future__ import annotations

import math

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, claim_array, on_host
from aioflow.kernels.convert import as_int
from aioflow.kernels.registry import kernel
from aioflow.memory.values import Array, Namespace


@kernel("Diag", fresh=True)
def diag(xp: Namespace, diagonal: Array) -> Array:
    return _on_diagonals(xp, diagonal.reshape(1, -1)).reshape(diagonal.shape * 2)


def _on_diagonals(xp: Namespace, rows: Array) -> Array:
    """Return a matrix for each row, with the row on its diagonal and zeros elsewhere."""
    count, size = rows.shape
    claim_array((count, size, size), rows.dtype)
    result = xp.zeros((count, size, size), rows.dtype)
    lines, flat = result.reshape(count * size, size), rows.reshape(-1)
    # Line n of all matrices together has its diagonal element in column n modulo `size`.
    for part in blocks(len(flat), max(1, BLOCK // size) if on_host(xp) else max(1, len(flat))) if size else ():
        places = xp.arange(part.start, part.stop)
        lines[places, places % size] = flat[part]
    return result


@kernel("DiagPart", fresh=True)
def diag_part(xp: Namespace, value: Array) -> Array:
    half = value.ndim // 2
    if value.ndim % 2 or not value.ndim or value.shape[:half] != value.shape[half:]:
        raise InvalidArgumentError(
            "the halves of the shape differ", expected="an even rank and equal halves", actual=list(value.shape)
        )
    count = math.prod(value.shape[:half])
    # As a square matrix, a tensor whose shape has equal halves has its diagonal at [i, i].
    places = xp.arange(count)
    return value.reshape((count, count))[places, places].reshape(value.shape[:half])


def _check_matrix(value: Array) -> None:
    if value.ndim < 2:
        raise InvalidArgumentError("a matrix has two dimensions", expected="rank >= 2", actual=list(value.shape))


@kernel("MatrixDiag", fresh=True)
def matrix_diag(xp: Namespace, diagonal: Array) -> Array:
    if diagonal.ndim < 1:
        raise InvalidArgumentError("a diagonal is a vector", expected="rank >= 1", actual=list(diagonal.shape))
    size = diagonal.shape[-1]
    rows = diagonal.reshape(math.prod(diagonal.shape[:-1]), size)
    return _on_diagonals(xp, rows).reshape(*diagonal.shape, size)


@kernel("MatrixDiagPart", fresh=True)
def matrix_diag_part(xp: Namespace, value: Array) -> Array:
    _check_matrix(value)
    places = xp.arange(min(value.shape[-2:]))
    return value[..., places, places]


@kernel("MatrixSetDiag", fresh=True)
def matrix_set_diag(xp: Namespace, value: Array, diagonal: Array) -> Array:
    _check_matrix(value)
    wanted = (*value.shape[:-2], min(value.shape[-2:]))
    if diagonal.shape != wanted:
        raise InvalidArgumentError(
            "the diagonal does not fit the matrix", expected=list(wanted), actual=list(diagonal.shape)
        )
    result = value.copy()
    places = xp.arange(wanted[-1])
    result[..., places, places] = diagonal
    return result


@kernel("MatrixBandPart", host={"num_lower": as_int, "num_upper": as_int}, fresh=True)
def matrix_band_part(xp: Namespace, value: Array, num_lower: int, num_upper: int) -> Array:
    _check_matrix(value)
    rows, columns = value.shape[-2:]
    if num_lower > rows or num_upper > columns:
        raise InvalidArgumentError(
            "the band is wider than the matrix",
            expected=f"at most {rows} below and {columns} above",
            actual=(num_lower, num_upper),
        )
    # Positive above the main diagonal, negative below it.
    offset = xp.arange(columns)[None, :] - xp.arange(rows)[:, None]
    # A negative `num_lower` or `num_upper` keeps the whole triangle on its side.
    inside = xp.ones((rows, columns), bool)
    if num_lower >= 0:
        inside &= offset >= -num_lower
    if num_upper >= 0:
        inside &= offset <= num_upper
    # Not a product with the mask, which would turn infinite elements outside the band into NaN.
    return xp.where(inside, value, xp.zeros((), value.dtype))
