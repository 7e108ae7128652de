"""Batch norm, moments and the other normalizations against TensorFlow."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.ops.apply import make_list

TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-4, "float64": 1e-8}


def array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def within(dtype: str) -> dict[str, float]:
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


def channels(seed: int) -> np.ndarray[Any, Any]:
    return abs(array((3,), seed=seed)) + np.float32(0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (1, 1, 1, 3), (3, 1, 2, 3)])
def test_fused_batch_norm_training(parity: Any, shape: tuple[int, ...], dtype: str) -> None:
    def build(m: Any, x: Any, scale: Any, offset: Any) -> Any:
        return list(m.nn.fused_batch_norm(x, scale, offset))

    # TensorFlow rounds 16-bit floats at other places.
    parity(build, array(shape, dtype), channels(1), channels(2), grad=dtype == "float32", grad_of=[0], **within(dtype))


def test_fused_batch_norm_inference(parity: Any) -> None:
    def build(m: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        return list(m.nn.fused_batch_norm(x, scale, offset, mean, variance, is_training=False))

    parity(build, array((2, 4, 5, 3)), *(channels(i) for i in range(4)), grad_of=[0], **within("float32"))


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.9])
def test_fused_batch_norm_running(parity: Any, factor: float) -> None:
    def build(m: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        return list(m.nn.fused_batch_norm(x, scale, offset, mean, variance, exponential_avg_factor=factor))

    parity(build, array((2, 4, 5, 3)), *(channels(i) for i in range(4)), grad_of=[0], **within("float32"))


@pytest.mark.parametrize("training", [True, False])
def test_fused_batch_norm_second_derivative(parity: Any, training: bool) -> None:
    def build(m: Any, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        moments = () if training else (mean, variance)
        y = m.nn.fused_batch_norm(x, scale, offset, *moments, is_training=training)[0]
        return m.gradients(y * y * y, [x, scale, offset])

    arrays = (array((2, 4, 5, 3)), *(channels(i) for i in range(4)))
    parity(build, *arrays, static=False, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("version", ["", "V2", "V3"])
def test_batch_norm_ops(parity: Any, version: str) -> None:
    names = ("x", "scale", "offset", "mean", "variance")

    def build(m: Any, *tensors: Any) -> Any:
        if m is aioflow:
            made = make_list(f"FusedBatchNorm{version}", *tensors)
        else:
            made = getattr(m.raw_ops, f"FusedBatchNorm{version}")(**dict(zip(names, tensors, strict=True)))
        return list(made)[:5]  # the sixth output is meaningless on the CPU

    arrays = (array((2, 4, 5, 3)), channels(0), channels(1), np.zeros(0, "f"), np.zeros(0, "f"))
    parity(build, *arrays, grad=False, **within("float32"))


@pytest.mark.parametrize("version", ["", "V2", "V3"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradient_ops(parity: Any, version: str, training: bool) -> None:
    names = ["y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2", "reserve_space_3"]
    arrays = [array((2, 4, 5, 3), seed=1), array((2, 4, 5, 3)), *(channels(i) for i in range(3)), channels(3)]
    if version != "V3":
        del names[-1], arrays[-1]

    def build(m: Any, *tensors: Any) -> Any:
        op = f"FusedBatchNormGrad{version}"
        if m is aioflow:
            return make_list(op, *tensors, is_training=training)[:3]
        return list(getattr(m.raw_ops, op)(**dict(zip(names, tensors, strict=True)), is_training=training))[:3]

    parity(build, *arrays, grad=False, **within("float32"))


@pytest.mark.parametrize("axes", [[0], [1], [0, 1], [0, 2], [0, 1, 2], [-1], []])
@pytest.mark.parametrize("keepdims", [False, True])
def test_moments(parity: Any, axes: list[int], keepdims: bool) -> None:
    def build(m: Any, x: Any) -> Any:
        return list(m.nn.moments(x, axes, keepdims=keepdims))

    for dtype in ("float32", "float64", "float16"):
        # Without axes TensorFlow's squeeze loses the shape.
        parity(build, array((3, 4, 5), dtype), static=bool(axes), **within(dtype))


def test_sufficient_statistics(parity: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        count, mean, variance, shift = m.nn.sufficient_statistics(x, [0, 1], shift=0.5)
        return [mean, variance, *m.nn.normalize_moments(count, mean, variance, shift)]

    parity(build, array((3, 4, 5)))


@pytest.mark.parametrize("shape", [(3, 1, 5), (3, 4, 5), (1, 1, 5)])
def test_weighted_moments(parity: Any, shape: tuple[int, ...]) -> None:
    def build(m: Any, x: Any, w: Any) -> Any:
        return list(m.nn.weighted_moments(x, [0, 1], w))

    parity(build, array((3, 4, 5)), abs(array(shape, seed=1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("offset", "scale"), [(True, True), (True, False), (False, True), (False, False)])
def test_batch_normalization(parity: Any, offset: bool, scale: bool) -> None:
    def build(m: Any, x: Any, mean: Any, variance: Any, b: Any, g: Any) -> Any:
        y = m.nn.batch_normalization(x, mean, variance, b if offset else None, g if scale else None, 1e-3)
        return [y, b + g]  # so that every input has a gradient

    parity(build, array((4, 3)), *(channels(i) for i in range(4)))


@pytest.mark.parametrize("axis", [None, 0, 1, -1, [0, 1]])
def test_l2_normalize(parity: Any, axis: Any) -> None:
    parity(lambda m, x: m.nn.l2_normalize(x, axis), array((3, 4)))
    parity(lambda m, x: m.nn.l2_normalize(x, axis), np.zeros((3, 4), np.float32))


@pytest.mark.parametrize("radius", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("beta", [0.5, 0.75])
def test_local_response_normalization(parity: Any, radius: int, beta: float) -> None:
    def build(m: Any, x: Any) -> Any:
        return m.nn.local_response_normalization(x, depth_radius=radius, bias=1.5, alpha=0.3, beta=beta)

    parity(build, array((2, 3, 2, 6)), rtol=1e-4, atol=1e-5)
    if beta == 0.5:
        parity(build, array((2, 3, 2, 6), "float16"), grad=False, **within("float16"))
