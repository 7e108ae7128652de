"""Windows over arrays of any namespace: positions, padding, views of all windows, and pools by position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from aioflow.memory.values import Array, ArrayFunction, Namespace
from aioflow.ops.nn.geometry import Fit, Pair

# ── windows over image batches ────────────────────────────────────────────────────────────────────────────────────────
#
# Everything here is NHWC. `aioflow.ops.nn.geometry` defines the geometry itself (sizes, padding schemes, errors).


@dataclass(frozen=True, slots=True)
class ImageWindows(Fit):
    """Windows over images, each field a pair for height and width."""

    @property
    def pointwise(self) -> bool:
        """True if each window is one pixel, in the order of the image."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and self.count == self.size

    @property
    def padded(self) -> Pair:
        """The size of the padded image, larger than the part read if the windows do not fit evenly."""
        height, width = (s + sum(p) for s, p in zip(self.size, self.pads, strict=True))
        return height, width

    def pad(self, xp: Namespace, images: Array, value: float = 0) -> Array:
        """Return the images with their padding, or the images themselves if there is no padding."""
        (top, bottom), (left, right) = self.pads
        if not (top or bottom or left or right):
            return images
        made = xp.full((images.shape[0], *self.padded, images.shape[3]), value, images.dtype)
        made[:, top : top + self.size[0], left : left + self.size[1]] = images
        return made

    def unpad(self, padded: Array) -> Array:
        """Return a padded image batch without its padding."""
        (top, _), (left, _) = self.pads
        return padded[:, top : top + self.size[0], left : left + self.size[1]]

    def trimmed(self) -> ImageWindows:
        """Return these windows without outer kernel positions that are never inside the image, and their padding.

        For windows much larger than the image these are nearly all positions. The windows must not be dilated.
        """
        height, width = (self._trimmed_axis(axis) for axis in (0, 1))
        return replace(self, kernel=(height[0], width[0]), pads=(height[1], width[1]))

    def _trimmed_axis(self, axis: int) -> tuple[int, Pair]:
        size, kernel, count = self.size[axis], self.kernel[axis], self.count[axis]
        before, after = self.pads[axis]
        if not count:
            return kernel, (before, after)
        reach = (count - 1) * self.strides[axis]  # distance of the last window from the first
        # Positions before this one are in the padding even of the last window, and so in that of all.
        first = min(max(0, before - reach), kernel - 1)
        # Positions from `before + size` on are behind the image even for the first window.
        left = max(1, min(kernel, before + size) - first)
        return left, (before - first, min(after, max(0, reach + left - size - before + first)))

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice, slice]]]:
        """Yield each kernel position's row and column, and the part of the padded images that it reads."""
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                yield i, j, (slice(None), self._along(0, i), self._along(1, j))

    def _along(self, axis: int, tap: int) -> slice:
        first, stride = tap * self.dilations[axis], self.strides[axis]
        return slice(first, first + (self.count[axis] - 1) * stride + 1, stride)

    def view(self, xp: Namespace, padded: Array) -> Array:
        """Return all windows of the padded images, [n, oh, ow, kh, kw, c], as a view in which they overlap."""
        samples, line, pixel, channel = padded.strides
        (sh, sw), (dh, dw) = self.strides, self.dilations
        shape = (padded.shape[0], *self.count, *self.kernel, padded.shape[3])
        steps = (samples, line * sh, pixel * sw, line * dh, pixel * dw, channel)
        # The stride of a single element does not matter, and may be too large for an address.
        strides = tuple(step if size > 1 else 0 for size, step in zip(shape, steps, strict=True))
        return xp.lib.stride_tricks.as_strided(padded, shape, strides)


# ── kernel positions (taps): what each one reads, and the resulting pools ─────────────────────────────────────────────
#
# Arrays are [batch, sizes …, channels]. Nothing is padded: a kernel position reads only the part of the array that it
# covers, for the windows in which that part exists.


