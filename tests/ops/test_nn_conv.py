"""Convolutions and pools: NCHW against NHWC, plain sums, errors, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import InvalidArgumentError, OpError, UnimplementedError
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from aioflow.typing import ImageFormat
from tests.support.dense import dense


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def value_of(build: Callable[..., Any], *arrays: Any) -> np.ndarray[Any, Any]:
    with aioflow.Graph().as_default():
        return evaluate([build(*(aioflow.constant(a) for a in arrays))])[0]


def run_fed(build: Callable[..., Any], *arrays: Any) -> np.ndarray[Any, Any]:
    """Return the value of `build` for fed arrays, without static shapes."""
    with aioflow.Graph().as_default():
        xs = [aioflow.placeholder(np.asarray(a).dtype) for a in arrays]
        return evaluate([build(*xs)], dict(zip(xs, arrays, strict=True)))[0]


def naive_conv(x: Any, w: Any, stride: int, dilation: int) -> np.ndarray[Any, Any]:
    """Compute a convolution with VALID padding by its definition."""
    kh, kw, _, outputs = w.shape
    oh = (x.shape[1] - (kh - 1) * dilation - 1) // stride + 1
    ow = (x.shape[2] - (kw - 1) * dilation - 1) // stride + 1
    y = np.zeros((x.shape[0], oh, ow, outputs))
    for i, j in np.ndindex(kh, kw):
        rows = slice(i * dilation, i * dilation + (oh - 1) * stride + 1, stride)
        columns = slice(j * dilation, j * dilation + (ow - 1) * stride + 1, stride)
        y += np.einsum("nhwc,co->nhwo", x[:, rows, columns], w[i, j])
    return y


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_conv2d_matches_its_definition(stride: int, dilation: int) -> None:
    x, w = array(2, 9, 8, 3), array(3, 2, 3, 4, seed=1)

    def build(x: Any, w: Any) -> Any:
        return aioflow.nn.conv2d(x, w, stride, "VALID", dilations=dilation)

    expected = naive_conv(x, w, stride, dilation)
    np.testing.assert_allclose(value_of(build, x, w), expected, rtol=1e-9)
    np.testing.assert_allclose(run_fed(build, x, w), expected, rtol=1e-9)


def to_nchw(x: Any) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.transpose(x, (0, 3, 1, 2)))


BY_FORMAT: dict[str, Callable[..., Any]] = {
    "conv2d": lambda x, w, f: aioflow.nn.conv2d(x, w, (1, 2), "SAME", data_format=f),
    "depthwise": lambda x, w, f: aioflow.nn.depthwise_conv2d(x, w, (2, 2), "VALID", data_format=f),
    "max_pool": lambda x, w, f: aioflow.nn.max_pool(x, (2, 3), (1, 2), "SAME", f),
    "avg_pool": lambda x, w, f: aioflow.nn.avg_pool(x, (2, 3), (1, 2), "SAME", f),
}


@pytest.mark.parametrize("name", BY_FORMAT)
def test_nchw_matches_transposed_nhwc(name: str) -> None:
    x, w = array(2, 5, 6, 3), array(3, 2, 3, 4, seed=1)
    build = BY_FORMAT[name]
    made = {}
    for data_format, image in (("NHWC", x), ("NCHW", to_nchw(x))):
        with aioflow.Graph().as_default():
            a, b = aioflow.constant(image), aioflow.constant(w)
            y = build(a, b, data_format)
            wrt = [a, b] if "pool" not in name else [a]
            made[data_format] = evaluate([y, *dense(aioflow.gradients(y * y, wrt))])
    for i, (plain, other) in enumerate(zip(made["NHWC"], made["NCHW"], strict=True)):
        np.testing.assert_allclose(other, plain if i == 2 else to_nchw(plain), rtol=1e-9, atol=1e-12)


CONVOLUTIONS: list[tuple[Any, Any, dict[str, Any]]] = [
    ((1, 5, 5, 1), (2, 2, 1, 2), {"strides": 1, "padding": "VALID", "dilations": 2}),
    ((1, 4, 4, 4), (2, 2, 2, 4), {"strides": 1, "padding": "SAME"}),  # two groups
    ((1, 3, 3, 2), (2, 2, 2, 1), {"strides": 1, "padding": [[0, 0], [1, 0], [0, 2], [0, 0]]}),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_conv2d_gradients(case: Any) -> None:
    image, kernel, how = case
    x, w = array(*image), array(*kernel, seed=1)

    def build(x: Any, w: Any) -> Any:
        return aioflow.nn.conv2d(x, w, **how)

    def first(x: Any, w: Any) -> Any:
        y = build(x, w)
        return aioflow.gradients(y * y, [x, w])

    check_gradients(build, x, w)
    check_gradients(first, x, w, rtol=1e-4, atol=1e-5)


def test_depthwise_gradients() -> None:
    def build(x: Any, w: Any) -> Any:
        return aioflow.nn.depthwise_conv2d(x, w, (1, 1), "SAME", rate=2)

    def first(x: Any, w: Any) -> Any:
        y = build(x, w)
        return aioflow.gradients(y * y, [x, w])

    x, w = array(1, 4, 4, 2), array(2, 2, 2, 2, seed=1)
    check_gradients(build, x, w)
    check_gradients(first, x, w, rtol=1e-4, atol=1e-5)


def test_max_pool_grad_grad_is_the_adjoint_with_padding() -> None:
    # <MaxPoolGrad(g), h> = <g, MaxPoolGradGrad(h)> for all g, h.
    x = np.round(array(2, 5, 5, 3))  # with ties
    with aioflow.Graph().as_default():
        image = aioflow.constant(x)
        y = aioflow.nn.max_pool(image, 3, 2, "SAME")
        g, h = array(2, 3, 3, 3, seed=1), array(*x.shape, seed=2)
        how = {k: y.op.get_attr(k) for k in ("ksize", "strides", "padding")}
        left, right = evaluate([make("MaxPoolGrad", image, y, g, **how), make("MaxPoolGradGrad", image, y, h, **how)])
    assert (left * h).sum() == pytest.approx((right * g).sum())


@pytest.mark.parametrize("far", [2**31 - 1, 2**62])
@pytest.mark.parametrize("op", ["Conv2D", "DepthwiseConv2dNative"])
def test_huge_strides_and_dilations_work_for_a_single_window(op: str, far: int) -> None:
    # With a single window and a single kernel position, strides and dilations have no effect.
    rng = np.random.default_rng(3)
    image, kernel = rng.normal(size=(2, 4, 3, 2)), rng.normal(size=(1, 1, 2, 3))
    found = []
    for distance, dilation in ((far, far), (4, 1)):
        with aioflow.Graph().as_default():
            x, w = aioflow.constant(image), aioflow.constant(kernel)
            made = make(
                op, x, w, strides=[1, distance, distance, 1], dilations=[1, dilation, dilation, 1], padding="VALID"
            )
            found.append(evaluate([made, *dense(aioflow.gradients(made * made, [x, w]))]))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b)


def test_pool_padding_does_not_affect_values() -> None:
    made = value_of(lambda x: aioflow.nn.max_pool(x, 3, 1, "SAME"), -np.ones((1, 2, 2, 1), np.float32))
    np.testing.assert_array_equal(made, -np.ones((1, 2, 2, 1)))
    mean = value_of(lambda x: aioflow.nn.avg_pool(x, 3, 1, "SAME"), np.ones((1, 2, 2, 1), np.float32))
    np.testing.assert_array_equal(mean, np.ones((1, 2, 2, 1)))


def conv(**how: Any) -> Callable[..., Any]:
    return lambda x, w: aioflow.nn.conv2d(x, w, **{"strides": 1, "padding": "SAME", **how})


def pool(ksize: Any, strides: Any, padding: Any = "VALID", data_format: ImageFormat = "NHWC") -> Callable[..., Any]:
    return lambda x: aioflow.nn.max_pool(x, ksize, strides, padding, data_format)


IMAGE, FILTER = np.zeros((2, 5, 5, 3)), np.zeros((3, 3, 3, 4))


@pytest.mark.parametrize(
    ("build", "arrays", "number"),
    [
        (conv(), (IMAGE, np.zeros((3, 3, 2, 4))), "3 against 2"),
        (conv(), (np.zeros((2, 5, 5, 4)), np.zeros((3, 3, 2, 3))), "3"),
        (conv(), (np.zeros((5, 5, 3)), FILTER), "(5, 5, 3)"),
        (conv(), (IMAGE, np.zeros((3, 3, 4))), "(3, 3, 4)"),
        (conv(), (IMAGE, np.zeros((0, 3, 3, 4))), "(0, 3, 3, 4)"),
        (conv(), (IMAGE, np.zeros((3, 3, 0, 4))), "(3, 3, 0, 4)"),
        (conv(padding="VALID"), (np.zeros((2, 2, 5, 3)), FILTER), "2"),
        (conv(padding="VALID", dilations=3), (IMAGE, FILTER), "7"),
        (conv(strides=0), (IMAGE, FILTER), "[1, 0, 0, 1]"),
        (conv(strides=[1, 1, 1]), (IMAGE, FILTER), "[1, 1, 1]"),
        (conv(dilations=0), (IMAGE, FILTER), "[1, 0, 0, 1]"),
        (conv(padding="MIDDLE"), (IMAGE, FILTER), "MIDDLE"),
        (conv(padding=[[1, 0], [0, 0], [0, 0], [0, 0]]), (IMAGE, FILTER), "[1, 0, 0, 0, 0, 0, 0, 0]"),
        (conv(padding=[[0, 0], [-1, 0], [0, 0], [0, 0]]), (IMAGE, FILTER), "-1"),
        (conv(padding=3), (IMAGE, FILTER), "3"),
        (pool(6, 1), (IMAGE,), "6"),
        (pool(0, 1), (IMAGE,), "[1, 0, 0, 1]"),
        (pool(2, 0), (IMAGE,), "[1, 0, 0, 1]"),
        (pool(2, 1), (np.zeros((5, 5)),), "(5, 5)"),
        (lambda x: aioflow.nn.depthwise_conv2d(x, np.zeros((3, 3, 2, 1)), (1, 1), "SAME"), (IMAGE,), "3 against 2"),
        (
            lambda y: aioflow.nn.conv2d_transpose(y, FILTER, [2, 9, 9, 3], 2, "SAME"),
            (np.zeros((2, 4, 4, 4)),),
            "(2, 4, 4, 4)",
        ),
        (
            lambda y: aioflow.nn.conv2d_backprop_input([2, 5, 5], FILTER, y, 1, "SAME"),
            (np.zeros((2, 5, 5, 4)),),
            "(2, 5, 5)",
        ),
    ],
)
def test_wrong_shapes_and_attributes_are_refused(build: Any, arrays: Any, number: str) -> None:
    # The same error is raised at graph construction and, without static shapes, at run time.
    for way in (value_of, run_fed):
        with pytest.raises(InvalidArgumentError) as info:
            way(build, *arrays)
        assert info.value.op_type is not None or isinstance(info.value, OpError)
        assert number in str(info.value), str(info.value)


def test_convolution_with_an_empty_filter() -> None:
    # The result has no channels, and the gradient by the image is zero.
    image, kernel = aioflow.placeholder("float32"), aioflow.placeholder("float32")
    for convolve, channels in ((aioflow.nn.conv2d, 0), (aioflow.nn.depthwise_conv2d, 0)):
        made = convolve(image, kernel, [1, 2, 2, 1], "SAME")
        found = evaluate(
            [made, *dense(aioflow.gradients(made, [image, kernel]))],
            {image: np.ones((2, 5, 5, 3), np.float32), kernel: np.ones((3, 3, 3, 0), np.float32)},
        )
        assert [v.shape for v in found] == [(2, 3, 3, channels), (2, 5, 5, 3), (3, 3, 3, 0)]
        assert not found[1].any()


def test_windows_over_batch_or_channels_are_not_supported() -> None:
    for build in (conv(strides=[2, 1, 1, 1]), conv(dilations=[1, 1, 1, 2])):
        with pytest.raises(UnimplementedError):
            value_of(build, IMAGE, FILTER)
    for build in (pool([1, 1, 1, 3], 1), pool(1, [1, 1, 1, 3])):
        with pytest.raises(UnimplementedError):
            value_of(build, IMAGE)


def test_a_wrong_gradient_shape_is_refused_at_run_time() -> None:
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (
            lambda w, dy: aioflow.nn.conv2d_backprop_input([2, 5, 5, 3], w, dy, 1, "SAME"),
            (FILTER, np.zeros((2, 4, 5, 4))),
        ),
        (
            lambda x, dy: aioflow.nn.conv2d_backprop_filter(x, [3, 3, 3, 4], dy, 1, "SAME"),
            (IMAGE, np.zeros((2, 5, 5, 3))),
        ),
        (
            lambda dy: make("AvgPoolGrad", [2, 5, 5, 3], dy, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
            (np.zeros((2, 3, 3, 3)),),
        ),
        (
            lambda x, y, dy: make("MaxPoolGrad", x, y, dy, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
            (IMAGE, np.zeros((2, 2, 2, 3)), np.zeros((2, 3, 3, 3))),
        ),
    ]
    for build, arrays in cases:
        with pytest.raises(InvalidArgumentError) as info:
            run_fed(build, *(a.astype("float32") for a in arrays))
        assert info.value.node is not None
        assert info.value.expected is not None


def test_gradients_of_static_shapes_make_no_shape_nodes() -> None:
    with aioflow.Graph().as_default() as graph:
        x = aioflow.placeholder("float32", [8, 28, 28, 1])
        y = aioflow.nn.avg_pool(aioflow.nn.conv2d(x, np.zeros((5, 5, 1, 8), "f"), 1, "SAME"), 2, 2, "SAME")
        aioflow.gradients(y, x)
        assert not [op for op in graph.get_operations() if op.type == "Shape"]
