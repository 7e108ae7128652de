"""Matrix decompositions and solvers for linear systems, for single matrices or batches, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, overload

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph import dtypes
from aioflow.graph.costs import Cost, Operand
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, broadcast_dims, format_dims, merge_dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.graph.traits import product
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list, make_tuple
from aioflow.ops.array.shape import matrix_transpose
from aioflow.ops.linalg.products import matmul
from aioflow.ops.math.reduction import reduce_by
from aioflow.ops.scoping import name_scope

# adjoint, logdet and slogdet are public as aioflow.linalg names only.
__all__ = [
    "cholesky",
    "cholesky_solve",
    "matrix_determinant",
    "matrix_inverse",
    "matrix_solve",
    "matrix_triangular_solve",
    "qr",
    "self_adjoint_eig",
    "self_adjoint_eigvals",
    "svd",
]


# ── definitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _square(ctx: ShapeContext, name: str = "input") -> Dims:
    """Return the dims of a batch of square matrices. Raise InvalidArgumentError if the last two sizes differ."""
    dims = ctx.require_rank(name, 2, -1)
    if dims is None:
        return None
    if dims[-1] is not None and dims[-2] is not None and dims[-1] != dims[-2]:
        raise InvalidArgumentError(
            "the matrices are not square", expected="equal last two sizes", actual=format_dims(dims)
        )
    # Either of the two equal sizes may be the known one.
    size = dims[-2] if dims[-1] is None else dims[-1]
    return (*dims[:-2], size, size)


def _determinant(ctx: ShapeContext) -> Dims:
    dims = _square(ctx)
    return None if dims is None else dims[:-2]


def _sign_and_log(ctx: ShapeContext) -> list[Dims]:
    return [_determinant(ctx)] * 2


def _solution(ctx: ShapeContext) -> Dims:
    matrix, rhs = _square(ctx, "matrix"), ctx.require_rank("rhs", 2, -1)
    # Only MatrixTriangularSolve broadcasts batch dimensions; MatrixSolve wants equal ones.
    spread = ctx.op_def.name == "MatrixTriangularSolve"
    # With equal batches, the unknown operand has the batch and the rows of the other one.
    if not spread and matrix is None and rhs is not None:
        matrix = (*rhs[:-2], rhs[-2], rhs[-2])
    elif not spread and rhs is None and matrix is not None:
        rhs = (*matrix[:-1], None)
    if matrix is None or rhs is None:
        return None
    merge_dims(matrix[-1:], rhs[-2:-1])
    batch = broadcast_dims([matrix[:-2], rhs[:-2]]) if spread else merge_dims(matrix[:-2], rhs[:-2])
    rows = matrix[-1] if rhs[-2] is None else rhs[-2]
    return (*(batch or ()), rows, rhs[-1])


def _eigen(ctx: ShapeContext) -> list[Dims]:
    dims = _square(ctx)
    # TensorFlow returns an empty vector for outputs that are not asked for.
    vectors = dims if ctx.attrs["compute_v"] else (0,)
    return [None if dims is None else dims[:-1], vectors]


def _singular(ctx: ShapeContext) -> list[Dims]:
    dims = ctx.require_rank("input", 2, -1)
    if dims is None:
        return [None, None, None] if ctx.attrs["compute_uv"] else [None, (0,), (0,)]
    rows, columns = dims[-2:]
    least = _least(rows, columns)
    values = (*dims[:-2], least)
    if not ctx.attrs["compute_uv"]:
        return [values, (0,), (0,)]
    if ctx.attrs["full_matrices"]:
        return [values, (*dims[:-2], rows, rows), (*dims[:-2], columns, columns)]
    return [values, (*dims[:-2], rows, least), (*dims[:-2], columns, least)]


def _orthogonal(ctx: ShapeContext) -> list[Dims]:
    dims = ctx.require_rank("input", 2, -1)
    if dims is None:
        return [None, None]
    rows, columns = dims[-2:]
    inner = rows if ctx.attrs["full_matrices"] else _least(rows, columns)
    return [(*dims[:-2], rows, inner), (*dims[:-2], inner, columns)]


def _least(a: int | None, b: int | None) -> int | None:
    # min(0, anything) is 0, even if the other size is unknown.
    if 0 in (a, b):
        return 0
    return None if a is None or b is None else min(a, b)


_T = "T: {float64, float32, float16, complexes}"


def _cubic(_: Attrs, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> float:
    """Return the multiply-adds: the number of elements times the length of a side."""
    return float(inputs[0].elements * (inputs[0].dims[-1] if inputs[0].dims else 1))


# A factorization costs a small multiple of n³. Eigenvalues and singular values iterate, with ten times the cost.
_FACTORIZATION: Final = Cost("product", _cubic, 4.0)
_DECOMPOSITION: Final = Cost("product", _cubic, 40.0)

define_op(
    "MatrixInverse",
    "input: T",
    "output: T",
    ["adjoint: bool = False", _T],
    shape=_square,
    rows=rows.last_axes(2),
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "MatrixDeterminant",
    "input: T",
    "output: T",
    [_T],
    shape=_determinant,
    rows=rows.last_axes(2),
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "LogMatrixDeterminant",
    "input: T",
    "sign: T, log_abs_determinant: T",
    [_T],
    shape=_sign_and_log,
    rows=rows.last_axes(2),
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "MatrixSolve",
    "matrix: T, rhs: T",
    "output: T",
    ["adjoint: bool = False", _T],
    shape=_solution,
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "MatrixTriangularSolve",
    "matrix: T, rhs: T",
    "output: T",
    ["lower: bool = True", "adjoint: bool = False", "T: {floats, complexes}"],
    shape=_solution,
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "Cholesky",
    "input: T",
    "output: T",
    [_T],
    shape=_square,
    rows=rows.last_axes(2),
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "CholeskyGrad",
    "l: T, grad: T",
    "output: T",
    ["T: {float16, float32, float64}"],
    shape=lambda ctx: _square(ctx, "l"),
    traits=product(cost=_FACTORIZATION),
)
define_op(
    "SelfAdjointEigV2",
    "input: T",
    "e: T, v: T",
    ["compute_v: bool = True", _T],
    shape=_eigen,
    rows=rows.last_axes(2),
    traits=product(cost=_DECOMPOSITION),
)
define_op(
    "Svd",
    "input: T",
    "s: T, u: T, v: T",
    ["compute_uv: bool = True", "full_matrices: bool = False", _T],
    shape=_singular,
    rows=rows.last_axes(2),
    traits=product(cost=_DECOMPOSITION),
)
define_op(
    "Qr",
    "input: T",
    "q: T, r: T",
    ["full_matrices: bool = False", _T],
    shape=_orthogonal,
    rows=rows.last_axes(2),
    traits=product(cost=_DECOMPOSITION),
)


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Return the conjugate transpose of each matrix."""
    return matrix_transpose(matrix, name or "adjoint", conjugate=True)


