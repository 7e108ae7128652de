"""Conversion to float16 on the bits: the same as NumPy's, for each interval between two float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.kernels.narrowing import narrowed

FLOAT16 = np.dtype(np.float16)


def both_signs(values: Any) -> Any:
    return np.concatenate([values, -values]).astype(np.float32)


def test_every_interval_between_two_float16_rounds_as_in_numpy() -> None:
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = np.append((exact[1:] + exact[:-1]) / 2, np.float32(65519.996))
    around = [np.nextafter(each, np.float32(to)) for each in (exact, ties[:-1]) for to in (0, np.inf)]
    x = both_signs(np.concatenate([exact, ties, *around, np.array([1e-45, 1e-40], np.float32)]))
    # Subnormals everywhere: parts with few of them are left to NumPy.
    x = np.random.default_rng(0).permutation(np.concatenate([x, np.tile(exact[:1024], 64)]))
    found = narrowed(x, FLOAT16)
    assert found.dtype == np.float16
    assert found.tobytes() == x.astype(np.float16).tobytes()


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("value", [65520.0, 1e30, np.inf, np.nan])
def test_values_out_of_range_become_what_numpy_makes_of_them(value: float) -> None:
    x = both_signs(np.append(np.linspace(0, 1, 4096), value))
    assert narrowed(x, FLOAT16).tobytes() == x.astype(np.float16).tobytes()


def test_strides_shapes_and_the_argument_are_kept() -> None:
    x = np.random.default_rng(0).standard_normal((90, 120)).astype(np.float32)[::-1, ::2].T * np.float32(1e-5)
    before = x.copy()
    found = narrowed(x, FLOAT16)
    np.testing.assert_array_equal(found, x.astype(np.float16))
    np.testing.assert_array_equal(x, before)
    assert found.shape == x.shape
