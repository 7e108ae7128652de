"""Tests of bfloat16 products by oneDNN: they are float32 products, rounded once."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn import half_products
from aioflow_onednn.library import library

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

Array = np.ndarray[Any, Any]
HALF = af.bfloat16.np_dtype

has_instructions = pytest.mark.skipif(
    not library().has_bfloat16, reason="this processor has no instructions for bfloat16"
)


def halves(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.standard_normal((rows, columns), np.float32).astype(HALF)


def wanted(a: Array, b: Array) -> Array:
    return a.astype(np.float64) @ b.astype(np.float64)


def lying(matrix: Array) -> list[Array]:
    """Return the matrix in several layouts: by rows, by columns, and as slices of a larger array."""
    rows, columns = matrix.shape
    room = np.zeros((rows + 1, columns + 2), HALF)
    room[1:, 1:-1] = matrix
    return [matrix, np.asfortranarray(matrix), room[1:, 1:-1], room[::-1][:-1][::-1, 1:-1]]


@has_instructions
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 70, 9), (65, 1, 3), (40, 300, 7), (130, 64, 200), (9, 1000, 300)])
@pytest.mark.parametrize("threads", [1, 3])
def test_products_are_near(shape: tuple[int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_products, "thread_count", lambda: threads)
    monkeypatch.setattr(half_products, "_BLOCK", 64)
    rng, (rows, inner, columns) = np.random.default_rng(0), shape
    a, b = halves(rng, rows, inner), halves(rng, inner, columns)
    exact = wanted(a, b)
    for left, right in product(lying(a), lying(b)):
        made = half_products.matmul(left, right)
        assert made.dtype == HALF
        np.testing.assert_allclose(made.astype(np.float64), exact, rtol=2**-8, atol=1e-5 * inner)


@has_instructions
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nonfinite_elements_stay_nonfinite(odd: float) -> None:
    a, b = np.ones((64, 64), HALF), np.ones((64, 64), HALF)
    a[3, 5] = odd
    np.testing.assert_array_equal(half_products.matmul(a, b).astype(float), wanted(a, b))


@has_instructions
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [*product((False, True), repeat=2)])
async def test_session_uses_onednn_unless_results_must_be_reproducible(
    transpose_a: bool, transpose_b: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Array] = []
    multiply = half_products.matmul

    def noted(a: Array, b: Array) -> Array:
        used.append(multiply(a, b))
        return used[-1]

    monkeypatch.setattr(half_products, "matmul", noted)
    rng = np.random.default_rng(1)
    a, b = halves(rng, 90, 100), halves(rng, 100, 80)
    feeds = a.T if transpose_a else a, b.T if transpose_b else b
    for reproducible in (True, False):
        with af.Graph().as_default():
            left, right = (af.placeholder(af.bfloat16, [None, None]) for _ in range(2))
            made = af.nn.relu(af.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b))
            async with af.Session(config=af.SessionConfig(reproducible=reproducible)) as session:
                found = await session.run(made, dict(zip((left, right), feeds, strict=True)))
        exact = np.maximum(wanted(a, b), 0)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
        assert len(used) == (not reproducible)


def test_processor_without_bfloat16_instructions_uses_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_products, "are_quicker", lambda: False)
    monkeypatch.setattr(half_products, "matmul", lambda a, b: pytest.fail("it would be slow, or not there"))
    with af.Graph().as_default(), af.Session() as session:
        x = af.placeholder(af.bfloat16, [100, 100])
        assert (session.run_sync(af.matmul(x, x), {x: np.ones((100, 100), HALF)}).astype(float) == 100).all()


@has_instructions
async def test_operand_error_is_the_same_as_numpys() -> None:
    left, right = (af.placeholder(af.bfloat16, [None, None]) for _ in range(2))
    made = af.matmul(left, right)
    async with af.Session() as session:
        with pytest.raises(af.errors.InvalidArgumentError, match="cannot be multiplied as matrices"):
            await session.run(made, {left: np.ones((90, 100), HALF), right: np.ones((90, 100), HALF)})
