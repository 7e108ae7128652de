"""The GPU's convolutions and pools over volumes, and pools with argmax, against the CPU's."""

from __future__ import annotations

import itertools
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.registry import KERNELS
from aioflow.testing.evaluate import evaluate
from aioflow.typing import VolumeFormat
from aioflow_cupy.windows import ArrayWindows
from tests.backends.cupy.evaluation import evaluator
from tests.backends.cupy.fakes import PlainDevice
from tests.support.dense import dense

RNG: Final = np.random.default_rng(5)
ON_GPU: Final[dict[str, int]] = {}


def _ran(node: Any, waited: int) -> None:
    ON_GPU[node.op] = waited


evaluate_here = evaluator(PlainDevice(), _ran)


def normal(tensor: Any, dtype: Any) -> Any:
    """Return a random value for a placeholder."""
    return RNG.normal(size=tensor.shape.as_list()).astype(dtype)


def check(tensors: list[Any], feeds: dict[Any, Any], ops: set[str], tolerance: float = 1e-5) -> None:
    """Assert that the fake GPU agrees with the CPU and runs `ops` itself, without making the host wait."""
    ON_GPU.clear()
    for gpu, cpu in zip(evaluate_here(tensors, feeds), evaluate(tensors, feeds), strict=True):
        assert gpu.dtype == cpu.dtype
        wide = np.float64 if gpu.dtype.kind != "i" else gpu.dtype
        np.testing.assert_allclose(gpu.astype(wide), cpu.astype(wide), rtol=tolerance, atol=tolerance)
    assert ops <= set(ON_GPU)
    assert not any(ON_GPU[op] for op in ops)


def five(layout: str, values: Any) -> list[int]:
    return [1, *values, 1] if layout == "NDHWC" else [1, 1, *values]


CONVOLUTIONS: Final = [
    *itertools.product(
        [((1, 1, 1), (1, 1, 1)), ((2, 1, 3), (1, 1, 1)), ((1, 1, 1), (2, 1, 2))],
        ["SAME", "VALID"],
        ["NDHWC", "NCDHW"],
        [1, 2, 4],
    )
]
CONV_OPS: Final = {"Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"}