def _band(x: Tensor, lower: int, upper: int) -> Tensor:
    """Keep `lower` diagonals below the main one and `upper` above it; -1 keeps all. The rest is 0."""
    return make("MatrixBandPart", x, constant(lower, dtypes.int64), constant(upper, dtypes.int64))


def _lower_half(x: Tensor) -> Tensor:
    """Return the lower triangle with the diagonal halved."""
    return _band(x, -1, 0) - _band(x, 0, 0) * constant(0.5, dtype=x.dtype)


@gradient("MatrixInverse")
def _inverse_grad(op: Operation, grad: Tensor) -> Tensor:
    # Y = A⁻¹: dA = -Yᴴ dY Yᴴ. With adjoint, Y = A⁻ᴴ and dA = -Y dYᴴ Y.
    y = op.outputs[0]
    if op.get_attr("adjoint"):
        return -matmul(y, matmul(grad, y, adjoint_a=True))
    return -matmul(y, matmul(grad, y, adjoint_b=True), adjoint_a=True)


def _columns(x: Tensor) -> Tensor:
    """Append two dimensions of size 1."""
    return make("ExpandDims", make("ExpandDims", x, -1), -1)


@gradient("MatrixDeterminant")
def _determinant_grad(op: Operation, grad: Tensor) -> Tensor:
    # d(det A) = det A · tr(A⁻¹ dA), so the gradient is det A · A⁻ᴴ.
    inverse = make("MatrixInverse", op.inputs[0], adjoint=True)
    return _columns(grad * op.outputs[0]) * inverse


