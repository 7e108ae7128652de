"""Convolutions and pools of any rank: channels first, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.testing.evaluate import evaluate


def array(*shape: int) -> Any:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_channels_first_equals_channels_last(axes: int) -> None:
    x, w = array(2, *(6, 5, 4)[:axes], 3), array(*(3, 2, 2)[:axes], 3, 4)
    last, first = ("NWC", "NHWC", "NDHWC")[axes - 1], ("NCW", "NCHW", "NCDHW")[axes - 1]
    moved = np.moveaxis(x, -1, 1)
    made = [
        af.nn.convolution(x, w, "SAME", 2, data_format=last),
        af.nn.convolution(moved, w, "SAME", 2, data_format=first),
        af.nn.pool(x, [2] * axes, "MAX", "VALID", data_format=last),
        af.nn.pool(moved, [2] * axes, "MAX", "VALID", data_format=first),
        af.nn.pool(x, [2] * axes, "AVG", "VALID", [2] * axes, data_format=last),
        af.nn.pool(moved, [2] * axes, "AVG", "VALID", [2] * axes, data_format=first),
    ]
    found = evaluate(made)
    for channels_last, channels_first in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_allclose(np.moveaxis(channels_first, 1, -1), channels_last, rtol=1e-4, atol=1e-5)


def test_conv1d_transpose_with_channels_first() -> None:
    x, w = array(2, 5, 3), array(3, 4, 3)
    last = af.nn.conv1d_transpose(x, w, [2, 10, 4], 2)
    first = af.nn.conv1d_transpose(np.moveaxis(x, -1, 1), w, [2, 4, 10], 2, data_format="NCW")
    expected, found = evaluate([last, first])
    np.testing.assert_allclose(np.moveaxis(found, 1, -1), expected, rtol=1e-4, atol=1e-5)


REFUSED: Final[dict[str, tuple[Callable[[], Any], str]]] = {
    "filter of rank 2": (lambda: af.nn.convolution(array(2, 5, 3), array(3, 4), "SAME"), "rank of 3, 4 or 5"),
    "layout of another rank": (
        lambda: af.nn.convolution(array(2, 5, 3), array(3, 3, 4), "SAME", data_format="NDHWC"),
        "data_format 'NDHWC' is unknown for 1 spatial axes",
    ),
    "strides of another rank": (
        lambda: af.nn.convolution(array(2, 5, 3), array(3, 3, 4), "SAME", [1, 2]),
        "strides has a wrong length",
    ),
    "conv1d without padding": (lambda: af.nn.conv1d(array(2, 5, 3), array(3, 3, 4), 1), "conv1d needs padding"),
    "unknown pool": (lambda: af.nn.pool(array(2, 5, 3), [2], "MIN", "SAME"), "pool 'MIN' is unknown"),
    "strides and dilations": (
        lambda: af.nn.pool(array(2, 9, 3), [2], "MAX", "SAME", [2], [2]),
        "neither strides nor padding",
    ),
    "SAME and dilations": (
        lambda: af.nn.pool(array(2, 9, 3), [2], "MAX", "SAME", [2]),
        "neither strides nor padding",
    ),
    "four axes": (lambda: af.nn.pool(array(2, 9, 3), [2] * 4, "MAX", "SAME"), "number of spatial axes"),
    "rate 0": (lambda: af.nn.with_space_to_batch(array(2, 9, 3), [0], "VALID", lambda x, *_: x), "positive values"),
    "SAME without a window": (
        lambda: af.nn.with_space_to_batch(array(2, 9, 3), [2], "SAME", lambda x, *_: x),
        "needs filter_shape",
    ),
    "unknown padding": (
        lambda: af.nn.with_space_to_batch(array(2, 9, 3), [2], "FULL", lambda x, *_: x),  # type: ignore[arg-type]  # refused
        "the padding is unknown",
    ),
    "axis of the batch": (
        lambda: af.nn.with_space_to_batch(array(2, 9, 3), [2], "VALID", lambda x, *_: x, spatial_dims=[0]),
        "spatial_dims does not fit",
    ),
    "no mean": (
        lambda: af.nn.batch_norm_with_global_normalization(array(2, 3), variance_epsilon=0.1),
        "an argument is missing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_named(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        build()
