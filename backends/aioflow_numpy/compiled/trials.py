"""Test data for machine code before its first use, and the comparison with NumPy's results."""

from __future__ import annotations

import numpy as np

from aioflow.memory.values import Array, NpDType


def same(one: Array, other: Array) -> bool:
    """Return whether the arrays are equal to the last bit, where all NaN count as equal."""
    if one.dtype.kind == "f":
        # All NaN become the same bits, and -0 stays different from 0.
        one, other = (np.where(np.isnan(each), np.nan, each) for each in (one, other))
    return one.tobytes() == other.tobytes()


def numbers(rng: np.random.Generator, dtype: NpDType, shape: tuple[int, ...]) -> Array:
    """Return special and usual numbers, half of each: with special ones alone, few results would be usual."""
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), dtype)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        tiny, huge = limits.smallest_subnormal, limits.max
        special = [0.0, 1.0, 0.5, 1.5, 2.5, 6.0, np.inf, np.nan, tiny, 3 * tiny, limits.tiny, huge]
        special += [-number for number in special]
        usual = np.asarray(rng.standard_normal(shape), dtype)
    else:
        bounds = np.iinfo(dtype)
        special = [0, 1, 2, 3, 6, bounds.min, bounds.min + 1, bounds.max, bounds.max - 1, bounds.max // 2]
        usual = np.asarray(rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True))
    chosen = np.asarray(rng.choice(np.array(special, dtype), shape))
    return np.where(rng.random(shape) < 0.5, chosen, usual)
