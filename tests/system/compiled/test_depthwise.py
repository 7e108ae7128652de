"""Tests that compiled depthwise convolutions are bitwise equal to NumPy, and are used once they are compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aioflow_numpy import conv_depthwise
from aioflow_numpy.compiled import depthwise as module
from aioflow_numpy.compiled.depthwise import CompiledDepthwise, compiled_depthwise, depthwise_program
from aioflow_numpy.compiled.wanted import BACKGROUND, numbers
from aioflow_numpy.conv_shapes import Windows, windows
from aioflow_numpy.convolution import depthwise_conv2d, depthwise_conv2d_backprop_input
from tests.system.compiled.chains import Array, compiler, same

pytestmark = compiler

# (image, kernel, strides, padding, dilations). In some cases the channels fill whole vectors, in others not.
CASES: list[Any] = [
    ((1, 9, 8, 144), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((2, 9, 8, 67), (3, 3), (2, 2), ((0, 1), (0, 1)), (1, 1)),
    ((3, 5, 4, 16), (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    ((1, 7, 9, 40), (3, 2), (1, 2), ((0, 0), (0, 0)), (2, 3)),
    ((2, 3, 3, 33), (3, 3), (3, 1), ((4, 3), (5, 2)), (1, 1)),
    ((1, 1, 1, 960), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((1, 30, 41, 17), (1, 1), (2, 3), ((0, 0), (0, 0)), (1, 1)),
    ((2, 61, 64, 224), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),  # several parts
]


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    compiled_depthwise.cache_clear()
    module._spent.clear()
    yield
    compiled_depthwise.cache_clear()


def _known(g: Windows, dtype: Any = np.float32) -> CompiledDepthwise:
    known = compiled_depthwise(g, np.dtype(dtype), conv_depthwise._by_numpy)
    assert known is not None
    return known


def _case(case: Any, dtype: Any) -> tuple[Windows, Array, Array]:
    """Return the windows of a case, and an image and filters with numbers of every kind."""
    shape, kernel, *geometry = case
    rng = np.random.default_rng(0)
    image, taps = (numbers(rng, np.dtype(dtype), each) for each in (shape, (*kernel, shape[3], 1)))
    return windows(shape, kernel, *geometry), image, taps


def _convolved(x: Array, taps: Array, case: Any, data_format: str = "NHWC") -> Array:
    strides, padding, dilations = case[2:]
    return depthwise_conv2d(x, taps, strides, padding, dilations, data_format)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_depthwise_convolution_is_bitwise_equal_to_numpy(case: Any, dtype: Any) -> None:
    g, image, taps = _case(case, dtype)
    usual = np.asarray(np.random.default_rng(1).standard_normal(image.shape), dtype)
    with np.errstate(all="ignore"):
        wanted = [_convolved(x, taps, case) for x in (image, usual)]
        known = _known(g, dtype)
        known.prepare()
        assert known.is_ready
        found = [_convolved(x, taps, case) for x in (image, usual)]
    assert all(map(same, wanted, found))


def test_images_may_have_any_memory_order() -> None:
    g, image, taps = _case(CASES[1], np.float32)
    _known(g).prepare()
    wanted = _convolved(image, taps, CASES[1])
    channels_first = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    found = _convolved(channels_first, taps, CASES[1], "NCHW")
    assert same(wanted, np.ascontiguousarray(found.transpose(0, 2, 3, 1)))
    gaps = np.repeat(image, 2, axis=3)[..., ::2]
    fixed = np.array(taps)
    fixed.flags.writeable = False
    assert same(wanted, _convolved(gaps, fixed, CASES[1]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_filters_may_have_any_memory_order(case: Any) -> None:
    """Check that NumPy and machine code add in the same order, so that compilation does not change results."""
    shape, kernel, *geometry = case
    rng, g = np.random.default_rng(0), windows(shape, kernel, *geometry)
    image, taps = (rng.standard_normal(each, np.float32) for each in (shape, (*kernel, shape[3], 1)))
    turned = np.asfortranarray(taps)
    wanted = _convolved(image, taps, case)
    assert same(wanted, _convolved(image, turned, case))
    _known(g).prepare()
    assert same(wanted, _convolved(image, turned, case))


def test_gradient_of_the_image_is_bitwise_equal_to_numpy() -> None:
    g, dy, taps = _case(CASES[0], np.float32)
    strides, padding, dilations = CASES[0][2:]

    def gradient() -> Array:
        return depthwise_conv2d_backprop_input(dy.shape, taps, dy, strides, padding, dilations, "NHWC")

    with np.errstate(all="ignore"):
        wanted = gradient()
        known = _known(g)  # at stride 1 the gradient is a convolution by the same windows
        known.prepare()
        assert known.is_ready
        assert same(wanted, gradient())


def test_compilation_starts_after_numpy_has_worked_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(BACKGROUND, "begin", asked.append)
    g, image, taps = _case(CASES[0], np.float32)
    monkeypatch.setattr(module, "_WORTH", 3 * g.rows * g.c * 9)
    for count in (0, 0, 1, 1):
        with np.errstate(all="ignore"):
            _convolved(image, taps, CASES[0])
        assert len(asked) == count
        assert not _known(g).is_ready
    asked[0]()
    assert _known(g).is_ready


@pytest.mark.parametrize("change", [("+= a[v]", "-= a[v]"), (": zeros", ": x"), ("oh * height", "oh * width")])
def test_code_with_different_results_is_not_used(
    change: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "depthwise_program", lambda dtype: depthwise_program(dtype).replace(*change))
    known = _known(windows((2, 40, 30, 144), (3, 3), (1, 1), ((1, 1), (1, 1))))
    with caplog.at_level(logging.WARNING, "aioflow.compiled"):
        known.prepare()
    assert not known.is_ready
    assert "its results differ from NumPy's" in caplog.text


def test_unsuitable_convolutions_are_left_to_numpy() -> None:
    few = windows((1, 9, 9, 3), (3, 3), (1, 1), ((1, 1), (1, 1)))
    large = windows((1, 40, 40, 32), (17, 17), (1, 1), ((0, 0), (0, 0)))
    assert compiled_depthwise(few, np.dtype(np.float32), conv_depthwise._by_numpy) is None
    assert compiled_depthwise(large, np.dtype(np.float32), conv_depthwise._by_numpy) is None
    assert compiled_depthwise(large, np.dtype(np.complex64), conv_depthwise._by_numpy) is None
