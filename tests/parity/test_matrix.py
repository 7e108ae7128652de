"""Matrix products, einsum, decompositions and norms against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.ops.apply import make_list
from aioflow.testing.evaluate import evaluate
from tests.parity.samples import sample, tolerance

FLAGS = [(False, False), (True, False), (False, True), (True, True)]
MATMUL_TYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "complex64", "complex128"]


def turned(shape: tuple[int, ...], flag: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if flag else shape


# ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", MATMUL_TYPES)
@pytest.mark.parametrize(("ta", "tb"), FLAGS)
def test_matmul(parity: Any, dtype: str, ta: bool, tb: bool) -> None:
    a, b = sample(dtype, turned((3, 4), ta)), sample(dtype, turned((4, 5), tb), 1)
    grad = "int" not in dtype
    parity(lambda m, x, y: m.matmul(x, y, transpose_a=ta, transpose_b=tb), a, b, grad=grad, **tolerance(dtype))


@pytest.mark.parametrize(("ta", "tb"), FLAGS)
def test_matmul_of_adjoints(parity: Any, ta: bool, tb: bool) -> None:
    a, b = sample("complex64", turned((3, 4), ta)), sample("complex64", turned((4, 5), tb), 1)
    parity(lambda m, x, y: m.matmul(x, y, adjoint_a=ta, adjoint_b=tb), a, b)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1), (1, 5, 1)])
def test_matmul_edges(parity: Any, m: int, k: int, n: int) -> None:
    parity(lambda mod, x, y: mod.matmul(x, y), sample("float32", (m, k)), sample("float32", (k, n), 1))


@pytest.mark.parametrize("shapes", [(None, None), ((None, None), (None, None)), ((None, 4), None)])
def test_matmul_unknown_shapes(parity: Any, shapes: Any) -> None:
    a, b = sample("float32", (3, 4)), sample("float32", (4, 5), 1)
    parity(lambda m, x, y: m.matmul(x, y), a, b, shapes=shapes)


BATCHES = [
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((0, 3, 4), (0, 4, 5)),
    ((2, 3, 0), (2, 0, 5)),
    ((1, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize(("left", "right"), BATCHES)
@pytest.mark.parametrize(("ta", "tb"), FLAGS)
def test_batch_matmul(parity: Any, left: Any, right: Any, ta: bool, tb: bool) -> None:
    a, b = sample("float32", turned(left, ta)), sample("float32", turned(right, tb), 1)
    parity(lambda m, x, y: m.matmul(x, y, transpose_a=ta, transpose_b=tb), a, b)


@pytest.mark.parametrize("dtype", [*MATMUL_TYPES, "int16"])
def test_batch_matmul_dtypes(parity: Any, dtype: str) -> None:
    a, b = sample(dtype, (2, 3, 4)), sample(dtype, (2, 5, 4), 1)
    parity(lambda m, x, y: m.matmul(x, y, adjoint_b=True), a, b, grad="int" not in dtype, **tolerance(dtype))


def test_batch_matmul_v1(parity: Any) -> None:
    parity(
        lambda m, x, y: m.raw_ops.BatchMatMul(x=x, y=y, adj_x=True),
        sample("float32", (2, 4, 3)),
        sample("float32", (2, 4, 5), 1),
    )


def test_matvec(parity: Any) -> None:
    a, b = sample("float32", (2, 3, 4)), sample("float32", (2, 4), 1)
    parity(lambda m, x, y: m.linalg.matvec(x, y), a, b)


def test_matmul_operator_keeps_the_dtype(parity: Any) -> None:
    parity(lambda m, x: x @ m.constant(np.ones((4, 2), np.float32)), sample("float32", (3, 4)))


# ── einsum ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij,jk->ki", (3, 4), (4, 5)),
    ("ij,kj->ik", (3, 4), (5, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    (",ij->ij", (), (3, 4)),
    ("abc,cde->abde", (2, 3, 4), (4, 2, 3)),
    ("abc,cb->a", (2, 3, 4), (4, 3)),
    ("abc,cbd->da", (2, 3, 4), (4, 3, 2)),
    ("ijk,jl->il", (2, 3, 4), (3, 5)),
    ("...ij,jk->...ik", (2, 2, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("i...,j...->ij...", (2, 3), (4, 3)),
    ("...i,...i->...", (2, 3, 4), (3, 4)),
    ("ij,jk->ik", (0, 4), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 5)),
]
UNARY = [
    ("ij->ji", (3, 4)),
    ("ij->i", (3, 4)),
    ("ij->", (3, 4)),
    ("ii->i", (3, 3)),
    ("ii->", (3, 3)),
    ("iij->ji", (3, 3, 2)),
    ("...ij->...ji", (2, 3, 4)),
    ("...ii->...i", (2, 3, 3)),
    ("ijk->kj", (2, 3, 4)),
    ("ijk->", (2, 0, 4)),
]


@pytest.mark.parametrize(("equation", "left", "right"), EQUATIONS)
def test_einsum(parity: Any, equation: str, left: Any, right: Any) -> None:
    a, b = sample("float32", left), sample("float32", right, 1)
    parity(lambda m, x, y: m.einsum(equation, x, y), a, b)


@pytest.mark.parametrize(("equation", "shape"), UNARY)
def test_einsum_of_one_operand(parity: Any, equation: str, shape: Any) -> None:
    parity(lambda m, x: m.einsum(equation, x), sample("float32", shape))


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,kj,jl->kli", "ij,jk,kl->"])
def test_einsum_of_three_operands(parity: Any, equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    arrays = [sample("float32", tuple("ijkl".index(c) + 2 for c in t), i) for i, t in enumerate(terms)]
    # With an unknown dimension TensorFlow refuses to plan the contraction; aioflow plans it.
    parity(lambda m, *xs: m.einsum(equation, *xs), *arrays, static=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "complex64"])
def test_einsum_dtypes(parity: Any, dtype: str) -> None:
    a, b = sample(dtype, (3, 4)), sample(dtype, (4, 5), 1)
    parity(lambda m, x, y: m.einsum("ij,jk->ik", x, y), a, b, grad="int" not in dtype, **tolerance(dtype))


@pytest.mark.parametrize("axes", [0, 1, 2, [[1], [0]], [[2, 1], [1, 0]], [[-1], [-2]], [1, 0]])
def test_tensordot(parity: Any, axes: Any) -> None:
    right = {0: (4,), 1: (4, 5), 2: (3, 4, 5)}[axes] if isinstance(axes, int) else (3, 4, 5)
    left = (2, 4, 3) if axes == [1, 0] else (2, 3, 4)
    if axes == [1, 0]:  # one axis of each, given as two ints
        right = (4, 5)
    parity(lambda m, x, y: m.tensordot(x, y, axes), sample("float32", left), sample("float32", right, 1))


def test_cross(parity: Any) -> None:
    parity(lambda m, x, y: m.cross(x, y), sample("float32", (2, 3)), sample("float32", (2, 3), 1))
    parity(lambda m, x, y: m.cross(x, y), sample("int32", (3,)), sample("int32", (3,), 1))


# ── linear systems and decompositions ────────────────────────────────────────────────────────────────────────────────

BATCH_OF_SQUARES = [(3, 3), (2, 3, 3), (1, 1), (0, 3, 3), (0, 0)]


def square(shape: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape) + 3 * np.eye(shape[-1])


def definite(shape: Any, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


@pytest.mark.parametrize("shape", BATCH_OF_SQUARES)
@pytest.mark.parametrize("adjoint", [False, True])
def test_inverse(parity: Any, shape: Any, adjoint: bool) -> None:
    parity(lambda m, x: m.matrix_inverse(x, adjoint=adjoint), square(shape))


@pytest.mark.parametrize("shape", BATCH_OF_SQUARES)
def test_determinants(parity: Any, shape: Any) -> None:
    parity(lambda m, x: m.matrix_determinant(x), square(shape))
    parity(lambda m, x: list(m.linalg.slogdet(x)), square(shape))
    if 0 not in shape[-2:]:
        parity(lambda m, x: m.linalg.logdet(m.matmul(x, x, transpose_a=True)), square(shape))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    ("matrix", "rhs"), [((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 1)), ((0, 0), (0, 2)), ((3, 3), (3, 0))]
)
def test_solve(parity: Any, matrix: Any, rhs: Any, adjoint: bool) -> None:
    b = np.random.default_rng(5).standard_normal(rhs)
    parity(lambda m, x, y: m.matrix_solve(x, y, adjoint=adjoint), square(matrix), b)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    ("matrix", "rhs"), [((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 1)), ((3, 3), (2, 3, 1)), ((2, 3, 3), (3, 1))]
)
def test_triangular_solve(parity: Any, matrix: Any, rhs: Any, lower: bool, adjoint: bool) -> None:
    b = np.random.default_rng(5).standard_normal(rhs)
    parity(lambda m, x, y: m.matrix_triangular_solve(x, y, lower=lower, adjoint=adjoint), square(matrix), b)


def test_large_triangular_solve(parity: Any) -> None:
    matrix = np.tril(np.random.default_rng(1).standard_normal((150, 150))) / 20 + 2 * np.eye(150)
    b = np.random.default_rng(5).standard_normal((150, 3))
    for lower, adjoint in FLAGS:
        x = matrix if lower else matrix.T
        parity(lambda m, x, y, lo=lower, ad=adjoint: m.matrix_triangular_solve(x, y, lo, ad), x, b, static=False)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_dtypes_of_linear_algebra(parity: Any, dtype: str) -> None:
    x, b = square((3, 3)).astype(dtype), square((3, 3), 4).astype(dtype)
    if "complex" in dtype:
        x, b = x + 1j * b, b - 1j * x
    wide = {"rtol": 1e-3, "atol": 1e-4}
    parity(lambda m, t: m.matrix_inverse(t, adjoint=True), x, **wide)
    parity(lambda m, t: m.matrix_determinant(t), x, **wide)
    parity(lambda m, t, y: m.matrix_solve(t, y, adjoint=True), x, b, **wide)
    parity(lambda m, t, y: m.matrix_triangular_solve(t, y, adjoint=True), x, b, **wide)
    parity(lambda m, t: m.cholesky(m.matmul(t, t, adjoint_b=True)), x, **wide)


@pytest.mark.parametrize("shape", BATCH_OF_SQUARES)
def test_cholesky(parity: Any, shape: Any) -> None:
    parity(lambda m, x: m.cholesky(x), definite(shape))


def test_cholesky_solve(parity: Any) -> None:
    b = np.random.default_rng(5).standard_normal((2, 3, 2))
    parity(lambda m, x, y: m.cholesky_solve(m.cholesky(x), y), definite((2, 3, 3)), b)


def test_cholesky_grad(parity: Any) -> None:
    factor = np.linalg.cholesky(definite((4, 4)))
    grad = np.tril(np.random.default_rng(3).standard_normal((4, 4)))
    parity(
        lambda m, x, g: m.raw_ops.CholeskyGrad(l=x, grad=g),
        factor,
        grad,
        grad=False,
    )


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (1, 1)])
def test_self_adjoint_eig(parity: Any, shape: Any) -> None:
    """Compare squares of eigenvectors, whose signs are arbitrary."""
    x = definite(shape)
    parity(lambda m, t: m.self_adjoint_eig(t)[0], x)
    parity(lambda m, t: m.self_adjoint_eigvals(t), x)
    parity(lambda m, t: m.square(m.self_adjoint_eig(t)[1]), x)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 5), (2, 3, 3)])
def test_svd(parity: Any, shape: Any, full: bool) -> None:
    """Compare squares of singular vectors, whose signs are arbitrary."""
    x = np.random.default_rng(3).standard_normal(shape)
    least = min(shape[-2:])

    def squares(m: Any, t: Any) -> Any:
        s, u, v = m.svd(t, full_matrices=full)
        return [s, m.square(u[..., :least]), m.square(v[..., :least])]

    parity(squares, x, grad=not full and shape[-1] == shape[-2])
    parity(lambda m, t: m.svd(t, compute_uv=False), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])  # TensorFlow returns zeros for complex dtypes
@pytest.mark.parametrize("place", [(2, 0), (1, 1), (0, 2), (slice(None), slice(None))], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_svd_of_matrices_that_are_not_finite(parity: Any, value: float, place: Any, dtype: str) -> None:
    """Check that one matrix yields NaN and the others do not; LAPACK would never terminate on it."""
    x = np.stack([np.eye(3), np.diag([3.0, 2.0, 1.0]), np.eye(3)]).astype(dtype)
    x[1][place] = value
    for full in (False, True):
        parity(lambda m, t, full=full: [m.abs(p) for p in m.svd(t, full_matrices=full)], x, grad=False)
    parity(lambda m, t: m.svd(t, compute_uv=False), x, grad=False)


@pytest.mark.parametrize("place", [(2, 0), (1, 1), (0, 2), (slice(None), slice(None))], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_eigenvalues_of_matrices_that_are_not_finite(parity: Any, tf: Any, value: float, place: Any) -> None:
    """Reject the matrix in both systems, unless the value is above the diagonal, which neither reads."""
    x = np.stack([np.eye(3), np.diag([3.0, 2.0, 1.0])])
    x[1][place] = value
    if place == (0, 2):
        parity(lambda m, t: m.self_adjoint_eigvals(t), x, grad=False)
        return
    for vectors in (False, True):
        with pytest.raises(InvalidArgumentError, match="Self-adjoint eigen decomposition was not successful"):
            evaluate([make_list("SelfAdjointEigV2", x, compute_v=vectors)[0]])
        with tf.Graph().as_default(), tf.Session() as session:
            refused = tf.raw_ops.SelfAdjointEigV2(input=x, compute_v=vectors)[0]
            with pytest.raises(tf.errors.InvalidArgumentError, match="Self-adjoint eigen decomposition was not succ"):
                session.run(refused)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 5), (2, 3, 3)])
def test_qr(parity: Any, shape: Any, full: bool) -> None:
    x = np.random.default_rng(3).standard_normal(shape)
    grad = not full or shape[-2] <= shape[-1]
    least = min(shape[-2:])
    parity(lambda m, t: m.square(m.qr(t, full_matrices=full)[0][..., :least]), x, grad=grad)
    parity(lambda m, t: m.square(m.qr(t, full_matrices=full)[1]), x, grad=grad)
    parity(lambda m, t: m.matmul(*m.qr(t, full_matrices=full)), x, grad=grad)


# ── norms, trace, eye ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ord", ["euclidean", 1, 2, 3.0, np.inf])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_vector_norm(parity: Any, ord: Any, axis: Any, keepdims: bool) -> None:
    parity(lambda m, x: m.norm(x, ord=ord, axis=axis, keepdims=keepdims), sample("float32", (3, 4)))


@pytest.mark.parametrize("ord", ["euclidean", "fro", 1, 2, np.inf])
@pytest.mark.parametrize("axis", [[0, 1], [-2, -1], [0, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norm(parity: Any, ord: Any, axis: Any, keepdims: bool) -> None:
    x = sample("float32", (3, 4, 2))
    # For some shapes TensorFlow has no gradient of singular values without vectors; test_svd covers those with vectors.
    parity(lambda m, t: m.norm(t, ord=ord, axis=axis, keepdims=keepdims), x, grad=ord != 2, static=ord != 2)


def test_normalize(parity: Any) -> None:
    parity(lambda m, x: list(m.linalg.normalize(x, axis=1)), sample("float32", (3, 4)))


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4), (4, 2), (0, 0)])
def test_trace(parity: Any, shape: Any) -> None:
    parity(lambda m, x: m.trace(x), sample("float32", shape))


def test_eye(parity: Any) -> None:
    parity(lambda m: m.eye(3))
    parity(lambda m: m.eye(2, 3, dtype="int32"))
    parity(lambda m: m.eye(3, 2, batch_shape=[2, 1]))
    parity(lambda m: m.eye(0))
    parity(lambda m, n: m.eye(n), np.array(3, np.int32))
    parity(lambda m, n: m.eye(n, 2, batch_shape=[2]), np.array(3, np.int32))


def test_adjoint_of_matrices(parity: Any) -> None:
    parity(lambda m, x: m.linalg.adjoint(x), sample("complex64", (2, 3, 4)))
    parity(lambda m, x: m.linalg.transpose(x), sample("float32", (2, 3, 4)))
