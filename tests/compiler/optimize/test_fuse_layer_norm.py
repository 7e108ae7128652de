"""Layer normalizations: when they are fused, and that values stay the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize import fuse_layer_norm as module
from aioflow.compiler.optimize.fuse_layer_norm import fuse_layer_norm
from tests.compiler.optimize.fused_runs import check, ops

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def faster_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse also where no package has a faster kernel."""
    monkeypatch.setattr(module, "_is_faster", lambda: True)


def parts(x: af.Tensor, axis: int = -1, epsilon: Any = 1e-5) -> tuple[af.Tensor, af.Tensor, af.Tensor]:
    mean = af.reduce_mean(x, axis, keepdims=True)
    deviation = x - mean
    variance = af.reduce_mean(af.square(deviation), axis, keepdims=True)
    return deviation, variance, af.rsqrt(variance + epsilon)


def vectors(columns: int, dtype: str = "float32") -> tuple[Any, Any]:
    return tuple(af.constant(RNG.standard_normal(columns).astype(dtype)) for _ in range(2))  # type: ignore[return-value]


def feed(*shape: int, dtype: str = "float32") -> tuple[af.Tensor, Any]:
    return af.placeholder(dtype, [None, *shape[1:]]), (RNG.standard_normal(shape) + 3).astype(dtype)


@pytest.mark.parametrize("shape", [(5,), (0, 4), (7, 1), (3, 4, 5), (2000, 300), (3, 100000)])
@pytest.mark.parametrize("swapped", [False, True])
def test_normalization_is_one_node(shape: tuple[int, ...], swapped: bool) -> None:
    value = (RNG.standard_normal(shape) + 3).astype("float32")
    x = af.placeholder("float32", [None, *shape[1:]] if len(shape) > 1 else shape)
    (scale, offset), (deviation, _, inverse) = vectors(shape[-1]), parts(x, -1 if swapped else len(shape) - 1)
    y = offset + scale * (inverse * deviation) if swapped else deviation * inverse * scale + offset
    assert ops(check(fuse_layer_norm, [y], {x: value})) == {"_LayerNorm": 1}


def test_nonfinite_numbers() -> None:
    x, value = feed(5, 40)
    value[0, 3], value[1, 2], value[2], value[3, 5] = np.nan, np.inf, 1e30, 1e-40
    (scale, offset), (deviation, _, inverse) = vectors(40), parts(x)
    with np.errstate(all="ignore"):
        assert ops(check(fuse_layer_norm, [deviation * inverse * scale + offset], {x: value})) == {"_LayerNorm": 1}


def test_others_stay() -> None:
    (x, value), (scale, offset) = feed(6, 40), vectors(40)
    deviation, variance, inverse = parts(x)
    y = deviation * inverse * scale + offset
    row = af.constant(np.ones((1, 40), np.float32))
    across, _, by_column = parts(x, 0)
    wide, wide_value = feed(6, 40, dtype="float64")
    (wide_scale, wide_offset), (wide_deviation, _, wide_inverse) = vectors(40, "float64"), parts(wide)
    several = parts(x, epsilon=row)
    for fetches, feeds in (
        ([y, variance], {x: value}),  # read elsewhere
        ([y, inverse], {x: value}),
        ([deviation * inverse * scale + row], {x: value}),
        ([across * by_column * scale + offset], {x: value}),
        ([several[0] * several[2] * scale + offset], {x: value}),
        ([(x - 1.0) * inverse * scale + offset], {x: value}),
        ([wide_deviation * wide_inverse * wide_scale + wide_offset], {wide: wide_value}),
    ):
        assert "_LayerNorm" not in ops(check(fuse_layer_norm, fetches, feeds))