@gradient("LogMatrixDeterminant")
def _log_determinant_grad(op: Operation, _: Tensor | None, grad: Tensor | None) -> Tensor | None:
    # The sign is constant wherever it has a gradient.
    if grad is None:
        return None
    # d log |det A| = tr(A⁻¹ dA).
    inverse = make("MatrixInverse", op.inputs[0], adjoint=True)
    return _columns(grad) * inverse


@gradient("MatrixSolve")
def _solve_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    adjointed, x = op.get_attr("adjoint"), op.outputs[0]
    # A X = B: dB = A⁻ᴴ dX and dA = -dB Xᴴ. With adjoint, Aᴴ X = B: dB = A⁻¹ dX and dA = -X dBᴴ.
    grad_rhs = make("MatrixSolve", op.inputs[0], grad, adjoint=not adjointed)
    left, right = (x, grad_rhs) if adjointed else (grad_rhs, x)
    return [-matmul(left, right, adjoint_b=True), grad_rhs]


@gradient("MatrixTriangularSolve")
def _triangular_solve_grad(op: Operation, grad: Tensor) -> list[Tensor]:
    matrix, rhs = op.inputs
    lower, adjointed, x = op.get_attr("lower"), op.get_attr("adjoint"), op.outputs[0]
    grad_rhs = make("MatrixTriangularSolve", matrix, grad, lower=lower, adjoint=not adjointed)
    left, right = (x, grad_rhs) if adjointed else (grad_rhs, x)
    full = -matmul(left, right, adjoint_b=True)
    # The op reads one triangle, so only that has a gradient.
    grad_matrix = _band(full, -1, 0) if lower else _band(full, 0, -1)
    same = matrix.dims is not None and rhs.dims is not None and matrix.dims[:-2] == rhs.dims[:-2]
    # Sizes are compared only if all are known; otherwise the axes are found at run time.
    if same and None not in (matrix.dims or ())[:-2]:
        return [grad_matrix, grad_rhs]
    return _unspread([matrix, rhs], [grad_matrix, grad_rhs])


