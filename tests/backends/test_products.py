"""Matrix products in one thread and in blocks: the values, and the threads of the BLAS afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow_numpy import products, threads
from aioflow_numpy.products import multiply

SHAPES = [
    (0, 3, 2),
    (3, 0, 2),
    (1, 1, 1),
    (60, 70, 80),
    (128, 128, 200),
    (700, 300, 90),
    (90, 300, 701),
    (301, 1000, 299),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values(shape: tuple[int, int, int], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "thread_count", lambda: 3)  # whatever the machine has
    rows, inner, columns = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, inner)).astype(dtype), rng.standard_normal((inner, columns)).astype(dtype)
    expected = a.astype("float64") @ b.astype("float64")
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.ascontiguousarray(b.T).T), (a[::-1][::-1], b)):
        made = multiply(left, right)
        assert made.dtype == dtype
        np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance)


def test_a_large_product_is_cut_along_its_longer_side(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[Any] = []
    monkeypatch.setattr(products, "thread_count", lambda: 2)
    monkeypatch.setattr(products, "for_each", lambda work, parts: cut.append(parts))
    multiply(np.ones((100, 400)), np.ones((400, 600)))
    multiply(np.ones((600, 400)), np.ones((400, 100)))
    multiply(np.ones((100, 100)), np.ones((100, 100)))
    assert cut == [[slice(0, 300), slice(300, 600)]] * 2


def test_the_blas_has_its_threads_again() -> None:
    before = threads.thread_count()
    multiply(np.ones((200, 200)), np.ones((200, 200)))
    multiply(np.ones((600, 600)), np.ones((600, 600)))
    assert threads.thread_count() == before
