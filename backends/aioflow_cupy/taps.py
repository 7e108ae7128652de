"""Where each tap of windows over any number of axes meets the array, and the pools that follow from it.

Arrays are [batch, sizes …, channels]. Nothing is padded: a tap reads the part of the array that it meets, for those
windows that have it inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from aioflow.graph.windows import Fit

__all__ = ["Part", "Taps", "picked", "pooled", "routed", "spread"]

Part = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Taps(Fit):
    """Windows along any number of axes; of their padding only what is before the first element matters."""

    def along(self, axis: int) -> Iterator[tuple[int, slice, slice]]:
        """For each tap of an axis that meets the array: (the tap, which windows have it inside, what they read).

        Of windows much larger than the array only the taps that can meet it are looked at.
        """
        size, stride, dilation = self.size[axis], self.strides[axis], self.dilations[axis]
        before, _ = self.pads[axis]
        last = (self.count[axis] - 1) * stride
        start = max(0, -((last - before) // dilation))
        stop = min(self.kernel[axis], -(-(size + before) // dilation))
        for tap in range(start, stop):
            offset = tap * dilation - before
            lowest, highest = max(0, -(offset // stride)), min(self.count[axis] - 1, (size - 1 - offset) // stride)
            if lowest <= highest:
                read = slice(lowest * stride + offset, highest * stride + offset + 1, stride)
                yield tap, slice(lowest, highest + 1), read

    def everywhere(self) -> Iterator[tuple[Part, Part]]:
        """For each tap, in row-major order: (the windows that have it inside, what they read)."""
        axes = [list(self.along(axis)) for axis in range(len(self.size))]
        for taps in product(*axes):
            yield (slice(None), *(given for _, given, _ in taps)), (slice(None), *(read for _, _, read in taps))

    def inside(self, axis: int) -> list[int]:
        """How many taps of each window along an axis lie inside the array, at least 1."""
        counts = [0] * self.count[axis]
        for _, given, _ in self.along(axis):
            for window in range(given.start, given.stop):
                counts[window] += 1
        return [max(1, count) for count in counts]


def _at(axis: int, part: slice) -> Part:
    """That part along a spatial axis."""
    return (*(slice(None),) * (axis + 1), part)


def pooled(xp: Any, x: Any, taps: Taps, combine: Any, start: Any) -> Any:
    """All elements of each window combined, `start` for those that have none: one axis after the other, which takes the
    sum of the window's sizes in passes, not their product.
    """
    for axis, count in enumerate(taps.count):
        made = xp.full((*x.shape[: axis + 1], count, *x.shape[axis + 2 :]), start, x.dtype)
        for _, given, read in taps.along(axis):
            part = made[_at(axis, given)]
            combine(part, x[_at(axis, read)], part)
        x = made
    return x


def spread(xp: Any, dy: Any, taps: Taps) -> Any:
    """The adjoint of a sum over windows: what each element gets from the windows that it is in."""
    for axis, size in enumerate(taps.size):
        made = xp.zeros((*dy.shape[: axis + 1], size, *dy.shape[axis + 2 :]), dy.dtype)
        for _, given, read in taps.along(axis):
            made[_at(axis, read)] += dy[_at(axis, given)]
        dy = made
    return dy


def _winners(xp: Any, x: Any, y: Any, taps: Taps) -> Iterator[tuple[Part, Part, Any]]:
    """For each tap its windows, what they read, and in which of them it is the first maximum, or the first NaN."""
    free = xp.ones(y.shape, bool)
    for given, read in taps.everywhere():
        values = x[read]
        hit = free[given] & ((values == y[given]) | (values != values))
        free[given] &= ~hit
        yield given, read, hit


def routed(xp: Any, x: Any, y: Any, dy: Any, taps: Taps) -> Any:
    """The gradient of a maximum, in dy's dtype: each window gives its whole dy to its first maximum."""
    made, nothing = xp.zeros(x.shape, dy.dtype), dy.dtype.type(0)
    for given, read, hit in _winners(xp, x, y, taps):
        made[read] += xp.where(hit, dy[given], nothing)
    return made


def picked(xp: Any, x: Any, y: Any, source: Any, taps: Taps) -> Any:
    """What lies in `source`, of x's shape, where each window has its first maximum: the adjoint of `routed`."""
    made = xp.zeros(y.shape, source.dtype)
    if not math.prod(y.shape):
        return made
    for given, read, hit in _winners(xp, x, y, taps):
        made[given] = xp.where(hit, source[read], made[given])
    return made
