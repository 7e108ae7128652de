"""Pixel positions and sizes that the kernels for resizing share, and their division into blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aioflow.concurrency.stopping import blocks
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import BLOCK, on_host
from aioflow.kernels.registry import Binding
from aioflow.memory.values import Array, Namespace


def checked_size(images: Array, size: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width. Raise InvalidArgumentError unless the images can be resized to them."""
    if images.ndim != 4 or len(size) != 2:
        raise InvalidArgumentError("images are resized in batches", expected="rank 4, 2 sizes", actual=images.shape)
    if min(size) <= 0 or min(images.shape[1:3]) <= 0:
        raise InvalidArgumentError("a size must be positive", expected="> 0", actual=(images.shape[1:3], size))
    return size[0], size[1]


def original_size(grads: Array, image: Array) -> tuple[int, int]:
    """Return height and width of the resized images. Raise InvalidArgumentError if the gradients do not fit them."""
    shapes = np.shape(grads), np.shape(image)
    if {len(shape) for shape in shapes} != {4} or shapes[0][::3] != shapes[1][::3]:
        raise InvalidArgumentError(
            "the gradients do not fit the images that were resized",
            expected="(batch, h, w, channels), with equal batches and channels",
            actual=shapes,
        )
    return checked_size(grads, image.shape[1:3])


def scale_of(old: int, new: int, corners: bool) -> np.float32:
    """Return the number of old pixels per new pixel, as float32."""
    if corners and new > 1:
        return np.float32(old - 1) / np.float32(new - 1)
    return np.float32(old) / np.float32(new)


def positions(old: int, new: int, corners: bool, centres: bool) -> Array:
    """Return the positions of the new pixels among the old ones, as float32."""
    numbers = np.arange(new, dtype=np.float32)
    scale = scale_of(old, new, corners)
    if centres:
        # The center of pixel i is at i + ½, and positions count from the center of pixel 0.
        return (numbers + np.float32(0.5)) * scale - np.float32(0.5)
    return numbers * scale


def scaling_flags(binding: Binding) -> tuple[bool, bool]:
    """Return `align_corners` and `half_pixel_centers`. Raise InvalidArgumentError if both are set."""
    corners, centres = binding.attrs["align_corners"], binding.attrs["half_pixel_centers"]
    if corners and centres:
        raise InvalidArgumentError(
            "only one of align_corners and half_pixel_centers can be True",
            expected="align_corners or half_pixel_centers",
            actual="both",
        )
    return corners, centres


def some_lines(xp: Namespace, shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield blocks of lines of images, on the CPU; elsewhere all lines at once."""
    batch, height, width, depth = shape
    return blocks(height, max(1, BLOCK // max(1, batch * width * depth)) if on_host(xp) else max(1, height))