SliceTuple = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class ArrayWindows(Fit):
    """Windows along any number of axes; only the padding before the first element matters."""

    def along(self, axis: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield (position, windows, elements read) for each kernel position of an axis that covers elements.

        For windows much larger than the array, it skips the positions that cannot cover any element.
        """
        size, stride, dilation = self.size[axis], self.strides[axis], self.dilations[axis]
        before, _ = self.pads[axis]
        last = (self.count[axis] - 1) * stride
        start = max(0, -((last - before) // dilation))
        stop = min(self.kernel[axis], -(-(size + before) // dilation))
        for tap in range(start, stop):
            offset = tap * dilation - before
            # The windows for which 0 <= window * stride + offset <= size - 1; a negated floor is a ceiling.
            lowest, highest = max(0, -(offset // stride)), min(self.count[axis] - 1, (size - 1 - offset) // stride)
            if lowest <= highest:
                read = slice(lowest * stride + offset, highest * stride + offset + 1, stride)
                yield tap, slice(lowest, highest + 1), read

    def everywhere(self) -> Iterator[tuple[SliceTuple, SliceTuple]]:
        """Yield (windows, elements read) for each kernel position, in row-major order."""
        axes = [list(self.along(axis)) for axis in range(len(self.size))]
        for taps in product(*axes):
            yield (slice(None), *(given for _, given, _ in taps)), (slice(None), *(read for _, _, read in taps))

    def inside(self, axis: int) -> list[int]:
        """Return the number of kernel positions of each window along an axis that lie inside the array, at least 1."""
        counts = [0] * self.count[axis]
        for _, given, _ in self.along(axis):
            for window in range(given.start, given.stop):
                counts[window] += 1
        return [max(1, count) for count in counts]


def _at(axis: int, part: slice) -> SliceTuple:
    """Return the index of that part along a spatial axis."""
    return (*(slice(None),) * (axis + 1), part)


def pooled(xp: Namespace, x: Array, taps: ArrayWindows, combine: ArrayFunction, start: float) -> Array:
    """Return the combination of all elements of each window; `start` for empty windows.

    `combine` must be associative and commutative, and write into its third argument.
    """
    # One axis after another takes as many passes as the sum of the window's sizes, not their product.
    for axis, count in enumerate(taps.count):
        made = xp.full((*x.shape[: axis + 1], count, *x.shape[axis + 2 :]), start, x.dtype)
        for _, given, read in taps.along(axis):
            part = made[_at(axis, given)]
            combine(part, x[_at(axis, read)], part)
        x = made
    return x


def spread(xp: Namespace, dy: Array, taps: ArrayWindows) -> Array:
    """Return the adjoint of a sum over windows: each element's sum over the windows that contain it."""
    # As in `pooled`, one axis after another.
    for axis, size in enumerate(taps.size):
        made = xp.zeros((*dy.shape[: axis + 1], size, *dy.shape[axis + 2 :]), dy.dtype)
        for _, given, read in taps.along(axis):
            made[_at(axis, read)] += dy[_at(axis, given)]
        dy = made
    return dy


def _winners(xp: Namespace, x: Array, y: Array, taps: ArrayWindows) -> Iterator[tuple[SliceTuple, SliceTuple, Array]]:
    """Yield (windows, elements read, mask) for each kernel position.

    The mask selects the windows in which the position holds the first maximum, or the first NaN.
    """
    free = xp.ones(y.shape, bool)
    for given, read in taps.everywhere():
        values = x[read]
        # Only NaN differs from itself.
        hit = free[given] & ((values == y[given]) | (values != values))
        free[given] &= ~hit
        yield given, read, hit


def routed(xp: Namespace, x: Array, y: Array, dy: Array, taps: ArrayWindows) -> Array:
    """Return the gradient of a maximum, in dy's dtype: each window's whole dy goes to its first maximum."""
    made, nothing = xp.zeros(x.shape, dy.dtype), dy.dtype.type(0)
    for given, read, hit in _winners(xp, x, y, taps):
        made[read] += xp.where(hit, dy[given], nothing)
    return made


def picked(xp: Namespace, x: Array, y: Array, source: Array, taps: ArrayWindows) -> Array:
    """Return the elements of `source`, of x's shape, at each window's first maximum: the adjoint of `routed`."""
    made = xp.zeros(y.shape, source.dtype)
    if not math.prod(y.shape):
        return made
    for given, read, hit in _winners(xp, x, y, taps):
        made[given] = xp.where(hit, source[read], made[given])
    return made
