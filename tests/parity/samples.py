"""Random inputs by dtype, and the tolerances of their results."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - makes "bfloat16" a name of a NumPy dtype
import numpy as np


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random numbers: small integers, others from a normal distribution."""
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        return rng.integers(0 if dtype[0] == "u" else -3, 4, shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "complex" in dtype:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype("float32").astype(dtype)


def tolerance(dtype: str) -> dict[str, float]:
    """Return the tolerances of a few operations in a dtype."""
    small = {"bfloat16": 3e-2, "float16": 4e-3}.get(dtype, 1e-5)
    return {"rtol": small, "atol": small}
