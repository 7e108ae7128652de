"""Decompositions, linear systems and norms: values, errors, and gradients by finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

RNG = {"now": np.random.default_rng(0)}
FLAGS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> None:
    RNG["now"] = np.random.default_rng(0)


def random(*shape: int) -> Any:
    return RNG["now"].standard_normal(shape)


def square(*shape: int) -> Any:
    return random(*shape) + 3 * np.eye(shape[-1])


def definite(t: Any) -> Any:
    """Return a positive definite matrix made from `t`: finite differences in `t` keep it symmetric."""
    return aioflow.matmul(t, t, transpose_b=True) + np.eye(t.shape.as_list()[-1])


def values(build: Any, *arrays: Any) -> list[Any]:
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype, np.shape(a)) for a in arrays]
        made = build(*xs)
        return evaluate(list(made) if isinstance(made, tuple) else [made], dict(zip(xs, arrays, strict=True)))


@pytest.mark.parametrize("size", [1, 3, 64, 65, 200])
@pytest.mark.parametrize(("lower", "adjoint"), FLAGS)
def test_triangular_solve_satisfies_its_system(size: int, lower: bool, adjoint: bool) -> None:
    a = random(2, size, size) / size + 2 * np.eye(size)
    b = random(2, size, 3)
    (x,) = values(lambda m, r: aioflow.matrix_triangular_solve(m, r, lower, adjoint), a, b)
    used = np.tril(a) if lower else np.triu(a)
    np.testing.assert_allclose((np.swapaxes(used, -1, -2) if adjoint else used) @ x, b, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_dtypes_are_kept(dtype: str) -> None:
    x = random(3, 3).astype(dtype)
    symmetric = (x @ x.conj().T + np.eye(3)).astype(dtype)
    for build in (
        aioflow.matrix_inverse,
        aioflow.matrix_determinant,
        lambda t: tuple(aioflow.linalg.slogdet(t)),
        lambda t: aioflow.matrix_solve(t, t),
        lambda t: aioflow.matrix_triangular_solve(t, t),
        aioflow.cholesky,
        lambda t: tuple(aioflow.self_adjoint_eig(t)),
        lambda t: tuple(aioflow.svd(t)),
        lambda t: aioflow.svd(t, compute_uv=False),
        lambda t: tuple(aioflow.qr(t)),
    ):
        assert {v.dtype for v in values(build, symmetric)} == {np.dtype(dtype)}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 3)])
def test_decompositions_multiply_back(shape: Any, full: bool) -> None:
    x = random(*shape)
    s, u, v = values(lambda t: tuple(aioflow.svd(t, full_matrices=full)), x)
    least = min(shape[-2:])
    np.testing.assert_allclose(u[..., :least] * s[..., None, :] @ np.swapaxes(v[..., :least], -1, -2), x, atol=1e-12)
    q, r = values(lambda t: tuple(aioflow.qr(t, full_matrices=full)), x)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    assert u.shape[-1] == (shape[-2] if full else least)
    assert q.shape[-1] == (shape[-2] if full else least)


def test_batched_matrices_match_numpy_bit_for_bit() -> None:
    x = square(2, 40, 64, 64)
    symmetric = x + np.swapaxes(x, -1, -2)
    right = random(2, 40, 64, 3)
    np.testing.assert_array_equal(values(aioflow.matrix_inverse, x)[0], np.linalg.inv(x))
    np.testing.assert_array_equal(values(aioflow.matrix_determinant, x)[0], np.linalg.det(x))
    np.testing.assert_array_equal(values(aioflow.matrix_solve, x, right)[0], np.linalg.solve(x, right))
    np.testing.assert_array_equal(values(aioflow.self_adjoint_eigvals, symmetric)[0], np.linalg.eigvalsh(symmetric))
    for mine, theirs in zip(values(lambda t: tuple(aioflow.qr(t)), x), np.linalg.qr(x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_determinants_of_large_matrices(dtype: str) -> None:
    # Large determinants have a kernel of their own, since NumPy's would block the event loop.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 401, 401))
    x = (x + 1j * rng.standard_normal(x.shape) if dtype.startswith("c") else x).astype(dtype)
    x[1, 7] = 0  # singular
    sign, log = np.linalg.slogdet(x.astype("complex128" if dtype.startswith("c") else "float64"))
    found = values(aioflow.linalg.slogdet, x)
    rtol = 1e-4 if x.real.itemsize == 4 else 1e-9
    np.testing.assert_allclose(found[0], sign, rtol=rtol, atol=1e-4)
    np.testing.assert_allclose(found[1], log, rtol=rtol)
    small = x / np.exp(log[0] / 401).astype(x.real.dtype)
    np.testing.assert_allclose(values(aioflow.matrix_determinant, small)[0], [sign[0], 0], rtol=1e-2, atol=1e-2)


def test_eigenvectors_multiply_back() -> None:
    x = random(2, 4, 4)
    x = x + np.swapaxes(x, -1, -2)
    e, v = values(lambda t: tuple(aioflow.self_adjoint_eig(t)), x)
    np.testing.assert_allclose(v * e[..., None, :] @ np.swapaxes(v, -1, -2), x, atol=1e-12)
    assert (np.diff(e) >= 0).all()


SINGULAR = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (aioflow.matrix_inverse, "Input is not invertible."),
        (lambda t: aioflow.matrix_solve(t, t), "Input is not invertible."),
        (lambda t: aioflow.matrix_triangular_solve(t, t), "Input matrix is not invertible."),
        (aioflow.cholesky, "Cholesky decomposition was not successful"),
    ],
)
def test_singular_matrices_are_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        values(build, SINGULAR)
    assert caught.value.node
    assert caught.value.expected


@pytest.mark.parametrize(
    "build",
    [
        aioflow.matrix_inverse,
        aioflow.matrix_determinant,
        aioflow.linalg.slogdet,
        aioflow.cholesky,
        aioflow.self_adjoint_eig,
        lambda t: aioflow.matrix_solve(t, t),
        lambda t: make("CholeskyGrad", t, t),
    ],
)
def test_matrices_that_are_not_square_are_refused(build: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not square"):
        build(np.ones((2, 3)))
    x = aioflow.placeholder("float64")
    made = build(x)
    with pytest.raises(InvalidArgumentError, match="not square"):
        evaluate([made[0] if isinstance(made, tuple) else made], {x: np.ones((2, 3))})


def test_solve_rejects_right_sides_that_do_not_fit() -> None:
    x, y = aioflow.placeholder("float64"), aioflow.placeholder("float64")
    for build in (aioflow.matrix_solve, aioflow.matrix_triangular_solve):
        with pytest.raises(InvalidArgumentError, match="do not fit") as caught:
            evaluate([build(x, y)], {x: np.eye(3), y: np.ones((2, 1))})
        assert caught.value.actual == (2, 1)


def test_norms() -> None:
    x = np.array([[3.0, -4.0], [0.0, 0.0]])
    assert values(aioflow.norm, x)[0] == 5
    assert values(lambda t: aioflow.norm(t, 1), x)[0] == 7
    assert values(lambda t: aioflow.norm(t, np.inf, axis=1), x)[0].tolist() == [4, 0]
    assert values(lambda t: aioflow.norm(t, 1, axis=[0, 1]), x)[0] == 4
    assert values(lambda t: aioflow.norm(t, np.inf, axis=[0, 1]), x)[0] == 7
    assert values(lambda t: aioflow.norm(t, 2, axis=[0, 1], keep_dims=True), x)[0].tolist() == [[5]]
    with aioflow.Graph().as_default():
        for ord, axis in ((-1, None), ("fro", None), (3, [0, 1]), ("nuc", [0, 1]), (1, [0, 1, 2])):
            with pytest.raises(InvalidArgumentError):
                aioflow.norm(x, ord, axis)


def test_eye_of_known_size_is_a_constant() -> None:
    assert aioflow.eye(3).op.type == "Const"
    n = aioflow.placeholder("int32", [])
    made = aioflow.eye(n, 2, dtype="int64")
    assert evaluate([made], {n: 3})[0].tolist() == [[1, 0], [0, 1], [0, 0]]


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────

SHAPES = [(3, 3), (2, 3, 3), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_square_matrices(shape: Any) -> None:
    x = square(*shape)
    check_gradients(aioflow.matrix_inverse, x)
    check_gradients(lambda t: aioflow.matrix_inverse(t, adjoint=True), x)
    check_gradients(aioflow.matrix_determinant, x)
    check_gradients(lambda t: aioflow.linalg.slogdet(t)[1], x)
    check_gradients(lambda t: aioflow.linalg.logdet(definite(t)), x)
    check_gradients(lambda t: aioflow.cholesky(definite(t)), x)
    check_gradients(aioflow.trace, x)


@pytest.mark.parametrize("adjoint", [False, True])
def test_gradients_of_solutions(adjoint: bool) -> None:
    check_gradients(lambda t, r: aioflow.matrix_solve(t, r, adjoint), square(2, 3, 3), random(2, 3, 2))
    for lower in (False, True):
        for left, right in (((3, 3), (3, 2)), ((2, 3, 3), (3, 1)), ((3, 3), (2, 3, 1))):
            check_gradients(
                lambda t, r, lo=lower: aioflow.matrix_triangular_solve(t, r, lo, adjoint), square(*left), random(*right)
            )
    check_gradients(lambda t, r: aioflow.cholesky_solve(aioflow.cholesky(definite(t)), r), square(3, 3), random(3, 1))


def test_cholesky_grad_is_the_gradient_of_cholesky() -> None:
    x, seed = random(3, 3), np.tril(random(3, 3))
    x = x @ x.T + np.eye(3)
    with aioflow.Graph().as_default():
        t = aioflow.placeholder("float64", [3, 3])
        factor = aioflow.cholesky(t)
        symbolic = dense(aioflow.gradients(factor, t, grad_ys=[aioflow.constant(seed)]))[0]
        direct = make("CholeskyGrad", factor, aioflow.constant(seed))
        found = evaluate([symbolic, direct], {t: x})
    np.testing.assert_allclose(found[0], found[1])


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4)])
def test_gradients_of_eigenvalues(shape: Any) -> None:
    x = random(*shape)
    check_gradients(lambda t: aioflow.self_adjoint_eigvals(definite(t)), x)
    check_gradients(lambda t: aioflow.self_adjoint_eig(definite(t))[0], x)
    check_gradients(lambda t: list(aioflow.self_adjoint_eig(definite(t))), x, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 5), (2, 3, 3)])
def test_gradients_of_singular_values(shape: Any) -> None:
    x = random(*shape)
    check_gradients(lambda t: aioflow.svd(t, compute_uv=False), x)
    check_gradients(lambda t: list(aioflow.svd(t)), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 5), (2, 3, 3)])
def test_gradients_of_qr(shape: Any) -> None:
    x = random(*shape)
    check_gradients(lambda t: list(aioflow.qr(t)), x)
    check_gradients(lambda t: aioflow.qr(t)[1], x)


def test_decompositions_without_a_gradient() -> None:
    x = aioflow.placeholder("float64", [4, 3])
    for made in (aioflow.svd(x, full_matrices=True)[1], aioflow.qr(x, full_matrices=True)[0]):
        with pytest.raises(UnimplementedError):
            aioflow.gradients(made, x)


@pytest.mark.parametrize("ord", ["euclidean", 1, 3.0, np.inf])
@pytest.mark.parametrize("axis", [None, 1])
def test_gradients_of_norms(ord: Any, axis: Any) -> None:
    check_gradients(lambda t: aioflow.norm(t, ord, axis), random(3, 4))


@pytest.mark.parametrize("ord", ["fro", 1, 2, np.inf])
def test_gradients_of_matrix_norms(ord: Any) -> None:
    check_gradients(lambda t: aioflow.norm(t, ord, [0, 2]), random(3, 4, 2))


def test_gradients_of_normalize() -> None:
    check_gradients(lambda t: aioflow.linalg.normalize(t, axis=1)[0], random(3, 4))


@pytest.mark.parametrize("decompose", [lambda x: aioflow.svd(x)[0], lambda x: aioflow.qr(x)[0]])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_decompositions_reject_ranks_below_two(decompose: Any, shape: tuple[int, ...]) -> None:
    x = aioflow.placeholder("float32")
    with pytest.raises(InvalidArgumentError, match="not matrices") as caught:
        evaluate([decompose(x)], {x: np.ones(shape, np.float32)})
    assert caught.value.actual == shape