def _unspread(inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Sum gradients over the batch dimensions along which their inputs were broadcast."""
    shapes = [make("Shape", t) for t in inputs]
    batches = [make("StridedSlice", s, [0], [-2], [1], begin_mask=1) for s in shapes]
    axes = make_list("BroadcastGradientArgs", *batches)
    return [make("Reshape", make("Sum", g, a), s) for g, a, s in zip(grads, axes, shapes, strict=True)]


@gradient("Cholesky")
def _cholesky_grad(op: Operation, grad: Tensor) -> Tensor:
    """Return the gradient of the Cholesky factor; the result is symmetric.

    Murray, "Differentiation of the Cholesky decomposition" (2016), section 3.
    """
    factor = op.outputs[0]
    # A = L Lᴴ: dA = L⁻ᴴ Φ(Lᴴ dL) L⁻¹, made symmetric. Φ keeps the lower triangle and halves the diagonal.
    middle = _lower_half(matmul(factor, _band(grad, -1, 0), adjoint_a=True))
    left = make("MatrixTriangularSolve", factor, middle, adjoint=True)
    full = adjoint(make("MatrixTriangularSolve", factor, adjoint(left), adjoint=True))
    return (full + adjoint(full)) * constant(0.5, dtype=full.dtype)


@gradient("SelfAdjointEigV2")
def _eigen_grad(op: Operation, grad_e: Tensor | None, grad_v: Tensor | None) -> Tensor | None:
    if not op.get_attr("compute_v"):
        if grad_e is None:
            return None
        # The op did not compute the eigenvectors, but the gradient of the eigenvalues needs them.
        v = self_adjoint_eig(op.inputs[0])[1]
        # dA = V diag(de) Vᴴ.
        return _symmetric_input(matmul(v * make("ExpandDims", grad_e, -2), v, adjoint_b=True))
    e, v = op.outputs
    parts: list[Tensor] = []
    if grad_v is not None:
        # dA = V (F ∘ (Vᴴ dV)) Vᴴ with Fᵢⱼ = 1 / (eⱼ - eᵢ) and 0 on the diagonal.
        gaps = make("ExpandDims", e, -2) - make("ExpandDims", e, -1)
        inner = _safe_reciprocal(gaps) * matmul(v, grad_v, adjoint_a=True)
        parts.append(matmul(v, matmul(inner, v, adjoint_b=True)))
    if grad_e is not None:
        parts.append(matmul(v * make("ExpandDims", grad_e, -2), v, adjoint_b=True))
    return _symmetric_input(parts[0] if len(parts) == 1 else parts[0] + parts[1]) if parts else None


def _symmetric_input(grad: Tensor) -> Tensor:
    """Return the gradient with respect to a matrix of which the op reads only the lower triangle."""
    # Elements above the diagonal flow to those below it, which the op reads in their place.
    return _lower_half(grad + adjoint(grad))


def _safe_reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x, and 0 at 0."""
    # Equal eigenvalues have no well-defined eigenvectors. Without the epsilon, their 1 / 0 would make the gradients of
    # all other elements NaN.
    return make("RealDiv", x, x * x + constant(1e-20, dtype=x.dtype))


@gradient("Svd")
def _svd_grad(op: Operation, grad_s: Tensor | None, grad_u: Tensor | None, grad_v: Tensor | None) -> Tensor | None:
    """Return the gradient of the singular value decomposition.

    Giles, "Collected matrix derivative results" (2008), section 3.2, with the terms of a thin decomposition.
    """
    if not op.get_attr("compute_uv"):
        if grad_s is None:
            return None
        # The op did not compute the singular vectors, but the gradient of the singular values needs them.
        s, u, v = make_list("Svd", op.inputs[0])
        return matmul(u * make("ExpandDims", grad_s, -2), v, adjoint_b=True)
    if op.get_attr("full_matrices") or op.inputs[0].dtype.is_complex:
        raise UnimplementedError(
            "this kind of singular value decomposition has no gradient",
            expected="full_matrices=False and a real matrix",
            actual=f"full_matrices={op.get_attr('full_matrices')}, {op.inputs[0].dtype}",
        ).at(op.name, op.type, op.source)
    # dA = U diag(ds) Vᵀ + (terms of dU) Vᵀ + U (terms of dV)ᵀ.
    s, u, v = op.outputs
    row = make("ExpandDims", s, -2)
    squares = row * row
    # Fᵢⱼ = 1 / (sⱼ² - sᵢ²), and 0 on the diagonal.
    factor = _safe_reciprocal(squares - make("ExpandDims", s * s, -1))
    parts: list[Tensor] = []
    if grad_s is not None:
        parts.append(matmul(u * make("ExpandDims", grad_s, -2), v, transpose_b=True))
    if grad_u is not None:
        parts.append(matmul(_rotation(u, grad_u, factor, row), v, transpose_b=True))
    if grad_v is not None:
        parts.append(matmul(u, _rotation(v, grad_v, factor, row), transpose_b=True))
    return make("AddN", parts) if parts else None


def _rotation(vectors: Tensor, grad: Tensor, factor: Tensor, row: Tensor) -> Tensor:
    """Return the contribution of the gradient of singular vectors.

    It has a part inside the span of the vectors and, where the vectors do not fill the space, a part outside.
    """
    inner = matmul(vectors, grad, transpose_a=True)
    # U (F ∘ (Uᵀ dU - dUᵀ U)) S is the part inside the span, (I - U Uᵀ) dU S⁻¹ the part outside.
    turned = factor * (inner - adjoint(inner)) * row
    outside = (grad - matmul(vectors, inner)) / row
    return matmul(vectors, turned) + outside


@gradient("Qr")
def _qr_grad(op: Operation, grad_q: Tensor | None, grad_r: Tensor | None) -> Tensor | None:
    """Return the gradient of the QR decomposition; a wide matrix is split into two blocks.

    Walter and Lehmann, "Algorithmic differentiation of linear algebra functions" (2013).
    """
    dims, x = op.inputs[0].dims, op.inputs[0]
    rows, columns = dims[-2:] if dims is not None else (None, None)
    if rows is None or columns is None or (op.get_attr("full_matrices") and rows > columns) or x.dtype.is_complex:
        raise UnimplementedError(
            "this kind of QR decomposition has no gradient",
            expected="a real matrix of known size, and full_matrices=False if it is tall",
            actual=f"{format_dims(dims)} {x.dtype}, full_matrices={op.get_attr('full_matrices')}",
        ).at(op.name, op.type, op.source)
    q, r = op.outputs
    grad_q = make("ZerosLike", q) if grad_q is None else grad_q
    grad_r = make("ZerosLike", r) if grad_r is None else grad_r
    if rows >= columns:
        return _tall_qr_grad(q, r, grad_q, grad_r)
    # A wide matrix is [A B] with square A = q r[left]. As r[right] = qᴴ B, the gradient of r[right] also flows to q.
    left, right = (..., slice(None, rows)), (..., slice(rows, None))
    passed = grad_q + matmul(x[right], grad_r[right], adjoint_b=True)
    return make("ConcatV2", [_tall_qr_grad(q, r[left], passed, grad_r[left]), matmul(q, grad_r[right])], -1)


def _tall_qr_grad(q: Tensor, r: Tensor, grad_q: Tensor, grad_r: Tensor) -> Tensor:
    # M = R dRᴴ - dQᴴ Q; dA = (dQ + Q copyltu(M)) R⁻ᴴ, where copyltu mirrors the lower triangle.
    middle = matmul(r, grad_r, adjoint_b=True) - matmul(grad_q, q, adjoint_a=True)
    strict = _band(middle, -1, 0) - _band(middle, 0, 0)
    symmetric = strict + adjoint(strict) + _band(middle, 0, 0)
    flowing = grad_q + matmul(q, symmetric)
    # X R⁻ᴴ = (R⁻¹ Xᴴ)ᴴ, and R is upper triangular.
    return adjoint(make("MatrixTriangularSolve", r, adjoint(flowing), lower=False))


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def matrix_inverse(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the inverse of each square matrix; with `adjoint`, the inverse of its conjugate transpose.

    Raises:
        InvalidArgumentError: a matrix is not square, or not invertible.
    """
    return make("MatrixInverse", input, adjoint=adjoint, name=name)


def matrix_determinant(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the determinant of each square matrix."""
    return make("MatrixDeterminant", input, name=name)


def slogdet(input: TensorLike, name: str | None = None) -> SignAndLog:
    """Return the sign and the logarithm of the absolute value of the determinant of each square matrix."""
    return make_tuple(SignAndLog, "LogMatrixDeterminant", input, name=name)


def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Return the logarithm of the determinant of each Hermitian positive definite matrix.

    It is computed from the Cholesky factor.
    """
    x = convert_to_tensor(matrix)
    with name_scope(name, "logdet", [x]):
        diagonal = make("Einsum", [make("Cholesky", x)], equation="...ii->...i")
        if x.dtype.is_complex:
            diagonal = make("Real", diagonal, Tout=x.dtype.real_dtype)
        # det A = Π Lᵢᵢ², so its logarithm is 2 Σ log Lᵢᵢ.
        result: Tensor = 2.0 * reduce_by("Sum", make("Log", diagonal), -1, False, None)
    return result


def matrix_solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Solve `matrix x = rhs` for square matrices [..., m, m] and right-hand sides [..., m, k].

    With `adjoint`, solve `matrix^H x = rhs`.

    Raises:
        InvalidArgumentError: the shapes do not fit, or a matrix is not invertible.
    """
    return make("MatrixSolve", matrix, rhs, adjoint=adjoint, name=name)


def matrix_triangular_solve(
    matrix: TensorLike, rhs: TensorLike, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """Like `matrix_solve`, but read only the lower (or upper) triangle of `matrix`.

    Batch dimensions broadcast.
    """
    return make("MatrixTriangularSolve", matrix, rhs, lower=lower, adjoint=adjoint, name=name)


def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Return the lower triangular L with L L^H = input, for Hermitian positive definite matrices.

    Only the lower triangle of the input is read.

    Raises:
        InvalidArgumentError: a matrix is not positive definite.
    """
    return make("Cholesky", input, name=name)


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solve `A x = rhs`, given the Cholesky factor of A."""
    factor = convert_to_tensor(chol)
    with name_scope(name, "cholesky_solve", [factor, rhs]):
        # L Lᴴ x = b: first L y = b, then Lᴴ x = y.
        y = matrix_triangular_solve(factor, rhs)
        return matrix_triangular_solve(factor, y, adjoint=True)


class Eigen(NamedTuple):
    """The result of `self_adjoint_eig`."""

    e: Tensor
    v: Tensor


class Svd(NamedTuple):
    """The result of `svd`."""

    s: Tensor
    u: Tensor
    v: Tensor


class SignAndLog(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    log_abs_determinant: Tensor


class Qr(NamedTuple):
    """The result of `qr`."""

    q: Tensor
    r: Tensor


def self_adjoint_eig(tensor: TensorLike, name: str | None = None) -> Eigen:
    """Return the eigenvalues and eigenvectors of Hermitian matrices.

    The eigenvalues are [..., n], in ascending order; the eigenvectors are the columns of [..., n, n]. Only the lower
    triangle of a matrix is read.
    """
    return make_tuple(Eigen, "SelfAdjointEigV2", tensor, compute_v=True, name=name)


def self_adjoint_eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Return the eigenvalues [..., n] of Hermitian matrices, in ascending order."""
    return make_list("SelfAdjointEigV2", tensor, compute_v=False, name=name)[0]


@overload
def svd(
    tensor: TensorLike, full_matrices: bool = False, compute_uv: Literal[True] = True, name: str | None = None
) -> Svd: ...


@overload
def svd(
    tensor: TensorLike, full_matrices: bool = False, *, compute_uv: Literal[False], name: str | None = None
) -> Tensor: ...


def svd(
    tensor: TensorLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Svd | Tensor:
    """Return the singular value decomposition `tensor = u diag(s) v^H`. Singular values descend.

    Returns:
        (s [..., p], u [..., m, p], v [..., n, p]) with p = min(m, n). With `full_matrices`, u is [..., m, m] and v is
        [..., n, n]. Without `compute_uv`, s alone.
    """
    found = make_tuple(Svd, "Svd", tensor, compute_uv=compute_uv, full_matrices=full_matrices, name=name)
    return found if compute_uv else found.s


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> Qr:
    """Return the decomposition `input = q r`, with orthonormal columns of q and upper triangular r.

    q is [..., m, p] and r [..., p, n], with p = min(m, n), or p = m with `full_matrices`.
    """
    return make_tuple(Qr, "Qr", input, full_matrices=full_matrices, name=name)
