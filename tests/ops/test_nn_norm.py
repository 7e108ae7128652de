"""Batch norm, moments and other normalizations: NCHW, values by hand, errors, gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError
from aioflow.testing.evaluate import evaluate
from aioflow.typing import ImageFormat, VolumeFormat
from tests.support.dense import dense


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def single(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return array(*shape, seed=seed).astype(np.float32)


def values_of(build: Callable[..., Any], *arrays: Any) -> list[np.ndarray[Any, Any]]:
    with aioflow.Graph().as_default():
        made = build(*(aioflow.constant(a) for a in arrays))
        return evaluate(list(made) if isinstance(made, list | tuple) else [made])


def close(actual: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=tolerance, atol=tolerance)


AXES = {"NHWC": (0, 1, 2), "NCHW": (0, 2, 3), "NDHWC": (0, 1, 2, 3), "NCDHW": (0, 2, 3, 4)}


def spread(vector: Any, data_format: str) -> np.ndarray[Any, Any]:
    return np.expand_dims(vector, AXES[data_format])


def shape(data_format: str) -> tuple[int, ...]:
    sizes = {"N": 2, "C": 3, "H": 4, "W": 5, "D": 2}
    return tuple(sizes[letter] for letter in data_format)


def reference(x: Any, scale: Any, offset: Any, data_format: str, epsilon: float = 1e-3) -> tuple[Any, Any, Any]:
    x = x.astype(np.float64)
    mean, variance = x.mean(AXES[data_format], keepdims=True), x.var(AXES[data_format], keepdims=True)
    y = (x - mean) / np.sqrt(variance + epsilon) * spread(scale, data_format) + spread(offset, data_format)
    return y, mean.ravel(), variance.ravel()


@pytest.mark.parametrize("data_format", AXES)
def test_batch_norm_in_training(data_format: ImageFormat | VolumeFormat) -> None:
    x, scale, offset = single(*shape(data_format)) * 3 + 5, single(3, seed=1), single(3, seed=2)
    made = values_of(lambda x, s, o: aioflow.nn.fused_batch_norm(x, s, o, data_format=data_format), x, scale, offset)
    y, mean, variance = reference(x, scale, offset, data_format)
    count = x.size // 3
    for actual, expected in zip(made, (y, mean, variance * count / (count - 1)), strict=True):
        close(actual, expected, 1e-4)


@pytest.mark.parametrize("data_format", AXES)
@pytest.mark.parametrize("training", [True, False])
def test_gradients_in_every_format(data_format: ImageFormat | VolumeFormat, training: bool) -> None:
    # The op supports float32 only. The reference is the gradient of the same formula in float64.
    x, dy = single(*shape(data_format)), single(*shape(data_format), seed=1)
    scale, offset = single(3, seed=2), single(3, seed=3)
    mean, variance = single(3, seed=4), abs(single(3, seed=5)) + 1
    axes = AXES[data_format]
    with aioflow.Graph().as_default():
        ts = [aioflow.constant(a) for a in (x, scale, offset)]
        how: dict[str, Any] = {} if training else {"mean": mean, "variance": variance}
        how |= {"data_format": data_format, "is_training": training}
        y = aioflow.nn.fused_batch_norm(ts[0], ts[1], ts[2], **how)[0]
        fused = evaluate(dense(aioflow.gradients(y, ts, grad_ys=aioflow.constant(dy))))
    with aioflow.Graph().as_default():
        wide = [aioflow.constant(a.astype(np.float64)) for a in (x, scale, offset)]
        s, o = (aioflow.reshape(t, spread(scale, data_format).shape) for t in wide[1:])
        if training:
            m = aioflow.reduce_mean(wide[0], axes, keepdims=True)
            v = aioflow.reduce_mean(aioflow.square(wide[0] - m), axes, keepdims=True)
        else:
            m, v = (aioflow.constant(spread(a, data_format).astype(np.float64)) for a in (mean, variance))
        y = (wide[0] - m) * aioflow.rsqrt(v + 1e-3) * s + o
        plain = evaluate(dense(aioflow.gradients(y, wide, grad_ys=aioflow.constant(dy.astype(np.float64)))))
    for actual, expected in zip(fused, plain, strict=True):
        close(actual, expected, 1e-4)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_keeps_float32_statistics(dtype: Any) -> None:
    x = (single(2, 4, 5, 3) * 2).astype(dtype)
    y, mean, variance = values_of(lambda x: aioflow.nn.fused_batch_norm(x, np.ones(3, "f"), np.zeros(3, "f")), x)
    assert (y.dtype, mean.dtype, variance.dtype) == (x.dtype, np.float32, np.float32)
    expected = reference(x, np.ones(3), np.zeros(3), "NHWC")
    close(y, expected[0], 2e-2)
    close(mean, expected[1])


def test_batch_norm_rejects_wrong_arguments() -> None:
    x, c = single(2, 4, 5, 3), np.ones(3, np.float32)
    refused: list[Callable[[], Any]] = [
        lambda: aioflow.nn.fused_batch_norm(x, c[:2], c),
        lambda: aioflow.nn.fused_batch_norm(x[0], c, c),
        lambda: aioflow.nn.fused_batch_norm(x, c, c, data_format="NCHW"),
        lambda: aioflow.nn.fused_batch_norm(x, c, c, is_training=False),
        lambda: aioflow.nn.fused_batch_norm(x, c, c, exponential_avg_factor=0.5),
        lambda: aioflow.nn.fused_batch_norm(x, c, c, c[:2], c, is_training=False),
    ]
    for build in refused:
        with aioflow.Graph().as_default(), pytest.raises(InvalidArgumentError):
            build()


def test_batch_norm_rejects_wrong_shapes_at_run_time() -> None:
    for bad in ((2, 3, 4), (2, 4, 5, 2)):
        with aioflow.Graph().as_default():
            x, s = aioflow.placeholder("float32"), aioflow.placeholder("float32")
            y = aioflow.nn.fused_batch_norm(x, s, s)[0]
            with pytest.raises(InvalidArgumentError) as info:
                evaluate([y], {x: np.zeros(bad, "f"), s: np.ones(3, "f")})
            assert info.value.node is not None


def test_batch_norm_of_an_empty_batch() -> None:
    y, mean, variance = values_of(
        lambda x: aioflow.nn.fused_batch_norm(x, np.ones(3, "f"), np.zeros(3, "f")), np.zeros((0, 4, 5, 3), np.float32)
    )
    assert (y.shape, mean.shape, variance.shape) == ((0, 4, 5, 3), (3,), (3,))


@pytest.mark.parametrize("axes", [0, np.int64(0), np.asarray(0), np.asarray([0]), [np.asarray(0)], (0,)])
def test_axes_of_moments_may_be_arrays(axes: Any) -> None:
    x = aioflow.constant([[1.0, 2.0], [3.0, 4.0]])
    for found in (aioflow.nn.moments(x, axes), aioflow.nn.weighted_moments(x, axes, 1.0)):
        assert [value.tolist() for value in evaluate(found)] == [[2, 3], [1, 1]]
    assert evaluate([aioflow.nn.sufficient_statistics(x, axes)[1]])[0].tolist() == [4, 6]
