"""The geometry that convolutions and pools share: how windows lie over an image.

Everything after this module sees NHWC and one `Windows` value; layout and padding schemes end here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def output_size(size: int, kernel: int, stride: int, dilation: int, lo: int, hi: int) -> int:
    """How many windows fit in `size` elements padded by `lo` before and `hi` after; 0 where none does."""
    span = (kernel - 1) * dilation + 1
    return max(0, (size + lo + hi - span) // stride + 1)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of kh x kw taps over n images of h x w x c: each field as TensorFlow's attribute of that meaning."""

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
        """The number of windows: n * oh * ow."""
        return self.n * self.oh * self.ow

    @property
    def span_h(self) -> int:
        """The height that the windows read, padding included; input under it is never read."""
        return (self.oh - 1) * self.sh + (self.kh - 1) * self.dh + 1

    @property
    def span_w(self) -> int:
        """The width that the windows read, padding included."""
        return (self.ow - 1) * self.sw + (self.kw - 1) * self.dw + 1

    @property
    def inside(self) -> bool:
        """Whether no window reads padding."""
        return self.top == self.left == 0 and self.span_h <= self.h and self.span_w <= self.w

    @property
    def pointwise(self) -> bool:
        """Whether each window is one element of the input."""
        return self.kh == self.kw == 1 and self.inside

    def lying(self) -> Windows:
        """Return the windows over lines that are the same numbers in memory, if the images are columns; else these."""
        if self.w != 1 or self.kw != 1 or self.ow != 1 or self.left:
            return self
        line = replace(self, h=1, kh=1, sh=1, dh=1, top=0, oh=1)
        return replace(line, w=self.h, kw=self.kh, sw=self.sh, dw=self.dh, left=self.top, ow=self.oh)


def windows(shape: tuple[int, ...], kernel: Pair, strides: Pair, padding: Padding, dilations: Pair = (1, 1)) -> Windows:
    """The windows over an NHWC `shape`.

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
    """The windows over outputs of `co` channels whose convolution with the flipped filter is the input's gradient.

    None where it is not a plain convolution: a stride spreads the outputs, wide padding makes outputs of padding alone.
    """
    top, left = (g.kh - 1) * g.dh - g.top, (g.kw - 1) * g.dw - g.left
    bottom, right = g.h + g.top - g.oh, g.w + g.left - g.ow
    if (g.sh, g.sw) != (1, 1) or min(top, left, bottom, right) < 0:
        return None
    return windows((g.n, g.oh, g.ow, co), (g.kh, g.kw), (1, 1), ((top, bottom), (left, right)), (g.dh, g.dw))


def overlap(size: int, outputs: int, stride: int, offset: int) -> tuple[slice, slice]:
    """Where tap `offset` of windows `stride` apart meets an input of `size`: (slice of outputs, slice of input).

    `offset` is the tap's position in the first window, negative inside the padding. Output o reads o * stride + offset.
    """
    first = max(0, -(offset // stride))
    last = min(outputs - 1, (size - 1 - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last + 1), slice(first * stride + offset, last * stride + offset + 1, stride)


def strided(array: Array, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool = False) -> Array:
    """A view of that shape with these strides. Those of a single element are of no account and may be too large for
    an address, as where windows that are far apart are one.
    """
    steps = [step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)]
    return as_strided(array, shape, steps, writeable=writeable)


def to_nhwc(array: Array, data_format: str) -> Array:
    """A view of `array` as NHWC.

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
    """`shape` (as an op's attribute or input gives it) in NHWC order.

    Raises:
        ValueError: as `to_nhwc`.
    """
    if len(shape) != 4 or data_format not in ("NHWC", "NCHW"):
        raise ValueError(f"expected a shape of rank 4 in NHWC or NCHW, got {tuple(shape)} in {data_format!r}")
    a, b, c, d = (int(size) for size in shape)
    return (a, b, c, d) if data_format == "NHWC" else (a, c, d, b)


def from_nhwc(array: Array, data_format: str) -> Array:
    """`array` (NHWC) as a contiguous array in `data_format`."""
    return np.ascontiguousarray(array if data_format == "NHWC" else array.transpose(0, 3, 1, 2))
