"""Binning ops against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

IDS = np.array([[0, 3, 3, 9], [1, 1, 7, 2]])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("values", [IDS, IDS[0], IDS[:0], IDS[:, :0], IDS[0, :0], IDS[:, :1]])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_dense_bincount(parity: Any, values: Any, dtype: str, binary: bool, size: int) -> None:
    parity(
        lambda m, t: m.raw_ops.DenseBincount(
            input=t, size=m.constant(size, dtype), weights=m.constant([], "float32"), binary_output=binary
        ),
        values.astype(dtype),
        grad=False,
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_dense_bincount_with_weights(parity: Any, dtype: str) -> None:
    weights = (np.arange(8).reshape(2, 4) + 1).astype(dtype)
    for values, own in ((IDS, weights), (IDS[0], weights[0])):
        parity(
            lambda m, t, w: m.raw_ops.DenseBincount(input=t, size=m.constant(8), weights=w, binary_output=False),
            values.astype("int32"),
            own,
            grad=False,
        )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("boundaries", [[], [0.0], [-1.5, 0.0, 0.0, 2.0]])
def test_bucketize(parity: Any, dtype: str, boundaries: list[float]) -> None:
    for values in (np.arange(-4, 8).reshape(3, 4), np.zeros((0, 2)), np.array(2)):
        x = values.astype(dtype)
        parity(lambda m, t: m.raw_ops.Bucketize(input=t, boundaries=boundaries), x, grad=False)
    if dtype.startswith("float"):
        special = np.array([np.nan, np.inf, -np.inf], dtype)
        parity(lambda m, t: m.raw_ops.Bucketize(input=t, boundaries=boundaries), special, grad=False)
