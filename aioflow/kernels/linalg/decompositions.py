"""Kernels of decompositions and linear systems, by the LAPACK wrappers of the array namespace.

Half precision is computed in float32, the narrowest dtype of LAPACK.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, Value

_LARGE: Final = 400  # rows of a matrix that takes some milliseconds to factor
_SINGULAR: Final = "Input is not invertible."
_WORK: Final = 1 << 24  # multiply-adds of one call, counted as for a matrix product
_BLOCK: Final = 64  # below this size a triangular system is solved as a general one


def _adjoint(xp: Namespace, x: Array) -> Array:
    turned = x.swapaxes(-1, -2)
    return xp.conj(turned) if x.dtype.kind == "c" else turned


def _computable(x: Array) -> Array:
    """Return the array in a dtype that LAPACK supports."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def _in_batches(xp: Namespace, function: Callable[..., Any], *arrays: Array) -> Any:
    """Call a function of (batches of) matrices for a few matrices at a time, with checkpoints between the calls."""
    rows, matrix = arrays[0].shape[:-2], arrays[0].shape[-2:]
    work = math.prod(matrix) * max(matrix)
    # A single matrix cannot be divided.
    if math.prod(rows) * work <= _WORK or not rows:
        return function(*arrays)
    flat = [array.reshape(-1, *array.shape[-2:]) for array in arrays]
    made = [function(*(array[part] for array in flat)) for part in blocks(len(flat[0]), max(1, _WORK // work))]
    if not isinstance(made[0], tuple):
        return _joined(xp, made, rows)
    return tuple(_joined(xp, parts, rows) for parts in zip(*made, strict=True))


def _joined(xp: Namespace, parts: Sequence[Array], rows: tuple[int, ...]) -> Array:
    whole = xp.concatenate(parts)
    return whole.reshape(*rows, *whole.shape[1:])


def _require_matrices(x: Array) -> None:
    if x.ndim < 2:
        raise InvalidArgumentError("not matrices", expected="rank >= 2", actual=x.shape)


def _require_square(x: Array) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise InvalidArgumentError("the matrices are not square", expected="(..., n, n)", actual=x.shape)


def _singular(error: Exception) -> InvalidArgumentError:
    made = InvalidArgumentError(_SINGULAR, expected="invertible matrices", actual="a singular one")
    made.__cause__ = error
    return made


@kernel("MatrixInverse", fresh=True)
def matrix_inverse(xp: Namespace, input: Array, *, adjoint: bool) -> Array:
    _require_square(input)
    x = _computable(input)
    try:
        inverse: Array = _in_batches(xp, xp.linalg.inv, _adjoint(xp, x) if adjoint else x)
        return inverse.astype(input.dtype, copy=False)
    except np.linalg.LinAlgError as error:
        raise _singular(error) from error


def _holds_the_interpreter(x: Value) -> bool:
    """Return True if NumPy would hold the GIL for long, which blocks the event loop."""
    return isinstance(x, np.ndarray) and x.shape[-1] > _LARGE


def _factored(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """Return the diagonal of R in x = QR, and the determinant of Q.

    The diagonal is 0 for a matrix with a row of zeros, which rounding would hide.
    """
    # In raw mode the result is transposed; it holds R, and beside it the vectors of the Householder reflections.
    reflectors, scales = xp.linalg.qr(x, mode="raw")
    diagonal = np.diagonal(reflectors, axis1=-2, axis2=-1) * np.all(x.any(axis=-1), axis=-1)[..., None]
    if x.dtype.kind != "c":
        # For a real matrix, each reflection whose scale is not 0 has the determinant -1.
        return diagonal, 1 - 2 * (np.count_nonzero(scales, axis=-1) % 2).astype(x.dtype)
    # The determinant of I - τ v vᴴ is 1 - τ |v|². The first element of v is 1 and is not stored.
    squares = 1 + np.sum(np.abs(np.triu(reflectors, 1)) ** 2, axis=-1)
    return diagonal, np.prod(1 - scales * squares, axis=-1)


def _det_by_qr(xp: Namespace, x: Array) -> Array:
    diagonal, turned = _factored(xp, x)
    determinant: Array = np.prod(diagonal, axis=-1) * turned
    return determinant


def _slogdet_by_qr(xp: Namespace, x: Array) -> tuple[Array, Array]:
    diagonal, turned = _factored(xp, x)
    sizes = np.abs(diagonal)
    # A singular matrix keeps a 0 here, which makes its sign 0.
    signs = diagonal / np.where(sizes == 0, 1, sizes)
    return np.prod(signs, axis=-1) * turned, np.sum(np.log(sizes), axis=-1)


@kernel("MatrixDeterminant", fresh=True)
def matrix_determinant(xp: Namespace, input: Array) -> Array:
    _require_square(input)
    det = partial(_det_by_qr, xp) if _holds_the_interpreter(input) else xp.linalg.det
    found: Array = _in_batches(xp, det, _computable(input))
    return found.astype(input.dtype)


@kernel("LogMatrixDeterminant", fresh=True)
def log_matrix_determinant(xp: Namespace, input: Array) -> tuple[Array, Array]:
    _require_square(input)
    slogdet = partial(_slogdet_by_qr, xp) if _holds_the_interpreter(input) else xp.linalg.slogdet
    sign, log = _in_batches(xp, slogdet, _computable(input))
    return sign.astype(input.dtype), log.astype(input.dtype)


def _require_solvable(matrix: Array, rhs: Array, spread: bool) -> None:
    _require_square(matrix)
    batches = matrix.shape[:-2], rhs.shape[:-2]
    fits = rhs.ndim >= 2 and rhs.shape[-2] == matrix.shape[-1]
    if fits and batches[0] != batches[1]:
        pairs = zip(reversed(batches[0]), reversed(batches[1]), strict=False)
        fits = spread and all(a == b or 1 in (a, b) for a, b in pairs)
    if not fits:
        raise InvalidArgumentError(
            "the right-hand sides do not fit the matrices",
            expected=f"{matrix.shape[:-1]} and any number of columns",
            actual=rhs.shape,
        )


@kernel("MatrixSolve", fresh=True)
def matrix_solve(xp: Namespace, matrix: Array, rhs: Array, *, adjoint: bool) -> Array:
    _require_solvable(matrix, rhs, False)
    a, b = _computable(matrix), _computable(rhs)
    try:
        found: Array = _in_batches(xp, xp.linalg.solve, _adjoint(xp, a) if adjoint else a, b)
        return found.astype(matrix.dtype, copy=False)
    except np.linalg.LinAlgError as error:
        raise _singular(error) from error


@kernel("MatrixTriangularSolve", fresh=True, synchronises=True)
def matrix_triangular_solve(xp: Namespace, matrix: Array, rhs: Array, *, lower: bool, adjoint: bool) -> Array:
    _require_solvable(matrix, rhs, True)
    a, b = _computable(matrix), _computable(rhs)
    if (xp.diagonal(a, axis1=-2, axis2=-1) == 0).any():
        raise InvalidArgumentError(
            "Input matrix is not invertible.", expected="no zero on the diagonal", actual="a zero"
        )
    # The adjoint of a lower triangle is an upper one.
    if adjoint:
        a, lower = _adjoint(xp, a), not lower
    return _substitute(xp, a, b, lower).astype(matrix.dtype, copy=False)


def _substitute(xp: Namespace, a: Array, b: Array, lower: bool) -> Array:
    """Solve by forward or backward substitution in halves, so that nearly all the work is matrix products."""
    size = a.shape[-1]
    if size <= _BLOCK:
        # Only one triangle belongs to the matrix; the other one may hold anything.
        return xp.linalg.solve(xp.tril(a) if lower else xp.triu(a), b)
    half = size // 2
    first, second = slice(None, half), slice(half, None)
    if not lower:
        first, second = second, first
    x_first = _substitute(xp, a[..., first, first], b[..., first, :], lower)
    rest = b[..., second, :] - xp.matmul(a[..., second, first], x_first)
    x_second = _substitute(xp, a[..., second, second], rest, lower)
    return xp.concatenate([x_first, x_second] if lower else [x_second, x_first], axis=-2)


@kernel("Cholesky", fresh=True)
def cholesky(xp: Namespace, input: Array) -> Array:
    _require_square(input)
    try:
        factor: Array = _in_batches(xp, xp.linalg.cholesky, _computable(input))
        return factor.astype(input.dtype, copy=False)
    except np.linalg.LinAlgError as error:
        raise InvalidArgumentError(
            "Cholesky decomposition was not successful. The input might not be valid.",
            expected="positive definite matrices",
            actual="one that is not",
        ) from error


@kernel("CholeskyGrad", fresh=True)
def cholesky_grad(xp: Namespace, l: Array, grad: Array) -> Array:  # noqa: E741  # the op's own name for the factor
    _require_square(l)
    if grad.shape != l.shape:
        raise InvalidArgumentError("the gradient does not have the factor's shape", expected=l.shape, actual=grad.shape)
    factor, flowing = _computable(l), xp.tril(_computable(grad))
    # The result is (S + Sᵀ) / 2, where S = L⁻ᵀ Φ(LᵀG) L⁻¹ and Φ takes the lower triangle with half of the diagonal.
    middle = xp.tril(xp.matmul(factor.swapaxes(-1, -2), flowing))
    middle = middle - xp.eye(l.shape[-1], dtype=middle.dtype) * middle / 2
    upper = factor.swapaxes(-1, -2)
    left = _substitute(xp, upper, middle, False)
    full = _substitute(xp, upper, left.swapaxes(-1, -2), False)
    return ((full + full.swapaxes(-1, -2)) / 2).astype(l.dtype, copy=False)


@kernel("SelfAdjointEigV2", fresh=True, synchronises=True)
def self_adjoint_eig(xp: Namespace, input: Array, *, compute_v: bool) -> tuple[Array, Array]:
    _require_square(input)
    x = _computable(input)
    if not xp.isfinite(xp.tril(x)).all():  # values above the diagonal are not read
        raise _not_decomposed()
    try:
        if not compute_v:
            return _in_batches(xp, xp.linalg.eigvalsh, x).astype(input.dtype, copy=False), xp.empty((0,), input.dtype)
        e, v = _in_batches(xp, xp.linalg.eigh, x)
    except np.linalg.LinAlgError as error:
        raise _not_decomposed() from error
    return e.astype(input.dtype, copy=False), v.astype(input.dtype, copy=False)


def _not_decomposed() -> InvalidArgumentError:
    return InvalidArgumentError(
        "Self-adjoint eigen decomposition was not successful. The input might not be valid.",
        expected="finite matrices",
        actual="one that is not",
    )


@kernel("Svd", fresh=True, synchronises=True)
def svd(xp: Namespace, input: Array, *, compute_uv: bool, full_matrices: bool) -> tuple[Array, Array, Array]:
    _require_matrices(input)
    x, own = _computable(input), input.dtype
    finite = xp.all(xp.isfinite(x), axis=(-2, -1), keepdims=True)
    # LAPACK may not terminate for values that are not finite. Their results are NaN, as in TensorFlow.
    if not finite.all():
        parts = svd(xp, xp.where(finite, input, 0), compute_uv=compute_uv, full_matrices=full_matrices)
        s, *others = (
            xp.where(finite if p.ndim == x.ndim else finite[..., 0], p, xp.nan) if p.size else p for p in parts
        )
        return s.astype(own, copy=False), others[0].astype(own, copy=False), others[1].astype(own, copy=False)
    if not compute_uv:
        s = _in_batches(xp, lambda m: xp.linalg.svd(m, compute_uv=False), x)
        return s.astype(own, copy=False), xp.empty((0,), dtype=own), xp.empty((0,), dtype=own)
    u, s, vh = _in_batches(xp, lambda m: xp.linalg.svd(m, full_matrices=full_matrices), x)
    return s.astype(own, copy=False), u.astype(own, copy=False), _adjoint(xp, vh).astype(own, copy=False)


@binder("Qr", fresh=True)
def bind_qr(binding: Binding) -> KernelBody:
    xp, own = binding.xp, binding.output_dtypes[0]
    decompose = partial(xp.linalg.qr, mode="complete" if binding.attrs["full_matrices"] else "reduced")

    def decomposed(x: Array) -> tuple[Array, ...]:
        _require_matrices(x)
        if own is not dtypes.float16:
            return tuple(_in_batches(xp, decompose, x))
        return tuple(part.astype(own.np_dtype) for part in _in_batches(xp, decompose, x.astype(np.float32)))

    return decomposed
