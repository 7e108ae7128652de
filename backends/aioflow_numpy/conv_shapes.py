"""The geometry that convolutions and pools share: the position of windows over an image.

Layouts and padding schemes are resolved here; later modules see only NHWC and one `Windows` value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from aioflow.memory.values import Array
from aioflow.ops.nn.geometry import Pair

AxisPads = tuple[Pair, Pair]


def output_size(size: int, kernel: int, stride: int, dilation: int, lo: int, hi: int) -> int:
    """Return the number of windows that fit in `size` elements padded by `lo` before and `hi` after, at least 0."""
    span = (kernel - 1) * dilation + 1
    return max(0, (size + lo + hi - span) // stride + 1)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of kh x kw elements over n images of h x w x c.

    Attributes:
        n, h, w, c: Shape of the images.
        kh, kw: Size of the kernel.
        sh, sw: Strides.
        dh, dw: Dilations.
        top, left: Padding before the first row and column.
        oh, ow: Number of windows along each axis.
    """

    n: int
    h: int
    w: int
    c: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    left: int
    oh: int
    ow: int

    @property
    def rows(self) -> int:
        """Number of windows: n * oh * ow."""
        return self.n * self.oh * self.ow

    @property
    def span_h(self) -> int:
        """Height that the windows read, including padding; input below it is never read."""
        return (self.oh - 1) * self.sh + (self.kh - 1) * self.dh + 1

    @property
    def span_w(self) -> int:
        """Width that the windows read, including padding."""
        return (self.ow - 1) * self.sw + (self.kw - 1) * self.dw + 1

    @property
    def inside(self) -> bool:
        """True if no window reads padding."""
        return self.top == self.left == 0 and self.span_h <= self.h and self.span_w <= self.w

    @property
    def pointwise(self) -> bool:
        """True if each window is one element of the input."""
        return self.kh == self.kw == 1 and self.inside

    def lying(self) -> Windows:
        """Return equivalent windows over lines if the images are single columns, else these windows.

        A column and a line of the same length are the same numbers in memory.
        """
        if self.w != 1 or self.kw != 1 or self.ow != 1 or self.left:
            return self
        line = replace(self, h=1, kh=1, sh=1, dh=1, top=0, oh=1)
        return replace(line, w=self.h, kw=self.kh, sw=self.sh, dw=self.dh, left=self.top, ow=self.oh)


def windows(
    shape: tuple[int, ...], kernel: Pair, strides: Pair, padding: AxisPads, dilations: Pair = (1, 1)
) -> Windows:
    """Return the windows over an NHWC `shape`.

    Raises:
        ValueError: `shape` is not of rank 4, a stride, dilation or kernel size is under 1, or a padding under 0.
    """
    if len(shape) != 4:
        raise ValueError(f"expected an image batch of rank 4, got shape {tuple(shape)}")
    (top, bottom), (left, right) = padding
    if min(*kernel, *strides, *dilations) < 1 or min(top, bottom, left, right) < 0:
        raise ValueError(
            f"kernel sizes, strides and dilations must be at least 1 and paddings at least 0: "
            f"kernel {kernel}, strides {strides}, dilations {dilations}, padding {padding}"
        )
    n, h, w, c = shape
    (kh, kw), (sh, sw), (dh, dw) = kernel, strides, dilations
    oh = output_size(h, kh, sh, dh, top, bottom)
    ow = output_size(w, kw, sw, dw, left, right)
    return Windows(n, h, w, c, kh, kw, sh, sw, dh, dw, top, left, oh, ow)


def transposed_windows(g: Windows, co: int) -> Windows | None:
    """Return the windows over outputs of `co` channels that compute the input's gradient with the flipped filter.

    Return None where the gradient is not a plain convolution: a stride spreads the outputs, and wide padding makes
    outputs of padding alone.
    """
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    # Chosen so that there are as many windows over the outputs as the image has lines and columns.
    bottom, right = g.h + g.top - g.oh, g.w + g.left - g.ow
    if (g.sh, g.sw) != (1, 1) or min(top, left, bottom, right) < 0:
        return None
    return windows((g.n, g.oh, g.ow, co), (g.kh, g.kw), (1, 1), ((top, bottom), (left, right)), (g.dh, g.dw))


def overlap(size: int, outputs: int, stride: int, offset: int) -> tuple[slice, slice]:
    """Return (slice of outputs, slice of input) in which the kernel position at `offset` lies inside the input.

    The input has `size` elements, and windows are `stride` apart. `offset` is the kernel position's index in the first
    window, negative inside the padding. Output o reads o * stride + offset.
    """
    # 0 <= o * stride + offset <= size - 1; the negated floor of a quotient is the ceiling of its negation.
    first = max(0, -(offset // stride))
    last = min(outputs - 1, (size - 1 - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last + 1), slice(first * stride + offset, last * stride + offset + 1, stride)


def strided(array: Array, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool = False) -> Array:
    """Return a view of that shape with these strides, which may be arbitrary along axes of one element."""
    # The stride of an axis of one element may be too large for an address, e.g. of one window with a huge stride.
    steps = [step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)]
    return as_strided(array, shape, steps, writeable=writeable)


def to_nhwc(array: Array, data_format: str) -> Array:
    """Return a view of `array` as NHWC.

    Raises:
        ValueError: `data_format` is neither NHWC nor NCHW, or `array` is not of rank 4.
    """
    if array.ndim != 4:
        raise ValueError(f"expected an image batch of rank 4, got shape {array.shape}")
    if data_format == "NHWC":
        return array
    if data_format == "NCHW":
        return array.transpose(0, 2, 3, 1)
    raise ValueError(f"data_format must be NHWC or NCHW, not {data_format!r}")


def shape_to_nhwc(shape: tuple[int, ...], data_format: str) -> tuple[int, int, int, int]:
    """Return `shape`, an op's attribute or input, in NHWC order.

    Raises:
        ValueError: `data_format` is neither NHWC nor NCHW, or `shape` is not of rank 4.
    """
    if len(shape) != 4 or data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"expected a shape of rank 4 in NHWC or NCHW, got {tuple(shape)} in {data_format!r}")
    a, b, c, d = (int(size) for size in shape)
    return (a, b, c, d) if data_format == "NHWC" else (a, c, d, b)


def from_nhwc(array: Array, data_format: str) -> Array:
    """Return `array` (NHWC) as a contiguous array in `data_format`."""
    return np.ascontiguousarray(array if data_format == "NHWC" else array.transpose(0, 3, 1, 2))
