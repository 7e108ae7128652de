"""Kernel positions (taps) of windows over any number of axes: what each one reads, and the resulting pools.

Arrays are [batch, sizes …, channels]. Nothing is padded: a kernel position reads only the part of the array that it
covers, for the windows in which that part exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from aioflow.memory.values import Array, ArrayFunction, Namespace
from aioflow.ops.nn.geometry import Fit

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
