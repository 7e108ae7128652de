"""Windows over image batches, for arrays of any namespace: positions read, padding, and views of all windows.

Everything here is NHWC. `aioflow.ops.nn.geometry` defines the geometry itself (sizes, padding schemes, errors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from aioflow.memory.values import Array, Namespace
from aioflow.ops.nn.geometry import Fit, Pair


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
