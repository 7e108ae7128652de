"""The namespace's additions to CuPy, against NumPy: scattering and reducing for every function and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioflow_cupy.namespace import CupyNamespace
from tests.backends.cupy.fake_arrays import FakeCupy
from tests.support.random_examples import examples

FAKE = FakeCupy()
XP = CupyNamespace(FAKE, FAKE)
DTYPES = ("int8", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
@settings(max_examples=examples(12))
@given(rows=st.lists(st.integers(0, 4), max_size=30), wide=st.booleans(), seed=st.integers(0, 99))
def test_ufunc_at_equals_numpy(name: str, dtype: str, rows: list[int], wide: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    inner = (3,) if wide else ()
    target = random.integers(1, 4, (5, *inner)).astype(dtype)
    updates = random.integers(1, 3, (len(rows), *inner)).astype(dtype)
    indices = np.array(rows, np.int64)
    expected = target.copy()
    with np.errstate(all="ignore"):
        getattr(np, name).at(expected, indices, updates)
    made = XP.asarray(target)
    getattr(XP, name).at(made, XP.asarray(indices), XP.asarray(updates))
    if dtype == "float16" and name == "multiply":
        np.testing.assert_allclose(made.raw, expected, rtol=1e-2)
    else:
        np.testing.assert_array_equal(made.raw, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
@settings(max_examples=examples(12))
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_reduceat_equals_numpy(name: str, dtype: str, sizes: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).integers(1, 3, (sum(sizes), 2)).astype(dtype)
    starts = np.cumsum([0, *sizes[:-1]])
    with np.errstate(all="ignore"):
        expected = getattr(np, name).reduceat(rows, starts, axis=0, dtype=rows.dtype)
    made = getattr(XP, name).reduceat(XP.asarray(rows), XP.asarray(starts), axis=0, dtype=rows.dtype)
    np.testing.assert_allclose(made.raw, expected, rtol=1e-2 if dtype == "float16" else 1e-6)
    assert made.dtype == expected.dtype


def test_multiply_at_is_reproducible() -> None:
    """Atomic additions may differ between runs. A function without an atomic form uses a scan, whose order is fixed."""
    rows = XP.asarray(np.zeros(1000, np.int64))
    updates = np.random.default_rng(0).normal(size=1000).astype(np.float64)
    products = []
    for _ in range(2):
        target = XP.asarray(np.ones(1))
        XP.multiply.at(target, rows, XP.asarray(1 + updates / 100))
        products.append(target.raw[0])
    assert products[0] == products[1]
    np.testing.assert_allclose(products[0], np.prod(1 + updates / 100))


@pytest.mark.parametrize("name", ["inv", "cholesky", "solve"])
def test_singular_matrices_raise(name: str) -> None:
    matrix = XP.asarray(np.zeros((2, 2)))
    args: tuple[Any, ...] = (matrix, matrix) if name == "solve" else (matrix,)
    with pytest.raises(np.linalg.LinAlgError):
        getattr(XP.linalg, name)(*args)
    assert np.isnan(getattr(FAKE.linalg, name)(*args).raw).all()  # CuPy itself raises nothing


def test_solutions_broadcast() -> None:
    a, b = np.eye(3)[None] * np.arange(1, 5).reshape(4, 1, 1), np.arange(6.0).reshape(3, 2)
    made = XP.linalg.solve(XP.asarray(a), XP.asarray(b))
    np.testing.assert_allclose(made.raw, np.linalg.solve(a, np.broadcast_to(b, (4, 3, 2))))


def test_all_other_names_are_those_of_cupy() -> None:
    assert XP.float32 is np.float32
    assert XP.sum is XP.sum  # found once, then cached
    with pytest.raises(AttributeError):
        _ = XP.no_such_function
