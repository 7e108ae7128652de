"""Convolutions and pools against TensorFlow.

TensorFlow's CPU kernels only support NHWC. For NCHW this module compares static shapes; tests/ops compares the values
with those of NHWC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow
from aioflow.ops.apply import make

TOLERANCE = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-4, "float64": 1e-9}
FLOATS = list(TOLERANCE)


def array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def within(dtype: str) -> dict[str, float]:
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


def raw(op: str, *names: str, **attrs: Any) -> Callable[..., Any]:
    """Return a builder of the op itself: TensorFlow's raw builder or ours."""

    def build(m: Any, *tensors: Any) -> Any:
        if m is aioflow:
            return make(op, *tensors, **attrs)
        return getattr(m.raw_ops, op)(**dict(zip(names, tensors, strict=True)), **attrs)

    return build


# image, filter, strides, padding, dilations
CASES = [
    ((2, 5, 5, 3), (3, 3, 3, 4), 1, "SAME", 1),
    ((2, 5, 5, 3), (3, 3, 3, 4), 1, "VALID", 1),
    ((1, 7, 6, 2), (3, 2, 2, 5), (2, 3), "SAME", 1),
    ((1, 7, 6, 2), (3, 2, 2, 5), (3, 2), "VALID", 1),
    ((2, 8, 8, 3), (3, 3, 3, 2), 1, "SAME", 2),
    ((2, 8, 9, 3), (2, 3, 3, 2), 1, "VALID", (3, 2)),
    ((2, 4, 4, 3), (1, 1, 3, 5), 1, "SAME", 1),
    ((2, 4, 4, 3), (1, 1, 3, 5), 2, "VALID", 1),
    ((2, 4, 4, 4), (3, 3, 2, 6), 1, "SAME", 1),  # two groups
    ((1, 1, 1, 1), (1, 1, 1, 1), 1, "SAME", 1),
    ((0, 5, 5, 3), (3, 3, 3, 4), 1, "SAME", 1),
    ((2, 5, 4, 3), (5, 4, 3, 2), 1, "VALID", 1),
    ((2, 2, 2, 1), (5, 5, 1, 2), 1, "SAME", 1),
    ((1, 5, 6, 2), (3, 3, 2, 3), 1, [[0, 0], [1, 2], [0, 3], [0, 0]], 1),
    ((1, 5, 6, 2), (3, 3, 2, 3), 2, [[0, 0], [2, 1], [1, 1], [0, 0]], 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d(parity: Any, case: Any) -> None:
    image, kernel, strides, padding, dilations = case
    # TensorFlow's CPU kernels have no gradients with dilations or groups. tests/ops checks ours by differences.
    differentiable = dilations == 1 and image[3] == kernel[2]

    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.conv2d(x, w, strides=strides, padding=padding, dilations=dilations)

    parity(build, array(image), array(kernel, seed=1), grad=differentiable, **within("float32"))


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_conv2d_dtypes(parity: Any, dtype: str) -> None:
    x, w = array((2, 5, 5, 3)), array((3, 3, 3, 4), seed=1)
    if dtype == "int32":
        x, w = np.round(x * 5), np.round(w * 5)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    tolerance = within(dtype) if dtype in FLOATS else {}
    grad = dtype in ("float32", "float64")

    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.conv2d(x, w, strides=1, padding="SAME")

    parity(build, x.astype(kind), w.astype(kind), grad=grad, **tolerance)


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_conv2d_second_derivative(parity: Any, case: Any) -> None:
    image, kernel, strides, padding, dilations = case

    def build(m: Any, x: Any, w: Any) -> Any:
        y = m.nn.conv2d(x, w, strides=strides, padding=padding, dilations=dilations)
        return m.gradients(y * y, [x, w])

    parity(build, array(image, "float64"), array(kernel, "float64", 1), **within("float64"))


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_static_shapes(tf: Any, data_format: str, padding: str) -> None:
    shapes: list[tuple[Any, Any]] = [
        ([None, 9, None, 3], [3, 3, 3, 4]),
        ([None, None, None, None], [3, 3, 3, 4]),
        (None, [3, 3, 3, None]),
        ([2, 9, 9, 3], [None, 3, 3, 4]),
        ([2, 9, 9, 3], None),
        ([2, 9, 8, 6], [3, 3, None, None]),
    ]
    for image, kernel in shapes:
        if image is not None and data_format == "NCHW":
            image = [image[0], image[3], image[1], image[2]]
        made = []
        for m in (tf, aioflow):
            with m.Graph().as_default():
                x, w = m.placeholder("float32", image), m.placeholder("float32", kernel)
                four = [1, 1, 2, 2] if data_format == "NCHW" else [1, 2, 2, 1]
                ys = [
                    m.nn.conv2d(x, w, four, padding, data_format=data_format),
                    m.nn.depthwise_conv2d_native(x, w, four, padding, data_format=data_format),
                    m.nn.max_pool(x, 3, four, padding, data_format=data_format),
                    m.nn.avg_pool(x, 2, four, padding, data_format=data_format),
                ]
                made.append([None if y.shape.rank is None else y.shape.as_list() for y in ys])
        assert made[1] == made[0], (image, kernel)


@pytest.mark.parametrize("case", [c for c in CASES if c[0][3] == c[1][2] and c[4] == 1 and c[0][0]], ids=str)
def test_conv2d_transpose(parity: Any, case: Any) -> None:
    image, kernel, strides, padding, dilations = case
    probe = aioflow.Graph()
    with probe.as_default():
        dims = aioflow.nn.conv2d(
            np.zeros(image, "f"), np.zeros(kernel, "f"), strides, padding, dilations=dilations
        ).dims

    def build(m: Any, y: Any, w: Any) -> Any:
        return m.nn.conv2d_transpose(y, w, list(image), strides, padding, dilations=dilations)

    parity(build, array(tuple(d or 0 for d in dims or ())), array(kernel, seed=1), static=False, **within("float32"))


def test_backprop_builders(parity: Any) -> None:
    x, w, dy = array((2, 5, 5, 3)), array((3, 3, 3, 4), seed=1), array((2, 5, 5, 4), seed=2)
    parity(
        lambda m, w, dy: m.nn.conv2d_backprop_input([2, 5, 5, 3], w, dy, [1, 1, 1, 1], "SAME"),
        w,
        dy,
        static=False,  # TensorFlow infers the batch from out_backprop, although input_sizes has it
        **within("float32"),
    )
    parity(
        lambda m, x, dy: m.nn.conv2d_backprop_filter(x, [3, 3, 3, 4], dy, [1, 1, 1, 1], "SAME"),
        x,
        dy,
        **within("float32"),
    )


DEPTHWISE = [
    ((2, 5, 5, 3), (3, 3, 3, 2), 1, "SAME"),
    ((2, 5, 5, 3), (3, 3, 3, 1), 1, "VALID"),
    ((2, 6, 6, 1), (2, 3, 1, 4), 2, "SAME"),
    ((2, 6, 6, 2), (1, 1, 2, 3), 1, "SAME"),
    ((2, 6, 6, 2), (3, 3, 2, 1), 1, [[0, 0], [1, 2], [2, 0], [0, 0]]),
]


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_conv2d(parity: Any, case: Any) -> None:
    image, kernel, strides, padding = case
    four = [1, strides, strides, 1]

    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.depthwise_conv2d_native(x, w, four, padding)

    def twice(m: Any, x: Any, w: Any) -> Any:
        y = build(m, x, w)
        return m.gradients(y * y, [x, w])

    for dtype in ("float32", "float64"):
        parity(build, array(image, dtype), array(kernel, dtype, 1), **within(dtype))
    parity(twice, array(image, "float64"), array(kernel, "float64", 1), static=False, **within("float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_depthwise_conv2d_in_16_bit_floats(parity: Any, dtype: str) -> None:
    def build(m: Any, x: Any, w: Any) -> Any:
        return m.nn.depthwise_conv2d_native(x, w, [1, 1, 1, 1], "SAME")

    parity(build, array((1, 4, 4, 2), dtype), array((2, 2, 2, 2), dtype, 1), grad=False, **within(dtype))


@pytest.mark.parametrize("rate", [None, [1, 1], [2, 2]])
def test_depthwise_with_rate_and_separable_conv2d(parity: Any, rate: Any) -> None:
    x, w, p = array((2, 7, 7, 3)), array((3, 3, 3, 2), seed=1), array((1, 1, 6, 5), seed=2)

    def depthwise(m: Any, x: Any, w: Any) -> Any:
        return m.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", rate=rate)

    def separable(m: Any, x: Any, w: Any, p: Any) -> Any:
        return m.nn.separable_conv2d(x, w, p, [1, 1, 1, 1], "VALID", rate=rate)

    # TensorFlow's space_to_batch loses static sizes that aioflow keeps.
    static = rate != [2, 2]
    parity(depthwise, x, w, static=static, **within("float32"))
    parity(separable, x, w, p, static=static, **within("float32"))


def test_atrous_conv2d(parity: Any) -> None:
    parity(
        lambda m, x, w: m.nn.atrous_conv2d(x, w, 2, "SAME"),
        array((2, 7, 7, 3)),
        array((3, 3, 3, 2)),
        static=False,
        **within("float32"),
    )


POOLS = [
    ((2, 4, 4, 3), 2, 2, "VALID"),
    ((2, 5, 5, 3), 2, 2, "SAME"),
    ((2, 5, 5, 3), 3, 1, "SAME"),
    ((2, 5, 6, 3), (3, 2), (1, 3), "VALID"),
    ((1, 5, 5, 1), 2, 3, "SAME"),
    ((1, 1, 1, 1), 1, 1, "VALID"),
    ((0, 4, 4, 2), 2, 2, "VALID"),
    ((2, 3, 3, 2), 5, 2, "SAME"),
]


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_pool(parity: Any, name: str, case: Any) -> None:
    shape, ksize, strides, padding = case

    def build(m: Any, x: Any) -> Any:
        return getattr(m.nn, name)(x, ksize, strides, padding)

    for dtype in FLOATS if name == "avg_pool" else ["float16", "float32", "float64"]:
        parity(build, array(shape, dtype), grad=dtype not in ("float16", "bfloat16"), **within(dtype))


@pytest.mark.parametrize("case", [c for c in POOLS if 0 not in c[0]], ids=str)
@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_pool_second_derivative(parity: Any, name: str, case: Any) -> None:
    shape, ksize, strides, padding = case

    def twice(m: Any, x: Any) -> Any:
        y = getattr(m.nn, name)(x, ksize, strides, padding)
        return m.gradients(y * y, x)[0]

    parity(twice, array(shape, "float64"), **within("float64"))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16", "int8", "uint16", "bfloat16"])
def test_max_pool_of_other_dtypes(parity: Any, dtype: str) -> None:
    values = abs(array((2, 5, 5, 3)) * 9)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    parity(lambda m, x: m.nn.max_pool(x, 3, 2, "SAME"), values.astype(kind), grad=False)


def test_max_pool_with_explicit_padding(parity: Any) -> None:
    padding = [[0, 0], [1, 0], [0, 1], [0, 0]]
    parity(lambda m, x: m.nn.max_pool(x, 2, 2, padding), -1 - abs(array((2, 5, 5, 3))))


def test_max_pool_gradient_of_ties(parity: Any) -> None:
    """Check that the first of equal maxima, in row-major order, gets the gradient."""
    values = np.round(array((2, 6, 6, 3)))
    parity(lambda m, x: m.nn.max_pool(x, 3, 2, "SAME"), values)


def test_pool_gradient_ops(parity: Any) -> None:
    how: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    x = array((2, 4, 4, 3))
    y = x.reshape(2, 2, 2, 2, 2, 3).max(axis=(2, 4))
    dy = array(y.shape, seed=3)
    parity(raw("MaxPoolGrad", "orig_input", "orig_output", "grad", **how), x, y, dy)
    parity(raw("MaxPoolGradGrad", "orig_input", "orig_output", "grad", **how), x, y, array(x.shape, seed=4))
    shape = np.array([2, 4, 4, 3], np.int32)
    parity(raw("AvgPoolGrad", "orig_input_shape", "grad", **how), shape, dy, static=False)
