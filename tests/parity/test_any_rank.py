"""Convolutions and pools along one to three axes, and small builders of `nn`, against TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest


def array(*shape: int) -> Any:
    """Return different numbers, so that a maximum has one place only."""
    return np.random.default_rng(len(shape)).permutation(int(np.prod(shape))).reshape(shape).astype(np.float32) / 50


ROW, IMAGE, VOLUME = (2, 9, 3), (2, 7, 6, 3), (1, 5, 6, 4, 2)
KERNEL1, KERNEL2, KERNEL3 = (3, 3, 4), (3, 2, 3, 4), (2, 3, 2, 2, 3)


def twice(images: Any, axes: int, padding: str) -> Any:
    """Return what `with_space_to_batch` moves over the pixels."""
    assert (axes, padding) == (2, "VALID")
    return images[:, 1:, 1:] * 2


# A builder with the shapes of its arguments.
CASES: Final[dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]] = {
    "conv1d": (lambda m, x, w: m.nn.conv1d(x, w, 2, "SAME"), (ROW, KERNEL1)),
    "conv1d, dilated": (lambda m, x, w: m.nn.conv1d(x, w, 1, "VALID", dilations=2), (ROW, KERNEL1)),
    "conv1d, strides": (lambda m, x, w: m.nn.conv1d(x, w, [1, 2, 1], "VALID", data_format="NWC"), (ROW, KERNEL1)),
    "conv1d_transpose": (
        lambda m, x, w: m.nn.conv1d_transpose(x, w, [2, 18, 5], 2),
        (ROW, (3, 5, 3)),
    ),
    "conv_transpose, rows": (
        lambda m, x, w: m.nn.conv_transpose(x, w, [2, 19, 5], 2, "VALID"),
        (ROW, (3, 5, 3)),
    ),
    "conv_transpose, images": (
        lambda m, x, w: m.nn.conv_transpose(x, w, [2, 14, 6, 4], [2, 1]),
        (IMAGE, (3, 2, 4, 3)),
    ),
    "conv_transpose, volumes": (
        lambda m, x, w: m.nn.conv_transpose(x, w, [1, 5, 12, 4, 3], [1, 2, 1]),
        (VOLUME, (2, 3, 2, 3, 2)),
    ),
    "convolution, rows": (lambda m, x, w: m.nn.convolution(x, w, "SAME", dilation_rate=[2]), (ROW, KERNEL1)),
    "convolution, images": (lambda m, x, w: m.nn.convolution(x, w, "VALID", [2, 1]), (IMAGE, KERNEL2)),
    "convolution, dilated": (lambda m, x, w: m.nn.convolution(x, w, "SAME", None, [2, 3]), (IMAGE, KERNEL2)),
    "convolution, volumes": (lambda m, x, w: m.nn.convolution(x, w, "SAME", [1, 2, 1]), (VOLUME, KERNEL3)),
    "atrous_conv2d_transpose, SAME": (
        lambda m, x, w: m.nn.atrous_conv2d_transpose(x, w, [2, 7, 6, 4], 2, "SAME"),
        (IMAGE, (3, 2, 4, 3)),
    ),
    "atrous_conv2d_transpose, VALID": (
        lambda m, x, w: m.nn.atrous_conv2d_transpose(x, w, [2, 11, 8, 4], 2, "VALID"),
        (IMAGE, (3, 2, 4, 3)),
    ),
    "atrous_conv2d_transpose, rate 1": (
        lambda m, x, w: m.nn.atrous_conv2d_transpose(x, w, [2, 7, 6, 4], 1, "SAME"),
        (IMAGE, (3, 2, 4, 3)),
    ),
    "max_pool1d": (lambda m, x: m.nn.max_pool1d(x, 3, 2, "SAME"), (ROW,)),
    "avg_pool1d": (lambda m, x: m.nn.avg_pool1d(x, [3], [2], "VALID"), (ROW,)),
    "max_pool_v2, rows": (lambda m, x: m.nn.max_pool_v2(x, 2, 2, "SAME"), (ROW,)),
    "avg_pool_v2, images": (lambda m, x: m.nn.avg_pool_v2(x, [3, 2], 2, "SAME"), (IMAGE,)),
    "avg_pool_v2, volumes": (lambda m, x: m.nn.avg_pool_v2(x, 2, [2, 1, 2], "VALID"), (VOLUME,)),
    "pool, rows": (lambda m, x: m.nn.pool(x, [3], "MAX", "SAME", strides=[2]), (ROW,)),
    "pool, images": (lambda m, x: m.nn.pool(x, [2, 3], "AVG", "VALID", strides=[1, 2]), (IMAGE,)),
    "pool, volumes": (lambda m, x: m.nn.pool(x, [2, 2, 2], "MAX", "SAME"), (VOLUME,)),
    "pool, dilated": (lambda m, x: m.nn.pool(x, [2, 3], "MAX", "VALID", [2, 1]), (IMAGE,)),
    "pool, dilated means": (lambda m, x: m.nn.pool(x, [2, 2], "AVG", "VALID", [2, 3]), (IMAGE,)),
    "with_space_to_batch": (
        lambda m, x: m.nn.with_space_to_batch(x, [2, 3], "SAME", twice, [2, 2]),
        (IMAGE,),
    ),
    "with_space_to_batch, one axis": (
        lambda m, x: m.nn.with_space_to_batch(x, [2], "VALID", lambda y, *_: y[:, :, 1:], spatial_dims=[2]),
        (IMAGE,),
    ),
    "batch_norm_with_global_normalization": (
        lambda m, *xs: m.nn.batch_norm_with_global_normalization(*xs, 0.1, True),
        (IMAGE, (3,), (3,), (3,), (3,)),
    ),
    "batch_norm_with_global_normalization, no scale": (
        lambda m, *xs: m.nn.batch_norm_with_global_normalization(*xs, 0.1, False),
        (IMAGE, (3,), (3,), (3,), (3,)),
    ),
    "swish": (lambda m, x: m.nn.swish(x - 1), (ROW,)),
    "silu": (lambda m, x: m.nn.silu(x - 1, 0.5), (ROW,)),
    "space_to_batch": (lambda m, x: m.nn.space_to_batch(x, [[0, 1], [0, 0]], 2), (IMAGE,)),
    "space_to_depth": (lambda m, x: m.nn.space_to_depth(x, 2), ((1, 4, 6, 2),)),
    "depth_to_space": (lambda m, x: m.nn.depth_to_space(x, 2), ((1, 2, 3, 8),)),
}


# TensorFlow's static shapes know less, or its builder needs a known batch size.
OPEN: Final = ("conv1d_transpose", "conv_transpose", "atrous_conv2d_transpose", "convolution, rows", "convolution, d")


@pytest.mark.parametrize("name", CASES)
def test_builder_equals_tensorflows(parity: Any, name: str) -> None:
    build, shapes = CASES[name]
    arrays = [array(*shape) for shape in shapes]
    # TensorFlow's kernels for the CPU have no gradient of a dilated convolution.
    grad = name != "conv1d, dilated"
    parity(build, *arrays, grad=grad, rtol=1e-4, atol=1e-5, static=not name.startswith(OPEN))
