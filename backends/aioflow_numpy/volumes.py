"""Convolutions and pools over volumes in pure NumPy, with their gradients.

The depth of a window is processed one kernel position at a time. A convolution becomes one convolution over images for
each position along the depth, and a pool becomes one pool over images. Volumes here are NDHWC. float16 and bfloat16
are summed in float32. No function writes to an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from aioflow.concurrency.stopping import batches
from aioflow.memory.values import Array, NpDType, Shape
from aioflow.ops.nn.geometry import Fit
from aioflow_numpy import convolution, pooling
from aioflow_numpy.conv_numbers import float_numbers
from aioflow_numpy.conv_shapes import AxisPads, overlap


@dataclass(frozen=True, slots=True)
class Geometry(Fit):
    """The geometry of windows over a volume."""

    @property
    def flat(self) -> tuple[Any, AxisPads, Any]:
        """Strides, padding and dilations of rows and columns."""
        return self.strides[-2:], (self.pads[-2], self.pads[-1]), self.dilations[-2:]

    @property
    def flat_pool(self) -> tuple[Any, Any, AxisPads]:
        """Window size, strides and padding of rows and columns."""
        return self.kernel[-2:], self.strides[-2:], (self.pads[-2], self.pads[-1])

    def taps(self, axis: int, size: int) -> range:
        """Return the kernel positions along an axis that meet the volume.

        Others may be many, where a window is much larger than the volume.
        """
        before, dilation = self.pads[axis][0], self.dilations[axis]
        # The first position that the last window has inside the volume: a ceiling, as a negated floor.
        first = -(((self.count[axis] - 1) * self.strides[axis] - before) // dilation)
        return range(max(0, first), min(self.kernel[axis], -(-(size + before) // dilation)))

    def at(self, axis: int, size: int, tap: int) -> tuple[slice, slice]:
        """Return (windows with the kernel position inside the volume, elements that it reads)."""
        offset = tap * self.dilations[axis] - self.pads[axis][0]
        return overlap(size, self.count[axis], self.strides[axis], offset)

    def depth_taps(self, size: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield (kernel position, windows with it inside the volume, their elements there) along the depth."""
        for tap in batches(self.taps(0, size), 1):
            given, taken = self.at(0, size, tap)
            if given.stop > given.start:
                yield tap, given, taken


def _frames(volume: Array) -> Array:
    """Return the frames of a volume as images."""
    return volume.reshape(-1, *volume.shape[2:])


def conv(x: Array, w: Array, g: Geometry) -> Array:
    """Return the convolution [n, od, oh, ow, co] of x [n, d, h, w, c] with w [kd, kh, kw, c / groups, co].

    The result has x's dtype.
    """
    numbers = float_numbers(x.dtype)
    x, w = numbers.widen(x), numbers.widen(w)
    total = np.zeros((len(x), *g.count, w.shape[-1]), numbers.compute)
    for tap, given, taken in g.depth_taps(x.shape[1]):
        part = total[:, given]
        part += convolution.conv2d(_frames(x[:, taken]), w[tap], *g.flat, "NHWC").reshape(part.shape)
    return numbers.narrow(total)


def conv_by_input(shape: Shape, w: Array, dy: Array, g: Geometry) -> Array:
    """Return the gradient of `conv` with respect to its input of `shape`, in dy's dtype."""
    numbers = float_numbers(dy.dtype)
    w, dy = numbers.widen(w), numbers.widen(dy)
    total = np.zeros(shape, numbers.compute)
    for tap, given, taken in g.depth_taps(shape[1]):
        part, gradient = total[:, taken], _frames(dy[:, given])
        sizes = (len(gradient), *shape[2:])
        part += convolution.conv2d_backprop_input(sizes, w[tap], gradient, *g.flat, "NHWC").reshape(part.shape)
    return numbers.narrow(total)


def conv_by_filter(x: Array, shape: Shape, dy: Array, g: Geometry) -> Array:
    """Return the gradient of `conv` with respect to its filter of `shape`, in dy's dtype."""
    numbers = float_numbers(dy.dtype)
    x, dy = numbers.widen(x), numbers.widen(dy)
    total = np.zeros(shape, numbers.compute)
    for tap, given, taken in g.depth_taps(x.shape[1]):
        frames, gradient = _frames(x[:, taken]), _frames(dy[:, given])
        # Each position along the depth has weights of its own, so nothing is added up here.
        total[tap] = convolution.conv2d_backprop_filter(frames, shape[1:], gradient, *g.flat, "NHWC")
    return numbers.narrow(total)