@pytest.mark.parametrize(("steps", "padding", "layout", "groups"), CONVOLUTIONS, ids=str)
def test_convolutions(steps: Any, padding: Literal["SAME", "VALID"], layout: VolumeFormat, groups: int) -> None:
    shape = (2, 5, 6, 5, 4) if layout == "NDHWC" else (2, 4, 5, 6, 5)
    with af.Graph().as_default():
        image = af.placeholder(af.float32, shape)
        kernel = af.placeholder(af.float32, (2, 3, 2, 4 // groups, 8))
        made = af.nn.conv3d(image, kernel, steps[0], padding, layout, five(layout, steps[1]))
        slopes = af.gradients(af.reduce_sum(made * made), [image, kernel])
        feeds = {x: normal(x, np.float32) for x in (image, kernel)}
        check([made, *slopes], feeds, CONV_OPS, 3e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_convolutions_keep_their_dtype(dtype: Any) -> None:
    image, kernel = af.placeholder(dtype, (1, 4, 4, 5, 2)), af.placeholder(dtype, (3, 2, 2, 2, 3))
    made = af.nn.conv3d(image, kernel, 1, "SAME")
    slopes = af.gradients(made, [image, kernel])
    feeds = {x: normal(x, dtype) for x in (image, kernel)}
    check([made, *slopes], feeds, CONV_OPS, 1e-10 if dtype is np.float64 else 0.05)


@pytest.mark.parametrize("batch", [0, 1])
def test_filters_deeper_than_the_volume(batch: int) -> None:
    image, kernel = af.placeholder(af.float32, (batch, 2, 2, 2, 1)), af.placeholder(af.float32, (5, 3, 4, 1, 2))
    made = af.nn.conv3d(image, kernel, 1, "SAME")
    slopes = af.gradients(made, [image, kernel])
    feeds = {x: normal(x, np.float32) for x in (image, kernel)}
    check([made, *slopes], feeds, CONV_OPS, 1e-4)


POOLS: Final = [
    ((2, 2, 2), (2, 2, 2)),
    ((3, 2, 3), (1, 2, 1)),
    ((2, 3, 1), (3, 1, 2)),
    ((9, 2**31 - 1, 3), (1, 2, 2**31 - 1)),
]


@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("ksize", "strides"), POOLS, ids=str)
@pytest.mark.parametrize("pool", ["MaxPool3D", "AvgPool3D"])
def test_pools(pool: str, ksize: Any, strides: Any, padding: str, layout: str) -> None:
    shape = (2, 4, 5, 6, 3) if layout == "NDHWC" else (2, 3, 4, 5, 6)
    if padding == "VALID":
        ksize = tuple(min(*pair) for pair in zip(ksize, (4, 5, 6), strict=True))
    with af.Graph().as_default():
        image = af.placeholder(af.float32, shape)
        how: dict[str, Any] = {"ksize": five(layout, ksize), "strides": five(layout, strides), "padding": padding}
        made = af.extend.make(pool, image, data_format=layout, **how)
        (slope,) = dense(af.gradients(af.reduce_sum(made * made), [image]))
        (second,) = af.gradients(af.reduce_sum(slope * slope), [image])
        value = RNG.integers(0, 4, shape).astype(
            np.float32
        )  # with ties: the first of the largest elements gets the gradient
        ops = {pool, f"{pool}Grad"} | ({"MaxPool3DGradGrad"} if pool == "MaxPool3D" else set())
        check([made, slope, second], {image: value}, ops, 1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("pool", ["MaxPool3D", "AvgPool3D"])
def test_pools_keep_their_dtype(pool: str, dtype: Any) -> None:
    image = af.placeholder(dtype, (1, 4, 5, 4, 2))
    how: dict[str, Any] = {
        "ksize": [1, 3, 2, 3, 1],
        "strides": [1, 1, 2, 1, 1],
        "padding": "SAME",
        "data_format": "NDHWC",
    }
    made = af.extend.make(pool, image, **how)
    shape: Any = made.shape.as_list()
    given = (image, made) if pool == "MaxPool3D" else (np.array(image.shape.as_list(), np.int32),)
    slope = af.extend.make(f"{pool}Grad", *given, np.ones(shape, dtype), **how)
    value = normal(image, dtype)
    check([made, slope], {image: value}, {pool, f"{pool}Grad"}, 1e-10 if dtype is np.float64 else 0.02)


def test_max_pool_gradient_goes_to_the_nan_of_a_window() -> None:
    with af.Graph().as_default():
        image = af.placeholder(af.float32, (1, 2, 2, 2, 1))
        (slope,) = evaluate_here(
            af.gradients(af.nn.max_pool3d(image, 2, 2, "VALID"), [image]),
            {image: np.array([1, 2, 3, np.nan, 9, 5, np.nan, 7], np.float32).reshape(1, 2, 2, 2, 1)},
        )
    assert slope.reshape(-1).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.uint16])
def test_max_pool_with_argmax(dtype: Any, padding: str, whole: bool) -> None:
    image = af.placeholder(dtype, (2, 5, 6, 3))
    how: dict[str, Any] = {
        "ksize": [1, 3, 2, 1],
        "strides": [1, 1, 2, 1],
        "padding": padding,
        "include_batch_in_index": whole,
    }
    y, at = af.extend.make_list("MaxPoolWithArgmax", image, **how)
    slope = af.extend.make("MaxPoolGradWithArgmax", image, y, at, **how)
    value = RNG.integers(0, 9, (2, 5, 6, 3)) - (0 if dtype is np.uint16 else 5)
    check([y, at, slope], {image: value.astype(dtype)}, {"MaxPoolWithArgmax", "MaxPoolGradWithArgmax"})


def test_argmax_gradient_outside_of_the_image_is_dropped() -> None:
    how: dict[str, Any] = {"ksize": [1, 1, 2, 1], "strides": [1, 1, 2, 1], "padding": "VALID"}
    values = [np.zeros((2, 1, 4, 1), np.float32), np.ones((2, 1, 2, 1), np.float32)]
    values.append(np.array([0, 4, -1, 3]).reshape(2, 1, 2, 1))
    with af.Graph().as_default():
        given = [af.placeholder(v.dtype, v.shape) for v in values]
        slope = af.extend.make("MaxPoolGradWithArgmax", *given, **how)
        (made,) = evaluate_here([slope], dict(zip(given, values, strict=True)))
    assert made.reshape(-1).tolist() == [1, 0, 0, 0, 0, 0, 0, 1]


def test_mismatched_sizes_are_rejected() -> None:
    image = af.placeholder(af.float32)
    kernel = np.zeros((2, 2, 2, 2, 4), np.float32)
    made = af.nn.conv3d(image, kernel, 1, "VALID")
    with pytest.raises(InvalidArgumentError, match="input depth"):
        evaluate_here([made], {image: np.zeros((1, 3, 3, 3, 3), np.float32)})
    slope = af.extend.make(
        "AvgPool3DGrad", [1, 4, 4, 4, 1], image, ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="VALID"
    )
    with pytest.raises(InvalidArgumentError, match="grad has the wrong shape"):
        evaluate_here([slope], {image: np.zeros((1, 4, 4, 4, 1), np.float32)})


@pytest.mark.parametrize("size", [1, 2, 5])
def test_taps_along_an_axis_match_the_windows(size: int) -> None:
    """Compares `ArrayWindows.along` with a plain walk over windows and kernel positions."""
    for kernel, stride, dilation, before, count in itertools.product(
        (1, 2, 5, 9), (1, 3), (1, 2), (0, 1, 4), (1, 2, 4)
    ):
        taps = ArrayWindows((size,), (kernel,), (stride,), (dilation,), ((before, 0),), (count,))
        expected = {
            (tap, window, window * stride + tap * dilation - before)
            for tap in range(kernel)
            for window in range(count)
            if 0 <= window * stride + tap * dilation - before < size
        }
        found = [
            (tap, window, element)
            for tap, given, read in taps.along(0)
            for window, element in zip(range(count)[given], range(size)[read], strict=True)
        ]
        assert len(found) == len(set(found))
        assert set(found) == expected


def test_cpu_kernels_do_not_synchronise() -> None:
    assert [k.op for k in KERNELS if k.device_type == "CPU" and k.synchronises] == []
