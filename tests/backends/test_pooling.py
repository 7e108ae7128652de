"""Pools and their gradients against loops over every window in float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow.ops.nn.geometry import same_padding
from aioflow_numpy import pooling
from aioflow_numpy.pooling import avg_pool, avg_pool_grad, max_pool, max_pool_grad

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

# (input NHWC, ksize, strides, padding); a padding of None is SAME.
CASES: list[tuple[Shape, tuple[int, int], tuple[int, int], Any]] = [
    ((2, 6, 8, 3), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ((2, 7, 5, 3), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ((2, 7, 5, 3), (2, 2), (2, 2), None),
    ((2, 7, 7, 4), (3, 3), (2, 2), None),
    ((2, 7, 7, 4), (3, 3), (1, 1), None),
    ((1, 8, 9, 2), (3, 2), (1, 3), ((0, 0), (0, 0))),
    ((1, 8, 9, 2), (2, 3), (3, 2), ((1, 0), (2, 1))),
    ((2, 5, 6, 1), (5, 6), (1, 1), ((0, 0), (0, 0))),
    ((2, 5, 6, 1), (1, 1), (2, 3), ((0, 0), (0, 0))),
    ((2, 2, 3, 2), (4, 5), (2, 2), ((2, 2), (2, 3))),
    ((1, 1, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ((1, 4, 4, 1), (3, 3), (1, 1), ((2, 2), (2, 2))),
    ((0, 4, 4, 3), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ((2, 1, 1, 3), (2, 2), (2, 2), ((0, 0), (0, 0))),
]
GRID = [
    pytest.param(case, data_format, id=f"{case} {data_format}") for case in CASES for data_format in ("NHWC", "NCHW")
]


def _padding(case: Any) -> Any:
    shape, ksize, strides, padding = case
    if padding is None:
        return tuple(same_padding(shape[1 + k], ksize[k], strides[k], 1) for k in range(2))
    return padding


def _windows(case: Any) -> tuple[Shape, list[tuple[Any, Any]]]:
    """Return the pool's NHWC shape, and pairs of an output's index and its window's elements.

    The elements are indices of the image, in row-major order.
    """
    (n, h, w, c), (kh, kw), (sh, sw), _ = case
    (top, bottom), (left, right) = _padding(case)
    oh, ow = (max(0, h + top + bottom - kh) // sh + 1, max(0, w + left + right - kw) // sw + 1)
    oh, ow = (0 if h + top + bottom < kh else oh), (0 if w + left + right < kw else ow)
    found = []
    for b, y, x, k in itertools.product(range(n), range(oh), range(ow), range(c)):
        rows = [r for r in range(y * sh - top, y * sh - top + kh) if 0 <= r < h]
        columns = [s for s in range(x * sw - left, x * sw - left + kw) if 0 <= s < w]
        found.append(((b, y, x, k), [(b, r, s, k) for r in rows for s in columns]))
    return (n, oh, ow, c), found


def _to(array: Array, data_format: str) -> Array:
    return array if data_format == "NHWC" else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _random(shape: Shape, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def _tied(shape: Shape) -> Array:
    """Return values with so few levels that most windows have ties."""
    return np.random.default_rng(5).integers(-1, 2, shape).astype(np.float64)


@pytest.mark.parametrize(("case", "data_format"), GRID)
@pytest.mark.parametrize("make", [_random, _tied])
def test_max_pool_and_its_gradient(case: Any, data_format: str, make: Any) -> None:
    x = make(case[0])
    shape, found = _windows(case)
    y, dx, dy = np.zeros(shape), np.zeros(case[0]), _random(shape, 1)
    for at, window in found:
        if window:
            first = max(window, key=lambda index: x[index])  # max keeps the first of equals
            y[at] = x[first]
            dx[first] += dy[at]
        else:
            y[at] = np.finfo(np.float64).min
    args = (case[1], case[2], _padding(case), data_format)
    result = max_pool(_to(x, data_format), *args)
    np.testing.assert_array_equal(result, _to(y, data_format))
    gradient = max_pool_grad(_to(x, data_format), result, _to(dy, data_format), *args)
    np.testing.assert_allclose(gradient, _to(dx, data_format), atol=1e-12)


@pytest.mark.parametrize(("case", "data_format"), GRID)
def test_avg_pool_and_its_gradient(case: Any, data_format: str) -> None:
    x = _random(case[0])
    shape, found = _windows(case)
    y, dx, dy = np.zeros(shape), np.zeros(case[0]), _random(shape, 1)
    for at, window in found:
        for index in window:
            y[at] += x[index] / len(window)
            dx[index] += dy[at] / len(window)
    args = (case[1], case[2], _padding(case), data_format)
    np.testing.assert_allclose(avg_pool(_to(x, data_format), *args), _to(y, data_format), atol=1e-12)
    gradient = avg_pool_grad(_to(x, data_format).shape, _to(dy, data_format), *args)
    np.testing.assert_allclose(gradient, _to(dx, data_format), atol=1e-12)


TWO: Any = ((2, 2), (2, 2), ((0, 0), (0, 0)), "NHWC")


def test_first_of_equal_maxima_in_row_major_order_gets_the_gradient() -> None:
    x = np.array([[[[1.0], [3.0], [2.0], [2.0]], [[3.0], [3.0], [2.0], [2.0]]]])
    y = max_pool(x, *TWO)
    dx = max_pool_grad(x, y, np.array([[[[5.0], [7.0]]]]), *TWO)
    np.testing.assert_array_equal(dx[0, :, :, 0], [[0, 5, 7, 0], [0, 0, 0, 0]])


def test_infinite_gradients_and_inputs_affect_only_their_window() -> None:
    x = np.full((1, 2, 4, 1), -np.inf)
    x[0, 1, 3, 0] = np.inf
    y = max_pool(x, *TWO)
    np.testing.assert_array_equal(y[0, :, :, 0], [[-np.inf, np.inf]])
    dx = max_pool_grad(x, y, np.array([[[[np.inf], [np.nan]]]]), *TWO)
    np.testing.assert_array_equal(dx[0, :, :, 0], [[np.inf, 0, 0, 0], [0, 0, 0, np.nan]])


def test_max_pool_passes_nan_on() -> None:
    x = np.zeros((1, 2, 2, 1), np.float32)
    x[0, 1, 0, 0] = np.nan
    assert np.isnan(max_pool(x, *TWO)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32])
@pytest.mark.parametrize("strides", [(2, 2), (1, 1)])
def test_dtypes_are_kept(dtype: Any, strides: tuple[int, int]) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 4, 4, 3)).astype(dtype)
    args: Any = ((2, 2), strides, ((0, 0), (0, 0)), "NHWC")
    exact = x.astype(np.float64)
    y, mean = max_pool(x, *args), avg_pool(x, *args)
    assert y.dtype == mean.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float64), max_pool(exact, *args))
    expected = avg_pool(exact, *args)
    np.testing.assert_array_equal(mean.astype(np.float64), np.trunc(expected) if dtype is np.int32 else expected)
    dx, spread = max_pool_grad(x, y, y, *args), avg_pool_grad(x.shape, y * dtype(4), *args)
    assert dx.dtype == spread.dtype == dtype
    pooled = y.astype(np.float64)
    np.testing.assert_array_equal(dx.astype(np.float64), max_pool_grad(exact, pooled, pooled, *args))
    np.testing.assert_array_equal(spread.astype(np.float64), avg_pool_grad(x.shape, pooled * 4, *args))


def test_average_gradient_agrees_with_finite_differences() -> None:
    args: Any = ((3, 2), (2, 1), ((1, 1), (0, 1)), "NHWC")
    x = _random((1, 5, 4, 2))
    dy = _random(avg_pool(x, *args).shape, 1)
    dx = avg_pool_grad(x.shape, dy, *args)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-3
        change = avg_pool(x + step, *args) - avg_pool(x - step, *args)
        np.testing.assert_allclose((change * dy).sum() / 2e-3, dx[index], atol=1e-9)


@pytest.mark.parametrize("stride", [1, 3, 2**31])
def test_windows_much_larger_than_the_image(stride: int) -> None:
    """Window positions outside the image cost no time."""
    x, size = _random((2, 5, 4, 3)), 2**31
    pad = tuple(same_padding(length, size, stride, 1) for length in x.shape[1:3])
    args: Any = ((size, size), (stride, stride), pad, "NHWC")
    small: Any = ((11, 11), (min(stride, 5), min(stride, 5)), ((5, 5), (5, 5)), "NHWC")
    y = max_pool(x, *args)
    expected = max_pool(x, *small)[:, : y.shape[1], : y.shape[2]]
    np.testing.assert_array_equal(y, expected)
    assert y.max() == y.min(axis=(1, 2)).max()
    np.testing.assert_allclose(avg_pool(x, *args), np.broadcast_to(x.mean((1, 2), keepdims=True), y.shape))
    assert max_pool_grad(x, y, np.ones_like(y), *args).sum() == y.size
    np.testing.assert_allclose(avg_pool_grad(x.shape, np.ones_like(y), *args).sum(), y.size)


def test_many_blocks_and_any_view_equal_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random((9, 6, 6, 8))[::-1, :, ::-1, ::2]
    x.flags.writeable = False
    dense = np.ascontiguousarray(x)
    y = max_pool(dense, *TWO)
    expected = y, avg_pool(dense, *TWO), max_pool_grad(dense, y, y, *TWO)
    monkeypatch.setattr(pooling, "_MIN_BLOCK_BYTES", 1)
    monkeypatch.setattr(pooling, "_MAX_BLOCK_BYTES", 1)
    got = max_pool(x, *TWO), avg_pool(x, *TWO), max_pool_grad(x, y, y, *TWO)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("shape", "ksize", "strides", "data_format"),
    [
        ((1, 2, 2), (1, 1), (1, 1), "NHWC"),
        ((1, 2, 2, 1), (0, 1), (1, 1), "NHWC"),
        ((1, 2, 2, 1), (1, 1), (1, 1), "NWHC"),
    ],
)
def test_invalid_arguments_raise_value_error(shape: Shape, ksize: Any, strides: Any, data_format: str) -> None:
    with pytest.raises(ValueError):
        max_pool(np.ones(shape), ksize, strides, ((0, 0), (0, 0)), data_format)


def test_gradient_of_another_shape_raises_value_error() -> None:
    x, wrong = np.ones((1, 4, 4, 1)), np.ones((1, 2, 1, 1))
    y = max_pool(x, *TWO)
    with pytest.raises(ValueError):
        max_pool_grad(x, y, wrong, *TWO)
    with pytest.raises(ValueError):
        max_pool_grad(x, wrong, y, *TWO)
    with pytest.raises(ValueError):
        avg_pool_grad(x.shape, wrong, *TWO)