def max_pool(x: Array, g: Geometry) -> Array:
    """Return the maximum of each window, in x's dtype."""
    numbers = float_numbers(x.dtype)
    x = numbers.widen(x)
    folded = np.full((len(x), g.count[0], *x.shape[2:]), -np.inf, numbers.compute)
    for _, given, taken in g.depth_taps(x.shape[1]):
        np.maximum(folded[:, given], x[:, taken], out=folded[:, given])
    made = pooling.max_pool(_frames(folded), *g.flat_pool, "NHWC")
    return numbers.narrow(made).reshape(len(x), *g.count, x.shape[-1])


def avg_pool(x: Array, g: Geometry) -> Array:
    """Return the mean of each window, padding not counted, in x's dtype."""
    numbers = float_numbers(x.dtype)
    x = numbers.widen(x)
    folded = np.zeros((len(x), g.count[0], *x.shape[2:]), numbers.compute)
    for _, given, taken in g.depth_taps(x.shape[1]):
        folded[:, given] += x[:, taken]
    # A window's elements inside the volume form a box, so the mean of means over its axes is the mean of all.
    folded /= _depth_counts(g, x.shape[1], numbers.compute)
    made = pooling.avg_pool(_frames(folded), *g.flat_pool, "NHWC")
    return numbers.narrow(made).reshape(len(x), *g.count, x.shape[-1])


def avg_pool_grad(shape: Shape, dy: Array, g: Geometry) -> Array:
    """Return the gradient of `avg_pool` with respect to its input of `shape`, in dy's dtype."""
    numbers = float_numbers(dy.dtype)
    dy = numbers.widen(dy) / _depth_counts(g, shape[1], numbers.compute)
    frames = (shape[0] * g.count[0], *shape[2:])
    spread = pooling.avg_pool_grad(frames, _frames(dy), *g.flat_pool, "NHWC")
    spread = spread.reshape(shape[0], g.count[0], *shape[2:])
    total = np.zeros(shape, numbers.compute)
    for _, given, taken in g.depth_taps(shape[1]):
        total[:, taken] += spread[:, given]
    return numbers.narrow(total)


def _depth_counts(g: Geometry, size: int, dtype: NpDType) -> Array:
    counts = np.zeros(g.count[0], dtype)
    for _, given, _ in g.depth_taps(size):
        counts[given] += 1
    return np.maximum(counts, 1)[:, np.newaxis, np.newaxis, np.newaxis]


# ── position of the maximum in images and volumes ─────────────────────────────────────────────────────────────────────


def tap_hits(x: Array, y: Array, g: Geometry) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...], Array]]:
    """Yield (windows, elements that they read, mask of the windows with their first maximum there) per kernel position.

    Kernel positions come in row-major order. For a window with a NaN, its first NaN counts as the maximum.

    Args:
        x: Values [n, sizes …, c] with as many sizes as the geometry has.
        y: The maxima.
        g: The geometry.
    """
    free = np.ones(y.shape, np.bool_)
    sizes = x.shape[1:-1]
    axes = range(len(sizes))
    for taps in batches(product(*(g.taps(axis, sizes[axis]) for axis in axes)), 1):
        pairs = [g.at(axis, sizes[axis], taps[axis]) for axis in axes]
        given = (slice(None), *(pair[0] for pair in pairs))
        taken = (slice(None), *(pair[1] for pair in pairs))
        values = x[taken]
        hit = ((values == y[given]) | np.isnan(values)) & free[given]
        free[given] &= ~hit
        yield given, taken, hit


def routed(x: Array, y: Array, dy: Array, g: Geometry) -> Array:
    """Return the gradient of a max pool: each window passes its whole dy to its first maximum."""
    numbers = float_numbers(dy.dtype)
    gradient = numbers.widen(dy)
    out = np.zeros(x.shape, numbers.compute)
    for given, taken, hit in tap_hits(x, y, g):
        out[taken] += np.where(hit, gradient[given], 0)
    return numbers.narrow(out)


def picked(x: Array, y: Array, grad: Array, g: Geometry) -> Array:
    """Return the elements of `grad`, of x's shape, at the first maximum of each window: the adjoint of `routed`."""
    out = np.zeros(y.shape, grad.dtype)
    for given, taken, hit in tap_hits(x, y, g):
        np.copyto(out[given], grad[taken], where=hit)
    return out
