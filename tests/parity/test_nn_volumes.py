"""3-D convolutions and pools, and pools with argmax, against TensorFlow, whose CPU kernels only support NDHWC."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate

TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-9}


def array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def distinct(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    return np.random.default_rng(3).permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


CASES = [
    ((2, 4, 5, 6, 3), (2, 3, 3, 3, 4), 1, "SAME"),
    ((2, 4, 5, 6, 3), (3, 2, 1, 3, 4), 1, "VALID"),
    ((1, 6, 7, 5, 2), (3, 3, 2, 2, 3), (2, 3, 1), "SAME"),
    ((1, 6, 7, 5, 2), (2, 3, 3, 2, 3), (3, 1, 2), "VALID"),
    ((1, 2, 2, 2, 1), (5, 3, 4, 1, 2), 1, "SAME"),
    ((2, 3, 3, 3, 2), (1, 1, 1, 2, 3), 2, "VALID"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv3d(parity: Any, case: Any) -> None:
    image, kernel, strides, padding = case
    steps = [1, *([strides] * 3 if isinstance(strides, int) else strides), 1]

    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.conv3d(x, w, strides=steps, padding=padding)

    parity(build, array(image), array(kernel, seed=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_conv3d_dtypes(parity: Any, dtype: str) -> None:
    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.conv3d(x, w, strides=[1, 2, 1, 2, 1], padding="SAME")

    x, w = array((1, 4, 4, 5, 2), dtype), array((2, 2, 3, 2, 3), dtype, 1)
    parity(build, x, w, grad=dtype in ("float32", "float64"), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_conv3d_transpose(parity: Any) -> None:
    def build(m: Any, y: Any, w: Any) -> Any:
        return m.nn.conv3d_transpose(y, w, [2, 6, 7, 5, 2], strides=[1, 2, 3, 1, 1], padding="SAME")

    parity(build, array((2, 3, 3, 5, 4)), array((3, 3, 2, 2, 4), seed=1), rtol=1e-4, atol=1e-4)


POOLS = [
    ((2, 4, 5, 6, 3), 2, 2, "VALID"),
    ((2, 4, 5, 6, 3), (3, 2, 3), (1, 2, 1), "SAME"),
    ((1, 2, 3, 2, 2), (4, 3, 5), (1, 1, 1), "SAME"),
    ((1, 7, 5, 6, 1), (1, 3, 2), (3, 1, 2), "VALID"),
]


def five(value: Any) -> list[int]:
    return [1, *([value] * 3 if isinstance(value, int) else value), 1]


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("kind", ["max_pool3d", "avg_pool3d"])
def test_pools_3d(parity: Any, kind: str, case: Any) -> None:
    shape, ksize, strides, padding = case

    def build(m: Any, x: Any) -> Any:
        return getattr(m.nn, kind)(x, ksize=five(ksize), strides=five(strides), padding=padding)

    parity(build, distinct(shape), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["max_pool3d", "avg_pool3d"])
def test_pools_3d_in_bfloat16(parity: Any, kind: str) -> None:
    def build(m: Any, x: Any) -> Any:
        return getattr(m.nn, kind)(x, ksize=2, strides=1, padding="SAME")

    parity(build, array((1, 3, 4, 3, 2), "bfloat16"), grad=False, rtol=3e-2, atol=3e-2)


def test_max_pool3d_second_derivative(parity: Any) -> None:
    def build(m: Any, x: Any, g: Any) -> Any:
        y = m.nn.max_pool3d(x, ksize=2, strides=2, padding="SAME")
        (first,) = m.gradients(y * y, [x])
        return m.gradients(first * g, [y])[0]

    x = distinct((1, 3, 4, 5, 2))
    parity(build, x, array(x.shape), grad=False, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layout", ["Conv3D", "MaxPool3D", "AvgPool3D"])
def test_ncdhw_matches_ndhwc(layout: str) -> None:
    x, w = distinct((2, 4, 5, 6, 3)), array((2, 3, 3, 3, 4), seed=1)
    if layout == "Conv3D":
        how: dict[str, Any] = {"strides": [1, 1, 2, 3, 1]}
        given = [w]
    else:
        how, given = {"ksize": [1, 2, 2, 3, 1], "strides": [1, 1, 2, 3, 1]}, []
    other: dict[str, Any] = {name: [v[0], v[4], *v[1:4]] for name, v in how.items()}
    y = make(layout, x, *given, padding="SAME", **how)
    z = make(layout, x.transpose(0, 4, 1, 2, 3), *given, padding="SAME", data_format="NCDHW", **other)
    one, two = evaluate([y, z])
    assert z.dims == (2, y.dims[4], *y.dims[1:4])  # type: ignore[index]
    np.testing.assert_array_equal(two, one.transpose(0, 4, 1, 2, 3))


def four(value: Any) -> list[int]:
    return [1, *([value] * 2 if isinstance(value, int) else value), 1]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("case", [(2, 2, "VALID"), (3, 1, "SAME"), ((2, 3), (1, 2), "SAME")], ids=str)
def test_max_pool_with_argmax(parity: Any, case: Any, whole: bool) -> None:
    ksize, strides, padding = case

    def build(m: Any, x: Any) -> Any:
        values, places = m.nn.max_pool_with_argmax(x, four(ksize), four(strides), padding, include_batch_in_index=whole)
        return [values, places, m.gradients(values * values, [x])[0]]

    parity(build, distinct((2, 5, 6, 3)), grad=False)


def test_max_pool_argmax_of_ties_is_the_first(parity: Any) -> None:
    def build(m: Any, x: Any) -> Any:
        return m.nn.max_pool_with_argmax(x, four(2), four(1), "SAME", output_dtype="int32")

    parity(build, np.ones((1, 3, 3, 2), np.float32), grad=False)
