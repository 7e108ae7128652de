"""Tests of products by oneDNN's `dnnl_sgemm`: close to exact products, for few rows and columns."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn import products
from aioflow_onednn.library import library

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def matrices(rng: np.random.Generator, *sizes: int) -> tuple[Array, Array]:
    """Return two matrices to multiply, each by rows or by columns."""
    rows, inner, columns = sizes
    a, b = rng.standard_normal((rows, inner), np.float32), rng.standard_normal((inner, columns), np.float32)
    return (np.asfortranarray(a) if rng.random() < 0.5 else a), (np.asfortranarray(b) if rng.random() < 0.5 else b)


@pytest.mark.parametrize("shape", [(300, 5), (5, 300), (1, 9000), (9000, 1)])
def test_few_rows_and_columns(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    (rows, columns), inner = shape, 70
    for _ in range(4):
        a, b = matrices(rng, rows, inner, columns)
        np.testing.assert_allclose(products.matmul(a, b), a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-4)
