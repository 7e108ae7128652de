"""Layouts and windows over any number of axes, compared with counting each window."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aioflow import errors
from aioflow.ops.nn.geometry import Window, conv_dims, layout_of, pool_dims

LAYOUTS = ["NHWC", "NCHW", "NDHWC", "NCDHW"]


def window(data_format: str, stride: int = 1, dilation: int = 1, **attrs: Any) -> Window:
    layout = layout_of(data_format)
    strides, dilations = (list(layout.arrange(1, [n] * layout.axes, 1)) for n in (stride, dilation))
    return Window.of({"data_format": data_format, "strides": strides, "dilations": dilations, **attrs})


@pytest.mark.parametrize("data_format", LAYOUTS)
def test_a_layout_locates_each_axis(data_format: str) -> None:
    layout = layout_of(data_format)
    sizes = tuple({"N": 2, "D": 3, "H": 4, "W": 5, "C": 6}[letter] for letter in data_format)
    assert layout.rank == len(data_format)
    assert sizes[layout.channel] == 6
    assert layout.spatial(sizes) == (3, 4, 5)[-layout.axes :]
    assert layout.arrange(2, layout.spatial(sizes), 6) == sizes
    assert layout.sizes_last(sizes) == (2, *layout.spatial(sizes), 6)
    array = np.arange(np.prod(sizes)).reshape(sizes)
    assert layout.last(array).shape == layout.sizes_last(sizes)
    np.testing.assert_array_equal(layout.back(layout.last(array)), array)


def starts(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> list[int]:
    """Return the starts of the windows that lie completely inside the padded line."""
    span = (kernel - 1) * dilation + 1
    return [at for at in range(-before, size + after, stride) if at + span <= size + after]


@pytest.mark.parametrize("data_format", LAYOUTS)
def test_window_counts_are_those_of_windows_inside(data_format: str) -> None:
    """SAME has one window for each stride, and the least padding that makes room for them."""
    for size, kernel, stride, dilation in itertools.product((1, 4, 7), (1, 2, 3), (1, 2, 3), (1, 2)):
        axes = layout_of(data_format).axes
        same = window(data_format, stride, dilation, padding="SAME")
        assert same.outputs([size] * axes, [kernel] * axes) == (-(-size // stride),) * axes
        for before, after in same.pads([size] * axes, [kernel] * axes):
            assert len(starts(size, kernel, stride, dilation, before, after)) == -(-size // stride)
            assert after - before in (0, 1)
            assert not after or len(starts(size, kernel, stride, dilation, before, after - 1)) < -(-size // stride)
        if (kernel - 1) * dilation < size:
            valid = window(data_format, stride, dilation, padding="VALID")
            count = len(starts(size, kernel, stride, dilation, 0, 0))
            assert valid.outputs([size] * axes, [kernel] * axes) == (count,) * axes


def test_explicit_paddings_apply_to_their_axes() -> None:
    first = window("NCHW", padding="EXPLICIT", explicit_paddings=[0, 0, 0, 0, 1, 2, 3, 4])
    assert first.pads((5, 5), (3, 3)) == ((1, 2), (3, 4))
    assert conv_dims(first, (8, 6, 5, None), (3, 3, 3, 4)) == (8, 4, 6, None)
    volume = window("NDHWC", padding="EXPLICIT", explicit_paddings=[0, 0, 1, 0, 0, 1, 2, 2, 0, 0])
    assert pool_dims(volume, [1, 2, 2, 2, 1], (None, 3, 3, 3, 7)) == (None, 3, 3, 6, 7)


@pytest.mark.parametrize(
    ("data_format", "sizes", "axis"),
    [
        ("NHWC", (4, 2), "width"),
        ("NCHW", (2, 4), "height"),
        ("NCDHW", (2, 4, 4), "depth"),
        ("NDHWC", (4, 4, 2), "width"),
    ],
)
def test_the_error_for_a_small_image_names_its_axis(data_format: str, sizes: tuple[int, ...], axis: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="larger than the image") as caught:
        window(data_format, padding="VALID").outputs(sizes, [3] * len(sizes))
    assert f"a {axis} of at least 3" in str(caught.value)


@pytest.mark.parametrize("data_format", LAYOUTS)
def test_invalid_windows_are_rejected(data_format: str) -> None:
    layout = layout_of(data_format)
    fine = {"data_format": data_format, "strides": [1] * layout.rank, "padding": "VALID"}
    for name in ("strides", "dilations"):
        with pytest.raises(errors.InvalidArgumentError, match="one value per axis"):
            Window.of({**fine, name: [1] * (layout.rank - 1)})
        with pytest.raises(errors.InvalidArgumentError, match="positive"):
            Window.of({**fine, name: [0] * layout.rank})
        for axis in (0, layout.channel):
            moving = [1 + (i == axis) for i in range(layout.rank)]
            with pytest.raises(errors.UnimplementedError, match="batch and channels"):
                Window.of({**fine, name: moving})
    with pytest.raises(errors.UnimplementedError, match="data_format"):
        Window.of({**fine, "data_format": "CHWN"})
    with pytest.raises(errors.InvalidArgumentError, match="with padding EXPLICIT"):
        Window.of({**fine, "explicit_paddings": [0] * 2 * layout.rank})
    with pytest.raises(errors.InvalidArgumentError, match="cannot be padded"):
        Window.of({**fine, "padding": "EXPLICIT", "explicit_paddings": [1] * 2 * layout.rank})
